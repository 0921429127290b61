"""Whether probabilities mean what they say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darkroom.evaluation.predictions import Predictions

BINS = 15


@dataclass(frozen=True)
class Bin:
    """Pictures of like confidence."""

    confidence: float
    """mean"""
    accuracy: float
    num_images: int


@dataclass(frozen=True)
class Calibration:
    """Of N pictures."""

    ece: float
    """expected calibration error over bins of equal width: mean |confidence - accuracy|, weighted by pictures (Guo et al. 2017)"""
    ece_equal_mass: float
    """the same over bins of equally many pictures, which does not lean on a few crowded bins (Nixon et al. 2019)"""
    brier: float
    """mean squared distance from the one-hot label, 0..2 (Brier 1950)"""
    bins: list[Bin]
    """of equal width, those that hold pictures: the reliability diagram"""

    def metrics(self) -> dict[str, float]:
        return {"ece": self.ece, "ece_equal_mass": self.ece_equal_mass, "brier": self.brier}


def calibration(predictions: Predictions) -> Calibration:
    hits = predictions.hits.astype(np.float64)
    confidence = predictions.confidence
    width = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)  # (0, 1/15], (1/15, 2/15] …
    order = np.argsort(confidence, kind="stable")
    mass = np.empty_like(width)
    mass[order] = np.arange(len(order)) * BINS // len(order)
    bins, equal_mass = _bins(confidence, hits, width), _bins(confidence, hits, mass)
    return Calibration(_error(bins), _error(equal_mass), _brier(predictions), bins)


def _bins(confidence: NDArray[np.float64], hits: NDArray[np.float64], places: NDArray[np.int64]) -> list[Bin]:
    counts = np.bincount(places, minlength=BINS)
    sums = (np.bincount(places, values, BINS) for values in (confidence, hits))
    return [
        Bin(float(sum_confidence / count), float(sum_hits / count), int(count))
        for count, sum_confidence, sum_hits in zip(counts, *sums, strict=True)
        if count
    ]


def _error(bins: list[Bin]) -> float:
    total = sum(each.num_images for each in bins)
    return sum(each.num_images * abs(each.confidence - each.accuracy) for each in bins) / total


def _brier(predictions: Predictions) -> float:
    probabilities = np.exp(predictions.log_probabilities)
    right = probabilities[np.arange(len(predictions.labels)), predictions.labels]
    return float(((probabilities**2).sum(axis=1) - 2 * right + 1).mean())

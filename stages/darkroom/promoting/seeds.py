"""Whether one configuration is better than another, each trained with several seeds: more than their luck would do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darkroom.evaluation.predictions import Predictions
from darkroom.evaluation.scores import confusion_matrix, per_class, ranks
from darkroom.evaluation.uncertainty import Level, resample

FEWEST = 3
"""Seeds that a configuration is judged by at least: of two, the spread is hardly known."""
RESAMPLES = 4000
LOWER_IS_BETTER = ("nll",)
OF_CONFUSION = ("macro_precision", "macro_recall", "macro_f1")
"""Metrics that follow from the confusion matrix, in the order of `per_class`; all others are means over pictures."""


@dataclass(frozen=True)
class Answers:
    """What one network says of N pictures, as far as a metric of promotion needs it."""

    predicted: NDArray[np.int64]
    """N"""
    means: dict[str, NDArray[np.float64]]
    """N each, whose mean is accuracy, top5_accuracy, nll"""

    @classmethod
    def of(cls, predictions: Predictions) -> Answers:
        logs, labels = predictions.log_probabilities, predictions.labels
        place = ranks(logs, labels)
        means = {
            "accuracy": (place == 0).astype(np.float64),
            "top5_accuracy": (place < 5).astype(np.float64),
            "nll": -logs[np.arange(len(labels)), labels],
        }
        return cls(predictions.predicted, means)

    def scores(self, metric: str, labels: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.float64]:
        """`metric` on B resamples (B×N: how often each picture is in them)."""
        if metric in self.means:
            return np.asarray(times @ self.means[metric] / times.sum(axis=1))
        num_classes = int(max(labels.max(), self.predicted.max())) + 1
        found = (per_class(confusion_matrix(labels, self.predicted, num_classes, each)) for each in times)
        return np.array([np.nanmean(each[OF_CONFUSION.index(metric)]) for each in found])


@dataclass(frozen=True)
class Beside:
    """One configuration beside another."""

    own: float
    """mean score over its seeds"""
    other: float
    gain: float
    """positive where the own is better, also where lower scores are"""
    p: float
    """one-sided: how often seeds and pictures like these would show no gain"""


def beside(own: Sequence[Answers], other: Sequence[Answers], labels: NDArray[np.int64], metric: str) -> Beside:
    """The networks `own` and `other` of two configurations, at least two of each, on the same pictures.

    The error of the gain is that of a bootstrap of two levels (Davison and Hinkley 1997, 3.8): pictures are drawn once for
    all networks, seeds for each configuration. K seeds drawn out of K spread by (K-1)/K of the truth; their spread is
    widened by as much. Three seeds tell the error itself but roughly: so p is that of Student's t, with the degrees of
    freedom that they leave (Satterthwaite 1946).
    """
    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0
    rng = np.random.default_rng(0)

    def gains(times: NDArray[np.int64]) -> NDArray[np.float64]:
        means = (_means([each.scores(metric, labels, times) for each in side], rng) for side in (own, other))
        return sign * np.subtract(*means)

    once = np.ones((1, len(labels)), np.int64)
    ours, theirs = (np.array([each.scores(metric, labels, once)[0] for each in side]) for side in (own, other))
    gain = sign * float(ours.mean() - theirs.mean())
    variance = float(resample(once[0], Level(RESAMPLES, 0.95), gains).var())
    of_seeds = sum((side.var(ddof=1) / len(side)) ** 2 / (len(side) - 1) for side in (ours, theirs))
    return Beside(float(ours.mean()), float(theirs.mean()), gain, _p(gain, variance, float(of_seeds)))


def _p(gain: float, variance: float, of_seeds: float) -> float:
    """One-sided; without any spread, the networks are the same or always better."""
    from scipy.stats import t

    if variance == 0:
        return 0.0 if gain > 0 else 1.0
    freedom = variance**2 / of_seeds if of_seeds else math.inf
    return float(t.sf(gain / math.sqrt(variance), freedom))


def _means(scores: list[NDArray[np.float64]], rng: np.random.Generator) -> NDArray[np.float64]:
    """Means over as many seeds, drawn anew in each of the B resamples that `scores` (K arrays of B) were taken on."""
    table = np.stack(scores)
    num_seeds, num_resamples = table.shape
    chosen = rng.integers(num_seeds, size=table.shape)
    centre = table.mean(axis=0)
    drawn = table[chosen, np.arange(num_resamples)].mean(axis=0)
    return np.asarray(centre + np.sqrt(num_seeds / (num_seeds - 1)) * (drawn - centre))

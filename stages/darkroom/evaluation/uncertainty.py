"""How far a score on this many pictures may be from the truth: bootstrap intervals.

A resample of N pictures changes accuracy and F1 through the confusion matrix alone, and its cells are then multinomial:
so a resample costs a draw a cell, however many pictures there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darkroom.evaluation.scores import Scores, per_class

CELLS = 4_000_000
"""drawn at a time, so that a thousand classes need no gigabytes"""


@dataclass(frozen=True)
class Level:
    """How intervals are made: the percentiles of a bootstrap (Efron and Tibshirani 1993, chapter 13)."""

    resamples: int
    confidence: float
    """share of intervals that hold the true value"""
    seed: int = 0

    def interval(self, draws: NDArray[np.float64]) -> NDArray[np.float64]:
        """Lower and upper end over the first axis; NaN draws (a resample without a picture of the class) do not count."""
        tail = 50 * (1 - self.confidence)
        return np.asarray(np.nanpercentile(draws, [tail, 100 - tail], axis=0))


@dataclass(frozen=True)
class Intervals:
    """Lower and upper ends."""

    accuracy: tuple[float, float]
    macro_f1: tuple[float, float]
    f1: NDArray[np.float64]
    """2×K; NaN for a class without pictures"""

    def metrics(self) -> dict[str, float]:
        names = ("accuracy", "macro_f1")
        ends = {name: getattr(self, name) for name in names}
        return {f"{name}_{end}": ends[name][i] for name in names for i, end in enumerate(("low", "high"))}


def intervals(scores: Scores, level: Level) -> Intervals:
    """Of accuracy and F1. Without a single mistake accuracy's is the exact binomial one: a bootstrap would see no doubt."""
    present = scores.support > 0
    drawn = resample(scores.confusion.ravel(), level, lambda cells: _draw(cells, present))
    ends = level.interval(drawn)
    accuracy = ends[:, 0] if scores.accuracy < 1 else [((1 - level.confidence) / 2) ** (1 / scores.num_images), 1.0]
    f1 = np.full((2, len(present)), np.nan)
    f1[:, present] = ends[:, 2:]
    return Intervals((float(accuracy[0]), float(accuracy[1])), (float(ends[0, 1]), float(ends[1, 1])), f1)


def _draw(cells: NDArray[np.int64], present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Accuracy, macro F1, F1 of each class that has pictures, from resampled confusion matrices (B×K²)."""
    confusion = cells.reshape(-1, len(present), len(present))
    f1 = per_class(confusion)[2]
    accuracy = np.trace(confusion, axis1=1, axis2=2) / confusion.sum(axis=(1, 2))
    return np.column_stack([accuracy, np.nanmean(f1, axis=1), f1[:, present]])


def resample(
    counts: NDArray[np.int64], level: Level, statistic: Callable[[NDArray[np.int64]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """`statistic` of `level.resamples` draws of as many pictures as `counts` holds, some at a time; counts: a cell each kind."""
    rng = np.random.default_rng(level.seed)
    kinds = np.flatnonzero(counts)
    total = int(counts.sum())
    parts = []
    for start in range(0, level.resamples, step := max(CELLS // len(counts), 1)):
        drawn = np.zeros((min(step, level.resamples - start), len(counts)), np.int64)
        drawn[:, kinds] = rng.multinomial(total, counts[kinds] / total, size=len(drawn))
        parts.append(statistic(drawn))
    return np.concatenate(parts)

"""Scores of a classifier from its logits. numpy alone: promotion scores exported models with it too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

SMALLEST = float(np.finfo(np.float32).tiny)
"""A probability below this is counted as this, so that one certain mistake leaves the nll a number (at most 87.3)."""


@dataclass(frozen=True)
class Scores:
    """Of N pictures in K classes. A class without pictures has no score of its own (NaN) and no part in a mean."""

    num_images: int
    accuracy: float
    top5_accuracy: float | None
    """share of pictures whose class is among the five likeliest; None for five classes or fewer"""
    macro_precision: float
    macro_recall: float
    macro_f1: float
    nll: float
    """mean negative log-likelihood, in nats"""
    precision: NDArray[np.float64]
    """K; 0 for a class that was never predicted"""
    recall: NDArray[np.float64]
    """K"""
    f1: NDArray[np.float64]
    """K"""
    support: NDArray[np.int64]
    """K: pictures of each class"""
    confusion: NDArray[np.int64]
    """K×K: row the actual class, column the predicted one"""

    def metrics(self) -> dict[str, float | int]:
        """The numbers of the whole, by name; top5_accuracy only where there is one."""
        names = ("accuracy", "top5_accuracy", "macro_precision", "macro_recall", "macro_f1", "nll", "num_images")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def scores(logits: ArrayLike, labels: NDArray[np.int64]) -> Scores:
    """Scores of `logits` (float N×K, N at least 1) against `labels` (N, 0..K-1).

    Log-probabilities do as well as logits: `scores(log_probabilities(p), labels)`.
    Precision, recall and F1 are scikit-learn's with `zero_division=0` over the classes that have pictures.
    """
    values = np.asarray(logits, dtype=np.float64)
    num_images, num_classes = values.shape
    assert num_images == len(labels) > 0, f"{num_images} rows of logits, {len(labels)} labels"
    before = ranks(values, labels)
    confusion = confusion_matrix(labels, values.argmax(axis=1), num_classes)
    precision, recall, f1 = per_class(confusion)
    return Scores(
        num_images=num_images,
        accuracy=float((before == 0).mean()),
        top5_accuracy=float((before < 5).mean()) if num_classes > 5 else None,
        macro_precision=float(np.nanmean(precision)),
        macro_recall=float(np.nanmean(recall)),
        macro_f1=float(np.nanmean(f1)),
        nll=float(-log_softmax(values)[np.arange(num_images), labels].mean()),
        precision=precision,
        recall=recall,
        f1=f1,
        support=confusion.sum(axis=1),
        confusion=confusion,
    )


def log_softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """Log-probabilities over the last axis, in float64."""
    values = np.asarray(logits, dtype=np.float64)
    shifted = values - values.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def log_probabilities(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Logs of `probabilities`, finite also where a probability is 0: what `scores` takes from a file that gives no logits."""
    return np.asarray(np.log(np.maximum(np.asarray(probabilities, dtype=np.float64), SMALLEST)))


def ranks(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many classes stand before the right one; of equal logits the first class goes first, as in argmax."""
    own = logits[np.arange(len(labels)), labels][:, None]
    before = np.arange(logits.shape[1]) < labels[:, None]
    # "not at most" rather than "more than": a NaN never makes a hit.
    return np.asarray((~(logits <= own) | ((logits == own) & before)).sum(axis=1))


def confusion_matrix(
    actual: NDArray[np.int64],
    predicted: NDArray[np.int64],
    num_classes: int,
    times: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """K×K pictures: row the actual class, column the predicted one; a picture counts once, or so many times."""
    cells = np.bincount(actual * num_classes + predicted, times, minlength=num_classes**2)
    return cells.astype(np.int64).reshape(num_classes, num_classes)


def per_class(
    confusion: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Precision, recall, F1 (each …×K) of confusion matrices (…×K×K); NaN for a class without pictures."""
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    support, predicted = confusion.sum(axis=-1), confusion.sum(axis=-2)
    precision = np.where(support > 0, hits / np.maximum(predicted, 1), np.nan)
    recall = np.where(support > 0, hits / np.maximum(support, 1), np.nan)
    f1 = np.where(support > 0, 2 * hits / np.maximum(support + predicted, 1), np.nan)
    return precision, recall, f1

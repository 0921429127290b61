"""What a model says of each picture of a split, as probabilities and as tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darkroom.evaluation.scores import Scores, log_softmax

MOST_COLUMNS = 100
"""With more classes than this the predictions table names no probability but the winner's: it would be mostly zeros."""


@dataclass(frozen=True)
class Predictions:
    """N pictures, K classes."""

    classes: list[str]
    labels: NDArray[np.int64]
    """N"""
    log_probabilities: NDArray[np.float64]
    """N×K, calibrated"""

    @classmethod
    def of(
        cls, logits: NDArray[np.float32], labels: NDArray[np.int64], *, classes: list[str], temperature: float
    ) -> Predictions:
        """From logits (N×K); `temperature` divides them (Guo et al. 2017, https://arxiv.org/abs/1706.04599)."""
        return cls(classes, labels, log_softmax(logits.astype(np.float64) / temperature))

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """N: the likeliest class"""
        return np.asarray(self.log_probabilities.argmax(axis=1))

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """N: the probability of the likeliest class"""
        return np.asarray(np.exp(self.log_probabilities.max(axis=1)))

    @cached_property
    def mistakes(self) -> NDArray[np.int64]:
        """Places of the pictures that were taken for another class, the most confident mistake first."""
        places = np.flatnonzero(self.predicted != self.labels)
        return places[np.argsort(-self.confidence[places], kind="stable")]


def confusion_table(predictions: Predictions) -> str:
    """A row a picture, as DVC's confusion templates take it: actual, predicted."""
    names = predictions.classes
    pairs = zip(predictions.labels, predictions.predicted, strict=True)
    return _csv(["actual", "predicted"], ((names[actual], names[predicted]) for actual, predicted in pairs))


def per_class_table(scores: Scores, classes: Sequence[str]) -> str:
    """A row a class: class, precision, recall, f1 (empty where the class has no picture), support."""
    columns = zip(classes, scores.precision, scores.recall, scores.f1, scores.support, strict=True)
    rows = ((name, *map(_number, numbers), support) for name, *numbers, support in columns)
    return _csv(["class", "precision", "recall", "f1", "support"], rows)


def predictions_table(predictions: Predictions) -> str:
    """A row a picture: index, label, predicted, confidence, and a probability for each class (at most 100 classes)."""
    names = predictions.classes
    shown = names if len(names) <= MOST_COLUMNS else []
    rows = (
        [*row, *map(_number, np.exp(logs[: len(shown)]))]
        for row, logs in zip(
            _outcomes(predictions, range(len(predictions.labels))), predictions.log_probabilities, strict=True
        )
    )
    return _csv(["index", "label", "predicted", "confidence", *(f"p({name})" for name in shown)], rows)


def mistakes_table(predictions: Predictions) -> str:
    """A row a mistake, the most confident first: index, label, predicted, confidence."""
    return _csv(["index", "label", "predicted", "confidence"], _outcomes(predictions, predictions.mistakes))


def _outcomes(predictions: Predictions, places: Iterable[int]) -> Iterable[list[Any]]:
    names = predictions.classes
    for i in places:
        label, predicted = names[predictions.labels[i]], names[predictions.predicted[i]]
        yield [i, label, predicted, _number(predictions.confidence[i])]


def _number(value: float) -> str:
    return "" if np.isnan(value) else format(value, ".6g")


def _csv(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()

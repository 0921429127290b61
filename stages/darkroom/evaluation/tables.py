"""What evaluation found, as CSV that people open and `dvc plots` draws."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from typing import Any

import numpy as np

from darkroom.evaluation.predictions import Predictions
from darkroom.evaluation.scores import Scores
from darkroom.evaluation.uncertainty import Intervals

MOST_COLUMNS = 100
"""With more classes than this the predictions table names no probability but the winner's: it would be mostly zeros."""


def confusion_table(predictions: Predictions) -> str:
    """A row a picture, as DVC's confusion templates take it: actual, predicted."""
    names = predictions.classes
    pairs = zip(predictions.labels, predictions.predicted, strict=True)
    return _csv(["actual", "predicted"], ((names[actual], names[predicted]) for actual, predicted in pairs))


def per_class_table(scores: Scores, ends: Intervals, classes: Sequence[str]) -> str:
    """A row a class: class, precision, recall, f1, its interval (empty where the class has no picture), support."""
    columns = zip(
        classes, scores.precision, scores.recall, scores.f1, *ends.f1, scores.support, strict=True
    )  # fmt: skip
    rows = ((name, *map(_number, numbers), support) for name, *numbers, support in columns)
    return _csv(["class", "precision", "recall", "f1", "f1_low", "f1_high", "support"], rows)


def predictions_table(predictions: Predictions, ids: Sequence[str]) -> str:
    """A row a picture: index, image (`ids`), label, predicted, confidence, and each class's probability (up to 100 classes)."""
    names = predictions.classes
    shown = names if len(names) <= MOST_COLUMNS else []
    rows = (
        [index, image, *row, *map(_number, np.exp(logs[: len(shown)]))]
        for (index, *row), image, logs in zip(
            _outcomes(predictions, range(len(ids))), ids, predictions.log_probabilities, strict=True
        )
    )
    return _csv(["index", "image", "label", "predicted", "confidence", *(f"p({name})" for name in shown)], rows)


def rows_table(kind: type[Any], rows: Sequence[Any]) -> str:
    """A column a field of `kind`, the dataclass that the rows are of."""
    values = ([_number(v) if isinstance(v, float) else v for v in astuple(row)] for row in rows)
    return _csv([field.name for field in fields(kind)], values)


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

"""Candidate and champion on the same pictures: two exported files, scored on the present test split."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from darkroom.evaluation.calibration import calibration
from darkroom.evaluation.predictions import Predictions
from darkroom.evaluation.scores import log_probabilities, scores
from darkroom.packed import PackedSet
from darkroom.promoting.facts import Scored
from darkroom.serving.predictor import Predictor

BATCH = 256
"""Pictures at a time."""


def score(name: str, path: Path, packed: PackedSet) -> Scored:
    """The ONNX file at `path`, scored on the test split of `packed`; `Scored.problem` says why where that cannot be.

    Raises UserError for a file that is no exported model.
    """
    predictor = Predictor(path)
    about = predictor.description
    problem = _problem(name, predictor, packed)
    own = (name, about.classes, about.model_sha256, about.data_sha256)
    if problem:
        return Scored(*own, num_bytes=path.stat().st_size, problem=problem)
    found, predicted = _scores(predictor, packed)
    return Scored(*own, found, predicted, path.stat().st_size)


def _scores(predictor: Predictor, packed: PackedSet) -> tuple[dict[str, float], tuple[int, ...]]:
    """By name, and the class of each test picture."""
    test = packed.split("test")
    parts = [
        predictor.probabilities(np.ascontiguousarray(test.images[start : start + BATCH].transpose(0, 3, 1, 2)))
        for start in range(0, len(test), BATCH)
    ]
    labels = np.asarray(test.labels)
    predictions = Predictions(packed.meta.classes, labels, log_probabilities(np.concatenate(parts)))
    found = scores(predictions.log_probabilities, labels).metrics() | calibration(predictions).metrics()
    return {metric: float(value) for metric, value in found.items()}, tuple(predictions.predicted.tolist())


def _problem(name: str, predictor: Predictor, packed: PackedSet) -> str:
    about, meta = predictor.description, packed.meta
    packed.test()  # there is something to score on
    if len(about.classes) != len(meta.classes):
        return f"{name} knows {len(about.classes)} classes, data/packed has {len(meta.classes)}"
    own, now = ((each.channels, each.image_size) for each in (about, meta))
    if own != now:
        return f"{name} takes pictures of {own[1]} pixels in {own[0]} channels, data/packed has {now[1]} in {now[0]}"
    return ""

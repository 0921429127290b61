"""Candidate and champion on the same pictures: two exported files, scored on the present test split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from darkroom.evaluation.calibration import calibration
from darkroom.evaluation.predictions import Predictions
from darkroom.evaluation.scores import log_probabilities, scores
from darkroom.packed import PackedSet
from darkroom.promoting.facts import Scored
from darkroom.promoting.seeds import Answers
from darkroom.serving.predictor import Predictor

if TYPE_CHECKING:
    from darkroom.tracking.store import Store

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
    predictions = _predictions(predictor, packed)
    found = scores(predictions.log_probabilities, predictions.labels).metrics() | calibration(predictions).metrics()
    values = {metric: float(value) for metric, value in found.items()}
    return Scored(*own, values, Answers.of(predictions), path.stat().st_size)


def answers_of_checkpoint(store: Store, run_id: str, packed: PackedSet) -> Answers:
    """What the network that the run trained says of the test split of `packed`."""
    from darkroom.evaluation.inference import device_like, logits_of
    from darkroom.models import load_model
    from darkroom.tracking.fetching import fetch_model

    saved, test = load_model(fetch_model(store, f"runs:/{run_id}").path), packed.split("test")
    device = device_like(str(saved.made_with["device"]))
    logits = logits_of(saved.build(), test.images, batch_size=BATCH, device=device)
    return Answers.of(
        Predictions.of([logits], np.asarray(test.labels), classes=saved.classes, temperature=saved.temperature)
    )


def _predictions(predictor: Predictor, packed: PackedSet) -> Predictions:
    test = packed.split("test")
    parts = [
        predictor.probabilities(np.ascontiguousarray(test.images[start : start + BATCH].transpose(0, 3, 1, 2)))
        for start in range(0, len(test), BATCH)
    ]
    return Predictions(packed.meta.classes, np.asarray(test.labels), log_probabilities(np.concatenate(parts)))


def _problem(name: str, predictor: Predictor, packed: PackedSet) -> str:
    about, meta = predictor.description, packed.meta
    packed.test()  # there is something to score on
    if len(about.classes) != len(meta.classes):
        return f"{name} knows {len(about.classes)} classes, data/packed has {len(meta.classes)}"
    own, now = ((each.channels, each.image_size) for each in (about, meta))
    if own != now:
        return f"{name} takes pictures of {own[1]} pixels in {own[0]} channels, data/packed has {now[1]} in {now[0]}"
    return ""

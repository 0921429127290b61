"""Likely label errors among the training pictures: confident learning on out-of-fold probabilities.

Northcutt, Jiang and Chuang 2021 (https://arxiv.org/abs/1911.00068), by cleanlab. Out of fold: no picture is judged by a network
that has learned its label by heart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.errors import UserError
from darkroom.evaluation.inference import logits_of
from darkroom.evaluation.pictures import grid
from darkroom.evaluation.scores import log_softmax
from darkroom.evaluation.tables import rows_table
from darkroom.files import write_text, written_whole
from darkroom.fitting import Plan
from darkroom.fitting.trained import Trained
from darkroom.folds import stratified
from darkroom.packed import Split
from darkroom.training import ALONE

BATCH = 512
DRAWN = 49
"""the worst, on the sheet"""


@dataclass(frozen=True)
class Suspect:
    """A training picture whose label is likely wrong."""

    index: int
    """place in the training split"""
    source: str
    """where it is from: a file, or a place in the published set"""
    label: str
    suggested: str
    label_probability: float
    suggested_probability: float


def likely_errors(
    plan: Plan, folds: int, *, sources: list[str], tell: Callable[[int], None] = lambda _: None
) -> list[Suspect]:
    """The pictures that `folds` trainings of `plan`, each on the others, do not believe; the least credible first.

    `sources`: of the training pictures. `tell` hears of each fold that is done. Raises UserError where a class is too small.
    """
    from cleanlab.filter import find_label_issues

    train = plan.packed.split("train")
    places = stratified(train.labels, folds, plan.train.seed)
    if (fewest := int(np.bincount(train.labels).min())) < 2:
        raise UserError(
            f"a class has {fewest} training picture: at least 2 are needed, to train on one and judge the other"
        )
    probabilities = np.empty((len(train), len(plan.packed.meta.classes)))
    for fold in range(folds):
        held_out = np.flatnonzero(places == fold)
        probabilities[held_out] = _judged(plan, train, np.flatnonzero(places != fold), held_out)
        tell(fold + 1)
    ranked = find_label_issues(train.labels, probabilities, return_indices_ranked_by="self_confidence", n_jobs=1)
    classes = plan.packed.meta.classes
    return [
        Suspect(
            index=int(i),
            source=sources[i],
            label=classes[train.labels[i]],
            suggested=classes[probabilities[i].argmax()],
            label_probability=float(probabilities[i, train.labels[i]]),
            suggested_probability=float(probabilities[i].max()),
        )
        for i in ranked
    ]


def _judged(plan: Plan, train: Split, learned: NDArray[np.int64], held_out: NDArray[np.int64]) -> NDArray[np.float64]:
    """Probabilities of the pictures `held_out` by a training on those of `learned`."""
    part = Split(np.array(train.images[learned]), train.labels[learned])
    session = plan.session(plan.train.threads, ALONE, train=part)
    for _ in session.run():
        pass
    trained = Trained(session.result(), [], run_id="")
    model = trained.saved_model(plan.spec(), plan.packed.meta, run_id="")
    logits = logits_of(model.build(), train.images[held_out], batch_size=BATCH, device=torch.device("cpu"))
    return np.exp(log_softmax(logits.astype(np.float64) / model.temperature))


def write(suspects: list[Suspect], images: NDArray[np.uint8], folder: Path) -> None:
    """labels.csv with all, and labels.png with the worst; `images` are the training split's (N×H×W×C)."""
    write_text(folder / "labels.csv", rows_table(Suspect, suspects))
    if drawn := suspects[:DRAWN]:
        captions = [f"is {s.label}\nseems {s.suggested}\n{s.suggested_probability:.1%}" for s in drawn]
        with written_whole(folder / "labels.png") as path:
            grid(images[[s.index for s in drawn]], captions).save(path, format="PNG")

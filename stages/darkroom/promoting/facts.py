"""What the gates look at, as plain values: no gate asks the store, reads a file or runs a model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from darkroom.packed import Meta
from darkroom.promoting.seeds import Answers

STAGES = ("train", "evaluate", "export")
"""The stages that a promoted model must have behind it."""


@dataclass(frozen=True)
class StageRecord:
    """A stage's part in the candidate, as the run tells that its output names."""

    run_id: str
    status: str | None
    """of the run: FINISHED, FAILED, KILLED, RUNNING; None where the store has no such run, or it was deleted"""
    state: str | None = None
    """of the stage in it: finished, failed, killed, running; None where it never ran"""
    diverged: str | None = None
    """step at which the loss was no number any more"""
    dirty: str | None = None
    """"true" where its code was not committed; None where that is not known"""


@dataclass(frozen=True)
class Scored:
    """A model and its scores on the present test split."""

    name: str
    """"the candidate", "version 3" """
    classes: list[str]
    model_sha256: str
    data_sha256: str
    scores: dict[str, float] = field(default_factory=dict)
    """by name: accuracy, macro_f1, nll …; empty where it could not be scored"""
    answers: Answers | None = None
    """to each test picture; None where it could not be scored"""
    num_bytes: int = 0
    """of the ONNX file"""
    problem: str = ""
    """why it could not be scored"""


@dataclass(frozen=True)
class Repeated:
    """The networks that a model's settings gave with other seeds, on the present test split."""

    answers: tuple[Answers, ...] = ()
    problem: str = ""
    """why there are no more of them"""


@dataclass(frozen=True)
class Facts:
    """All that a decision rests on."""

    stages: dict[str, StageRecord]
    """by the names in STAGES"""
    hashes: dict[str, str]
    """`model_sha256` as each of the candidate's files has it"""
    candidate: Scored
    champion: Scored | None
    test: Meta
    """the packed set that both were scored on"""
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """of its test pictures"""
    latency_ms: float | None = None
    """the candidate's, as the export stage measured it; None where it did not"""
    repeated: Repeated = Repeated()
    """the candidate's settings with other seeds"""
    champion_repeated: Repeated = Repeated()

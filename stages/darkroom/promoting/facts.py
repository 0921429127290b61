"""What the gates look at, as plain values: no gate asks the store, reads a file or runs a model."""

from __future__ import annotations

from dataclasses import dataclass, field

from darkroom.packed import Meta

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
    predicted: tuple[int, ...] = ()
    """the class of each test picture; empty where it could not be scored"""
    num_bytes: int = 0
    """of the ONNX file"""
    problem: str = ""
    """why it could not be scored"""


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
    labels: tuple[int, ...] = ()
    """of its test pictures"""
    latency_ms: float | None = None
    """the candidate's, as the export stage measured it; None where it did not"""

"""The model that asks to become champion: the workspace's, or a run's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.errors import UserError
from darkroom.files import missing, read_json
from darkroom.promoting.facts import STAGES, StageRecord

if TYPE_CHECKING:
    from darkroom.tracking.store import Store

MADE_BY = {
    "models/model.pt": "dvc repro train",
    "export/model.onnx": "dvc repro export",
    "metrics/test.json": "dvc repro evaluate",
    "metrics/export.json": "dvc repro export",
}


@dataclass(frozen=True)
class Candidate:
    """The files of one model, and the runs that their own words say they come from."""

    where: str
    """"the workspace", "run 1f0c…" """
    checkpoint: Path
    onnx: Path
    torchscript: Path | None
    """None where `export.formats` leaves it out"""
    run_ids: dict[str, str]
    """for each of STAGES the run that its output names: never the newest run"""
    hashes: dict[str, str]
    """`model_sha256` as each file but the ONNX one has it; empty text where a file has none"""
    latency_ms: float | None = None
    """of the ONNX file with one picture, as metrics/export.json has it"""


def of_workspace(folder: Path) -> Candidate:
    """The model whose files lie in `folder`. Raises UserError with the command that makes what is missing."""
    from darkroom.models import load_model

    for name, made_by in MADE_BY.items():
        if not (folder / name).is_file():
            raise missing(Path(name), made_by)
    saved = load_model(folder / "models/model.pt")
    test, export = (
        read_json(folder / f"metrics/{name}.json", MADE_BY[f"metrics/{name}.json"]) for name in ("test", "export")
    )
    script = folder / "export/model.ts"
    return Candidate(
        where="the workspace",
        checkpoint=folder / "models/model.pt",
        onnx=folder / "export/model.onnx",
        torchscript=script if script.is_file() else None,
        run_ids={"train": saved.run_id, "evaluate": _run_id(test), "export": _run_id(export)},
        hashes={
            "models/model.pt": saved.model_sha256,
            "metrics/test.json": _hash(test),
            "metrics/export.json": _hash(export),
        },
        latency_ms=_latency(export),
    )


def of_run(store: Store, run_id: str) -> Candidate:
    """The model whose files lie in the run. Raises UserError for a run that is not there or lacks them."""
    from darkroom.models import load_model
    from darkroom.tracking.fetching import fetch_file, fetch_model

    uri = f"runs:/{run_id}"
    checkpoint = fetch_model(store, uri).path
    onnx = fetch_model(store, uri, "onnx").path
    test, export = (
        _metrics(fetch_file(store, run_id, f"metrics/{name}.json"), run_id, made_by)
        for name, made_by in (("test", "evaluate"), ("export", "export"))
    )
    saved = load_model(checkpoint, made_by=f"python stages/promote.py --run {run_id}, or choose another run")
    return Candidate(
        where=f"run {run_id}",
        checkpoint=checkpoint,
        onnx=onnx,
        torchscript=fetch_file(store, run_id, "export/model.ts"),
        run_ids=dict.fromkeys(STAGES, run_id),
        hashes={
            "model/model.pt": saved.model_sha256,
            "metrics/test.json": _hash(test),
            "metrics/export.json": _hash(export),
        },
        latency_ms=_latency(export),
    )


def stage_records(store: Store, candidate: Candidate) -> dict[str, StageRecord]:
    """What the store knows of each stage behind the candidate."""
    return {stage: _record(store, stage, run_id) for stage, run_id in candidate.run_ids.items()}


def _record(store: Store, stage: str, run_id: str) -> StageRecord:
    run = store.find(run_id) if run_id else None
    if run is None:
        return StageRecord(run_id, status=None)
    tags = run.data.tags
    known = (tags.get(f"stage.{stage}"), tags.get("darkroom.diverged"), tags.get("git.dirty"))
    return StageRecord(run_id, run.info.status, *known)


def _metrics(path: Path | None, run_id: str, stage: str) -> dict[str, Any]:
    if path is None:
        raise UserError(f"run {run_id} has no numbers of stage {stage}: it did not finish there")
    values = read_json(path, f"python stages/promote.py --run {run_id} again")
    assert isinstance(values, dict)
    return values


def _latency(values: dict[str, Any]) -> float | None:
    found = values.get("onnx", {}).get("latency_ms_batch_1")
    return None if found is None else float(found)


def _run_id(values: dict[str, Any]) -> str:
    return str(values.get("mlflow_run_id") or "")


def _hash(values: dict[str, Any]) -> str:
    return str(values.get("model_sha256") or "")

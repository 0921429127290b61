"""The model that asks to become champion: the workspace's, or a run's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.errors import UserError
from darkroom.files import missing, read_json, sha256_file
from darkroom.promoting.facts import STAGES, StageRecord
from darkroom.tracking.fetching import IN_RUN, Kind, fetch_file, fetch_model

if TYPE_CHECKING:
    from darkroom.models import SavedModel
    from darkroom.tracking.store import Store

DOCUMENTS: tuple[Kind, ...] = ("report", "card")

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
    claimed: dict[str, float] = field(default_factory=dict)
    """scores that metrics/test.json claims; the candidate is scored anew"""
    documents: dict[Kind, Path] = field(default_factory=dict)
    """report and model card; none where they are missing or another model's"""


def of_workspace(folder: Path) -> Candidate:
    """The model whose files lie in `folder`. Raises UserError with the command that makes what is missing or was edited."""
    from darkroom.models import load_model

    for name, made_by in MADE_BY.items():
        if not (folder / name).is_file():
            raise missing(Path(name), made_by)
    saved = load_model(folder / "models/model.pt")
    test, export = (
        read_json(folder / f"metrics/{name}.json", MADE_BY[f"metrics/{name}.json"]) for name in ("test", "export")
    )
    onnx, script = folder / "export/model.onnx", folder / "export/model.ts"
    files = {"onnx": onnx} | ({"torchscript": script} if script.is_file() else {})
    _check_unchanged(files, export, "", "run dvc repro export")
    return Candidate(
        where="the workspace",
        checkpoint=folder / "models/model.pt",
        onnx=onnx,
        torchscript=files.get("torchscript"),
        run_ids={"train": saved.run_id, "evaluate": _run_id(test), "export": _run_id(export)},
        hashes={
            "models/model.pt": saved.model_sha256,
            "metrics/test.json": _hash(test),
            "metrics/export.json": _hash(export),
        },
        latency_ms=_latency(export),
        claimed=_claimed(test),
        documents=_documents({kind: folder / "reports" / Path(IN_RUN[kind]).name for kind in DOCUMENTS}, saved),
    )


def of_run(store: Store, run_id: str) -> Candidate:
    """The model whose files lie in the run. Raises UserError for a run that is not there, lacks them or was edited."""
    from darkroom.models import load_model

    uri = f"runs:/{run_id}"
    checkpoint = fetch_model(store, uri).path
    onnx = fetch_model(store, uri, "onnx").path
    test, export = (
        _metrics(fetch_file(store, run_id, f"metrics/{name}.json"), run_id, made_by)
        for name, made_by in (("test", "evaluate"), ("export", "export"))
    )
    script = fetch_file(store, run_id, "export/model.ts")
    files = {"onnx": onnx} | ({"torchscript": script} if script else {})
    _check_unchanged(files, export, f"run {run_id}: ", "choose another run")
    saved = load_model(checkpoint, made_by=f"python stages/promote.py --run {run_id}, or choose another run")
    return Candidate(
        where=f"run {run_id}",
        checkpoint=checkpoint,
        onnx=onnx,
        torchscript=script,
        run_ids=dict.fromkeys(STAGES, run_id),
        hashes={
            "model/model.pt": saved.model_sha256,
            "metrics/test.json": _hash(test),
            "metrics/export.json": _hash(export),
        },
        latency_ms=_latency(export),
        claimed=_claimed(test),
        documents=_documents({kind: fetch_file(store, run_id, IN_RUN[kind]) for kind in DOCUMENTS}, saved),
    )


def check_claims(store: Store, candidate: Candidate) -> None:
    """Raises UserError where metrics/test.json has other scores than the run that it names: one of both was edited."""
    run_id = candidate.run_ids["evaluate"]
    run = store.find(run_id) if run_id else None
    recorded = run.data.metrics if run else {}
    for name, claimed in candidate.claimed.items():
        known = recorded.get(f"test_{name}", claimed)
        if not math.isclose(known, claimed, rel_tol=1e-9):
            raise UserError(
                f"{candidate.where}: metrics/test.json has {name} {claimed:g}, run {run_id} recorded {known:g}: one of both was "
                "edited; dvc repro evaluate writes the file anew"
            )


def _documents(places: Mapping[Kind, Path | None], saved: SavedModel) -> dict[Kind, Path]:
    found = {kind: path for kind, path in places.items() if path and path.is_file()}
    own = len(found) == len(places) and saved.model_sha256 in found["card"].read_text(
        encoding="utf-8", errors="replace"
    )
    return found if own else {}


def _check_unchanged(files: Mapping[str, Path], export: Mapping[str, Any], where: str, remedy: str) -> None:
    """Raises UserError where a file of those formats is not the one that `export` (metrics/export.json) measured."""
    for name, path in files.items():
        wanted, found = export.get(name, {}).get("sha256"), sha256_file(path)
        if wanted not in (None, found):
            raise UserError(
                f"{where}export/{path.name} was changed after its export (sha256 {found[:12]}, metrics/export.json has "
                f"{wanted[:12]}): {remedy}"
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


def _claimed(values: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if type(value) in (int, float)}


def _run_id(values: dict[str, Any]) -> str:
    return str(values.get("mlflow_run_id") or "")


def _hash(values: dict[str, Any]) -> str:
    return str(values.get("model_sha256") or "")

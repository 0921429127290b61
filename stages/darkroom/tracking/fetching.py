"""Models by their address in the store: `runs:/ID`, `models:/NAME@ALIAS`, `models:/NAME/VERSION`."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlflow.artifacts import download_artifacts
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from darkroom.door import say
from darkroom.errors import UserError
from darkroom.files import sha256_file
from darkroom.tracking.continuing import TRAINED_BY
from darkroom.tracking.environment import environment
from darkroom.tracking.store import Store

Kind = Literal["checkpoint", "onnx", "torchscript", "report", "card"]

IN_RUN: dict[Kind, str] = {
    "checkpoint": "model/model.pt",
    "onnx": "export/model.onnx",
    "torchscript": "export/model.ts",
    "report": "report/report.html",
    "card": "report/model_card.md",
}
"""Where the stages put the files in a run."""
IN_VERSION: dict[Kind, str] = {
    "checkpoint": "checkpoint/model.pt",
    "onnx": "model.onnx",
    "torchscript": "torchscript/model.ts",
    "report": "report/report.html",
    "card": "report/model_card.md",
}
"""Where promotion puts them in a version's model."""
MOST_LOOKED_INTO = 5
"""runs of the same training"""
CHECKPOINT = "checkpoint"
TRAINING = ("finished.pt.sha256", "series.jsonl", "finished.pt")
"""A finished training, as it lies in .checkpoints and below CHECKPOINT in a run; the result last."""


def hash_tag(kind: Kind) -> str:
    """The version's tag with the sha256 of its file as it was promoted."""
    return f"{kind}.sha256"


@dataclass(frozen=True)
class Fetched:
    """A model's file on this machine."""

    path: Path
    description: str
    """where it came from: "darkroom version 3 (champion), run 1f0c…" """
    run_id: str


def is_model_uri(text: str) -> bool:
    return text.startswith(("runs:/", "models:/"))


def fetch_model(store: Store, uri: str, kind: Kind = "checkpoint") -> Fetched:
    """The file that `uri` names, downloaded where it is not on this machine.

    Raises UserError for an address that is none, for a run, version or alias that is not there or has no such file, and
    for a version whose file is not the one that was promoted.
    """
    if run := re.fullmatch(r"runs:/+(?P<id>[\w-]+)/?", uri):
        return _of_run(store, run["id"], kind)
    return _of_version(store, version_of(store, uri), kind)


def version_of(store: Store, uri: str) -> ModelVersion:
    """The version that models:/NAME@ALIAS or models:/NAME/VERSION names. Raises UserError where there is none.

    `latest`, MLflow's own word for the newest, is none: that may be one that no gate has let in.
    """
    if named := re.fullmatch(
        r"models:/+(?P<name>[^/@:]+)(?:@(?P<alias>(?!(?i:latest)/?$)[\w-]+)|/(?P<version>\d+))/?", uri
    ):
        return find_version(store, named["name"], named["alias"], named["version"])
    raise UserError(f"{uri!r} names no model; use runs:/ID, models:/NAME@champion or models:/NAME/VERSION")


def fetch_file(store: Store, run_id: str, name: str) -> Path | None:
    """An artifact of the run, or of the run that trained its model: a continuation leaves artifacts where they are."""
    run = store.find(run_id)
    for owner in (run_id, run.data.tags.get(TRAINED_BY) if run else None):
        if owner and (path := download(store, f"runs:/{owner}/{name}", f"run-{owner}")):
            return path
    return None


def fetch_training(store: Store, fingerprint: str, folder: Path) -> int | None:
    """Brings the finished training of that fingerprint into `folder`, where nothing of it is and a run in the store has it.

    Where none has (`keep_training` puts it there), but one was trained like that: the number of its threads, by which the
    same bits come out again.
    """
    if any(folder.glob("*.pt")) or os.environ.get("DARKROOM_FRESH"):
        return None
    condition = f"tags.`darkroom.fingerprint` = '{fingerprint}' and attributes.status = 'FINISHED'"
    runs = store.search(condition)
    for run in runs[:MOST_LOOKED_INTO]:
        address = f"runs:/{run.info.run_id}/{CHECKPOINT}"
        if all(download(store, f"{address}/{name}", fingerprint) for name in TRAINING):
            for name in TRAINING:
                (store.root / ".downloads/models" / fingerprint / name).replace(folder / name)
            say(f"trained before, on another machine: fetched from run {run.info.run_id}")
            return None
    threads = next((run.data.tags["darkroom.threads"] for run in runs if "darkroom.threads" in run.data.tags), None)
    if threads is None:
        return None
    say(f"trained before on {threads} threads, and not kept: done again on as many (train.threads: N takes others)")
    return int(threads)


def keep_training(store: Store, run_id: str, folder: Path) -> None:
    """Puts the finished training in `folder` into the run, for other machines; nothing where it is not here."""
    if all((folder / name).exists() for name in TRAINING):
        for name in TRAINING:
            store.client.log_artifact(run_id, str(folder / name), CHECKPOINT)


def _of_run(store: Store, run_id: str, kind: Kind) -> Fetched:
    run = store.find(run_id)
    if run is None:
        raise UserError(f"runs:/{run_id}: the store at {store.address.shown} has no such run, or it was deleted")
    path = fetch_file(store, run_id, IN_RUN[kind])
    if path is None:
        raise UserError(f"runs:/{run_id}: the run has no {IN_RUN[kind]}: its stage did not finish")
    return Fetched(path, f"run {run_id} ({run.info.run_name})", run_id)


def _of_version(store: Store, version: ModelVersion, kind: Kind) -> Fetched:
    address = f"models:/{version.name}/{version.version}"
    path = download(store, f"{address}/{IN_VERSION[kind]}", f"{version.name}-{version.version}")
    if path is None:
        raise UserError(f"{address}: the version has no {IN_VERSION[kind]}")
    wanted, found = version.tags.get(hash_tag(kind)), sha256_file(path)
    if wanted not in (None, found):
        path.unlink()
        raise UserError(
            f"{address}: its {IN_VERSION[kind]} is not the one that was promoted (sha256 {found[:12]}, promoted"
            f" {str(wanted)[:12]}): put that file back, or take another version"
        )
    alias = f" ({', '.join(version.aliases)})" if version.aliases else ""
    return Fetched(path, f"{version.name} version {version.version}{alias}, run {version.run_id}", version.run_id or "")


def find_version(store: Store, name: str, alias: str | None, version: str | None) -> ModelVersion:
    """With its aliases. Raises UserError where there is none."""
    try:
        if alias:
            version = store.client.get_model_version_by_alias(name, alias).version
        return store.client.get_model_version(name, str(version))  # this one comes with its aliases
    except MlflowException as error:
        what = f"models:/{name}{f'@{alias}' if alias else f'/{version}'}"
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise UserError(
                f"{what}: the registry at {store.address.shown} has no such model;"
                " python stages/promote.py makes a version and the alias champion"
            ) from None
        raise


def download(store: Store, uri: str, place: str) -> Path | None:
    """The file at `uri` (runs:/ or models:/) as `.downloads/models/<place>/<name>`, or None where there is none."""
    folder = store.root / ".downloads" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    # MLflow looks versions up at the process's address, whatever it is handed
    process = environment({"MLFLOW_TRACKING_URI": store.address.uri})
    with process, tempfile.TemporaryDirectory(dir=folder) as scratch:
        try:
            found = Path(download_artifacts(uri, dst_path=scratch, tracking_uri=store.address.uri))
        except (MlflowException, FileNotFoundError):
            return None
        target = folder / place / found.name
        target.parent.mkdir(exist_ok=True)
        return found.replace(target)

"""Models by their address in the store: `runs:/ID`, `models:/NAME@ALIAS`, `models:/NAME/VERSION`."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlflow.artifacts import download_artifacts
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from darkroom.errors import UserError
from darkroom.tracking.continuing import TRAINED_BY
from darkroom.tracking.environment import environment
from darkroom.tracking.store import Store

Kind = Literal["checkpoint", "onnx", "torchscript"]

IN_RUN: dict[Kind, str] = {
    "checkpoint": "model/model.pt",
    "onnx": "export/model.onnx",
    "torchscript": "export/model.ts",
}
"""Where the stages put the files in a run."""
IN_VERSION: dict[Kind, str] = {
    "checkpoint": "checkpoint/model.pt",
    "onnx": "model.onnx",
    "torchscript": "torchscript/model.ts",
}
"""Where promotion puts them in a version's model."""


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

    Raises UserError for an address that is none, and for a run, version or alias that is not there or has no such file.
    """
    if run := re.fullmatch(r"runs:/+(?P<id>[\w-]+)/?", uri):
        return _of_run(store, run["id"], kind)
    return _of_version(store, version_of(store, uri), kind)


def version_of(store: Store, uri: str) -> ModelVersion:
    """The version that models:/NAME@ALIAS or models:/NAME/VERSION names. Raises UserError where there is none."""
    if named := re.fullmatch(r"models:/+(?P<name>[^/@:]+)(?:@(?P<alias>[\w-]+)|/(?P<version>\d+))/?", uri):
        return find_version(store, named["name"], named["alias"], named["version"])
    raise UserError(f"{uri!r} names no model; use runs:/ID, models:/NAME@champion or models:/NAME/VERSION")


def fetch_file(store: Store, run_id: str, name: str) -> Path | None:
    """An artifact of the run, or of the run that trained its model: a continuation leaves artifacts where they are."""
    run = store.find(run_id)
    for owner in (run_id, run.data.tags.get(TRAINED_BY) if run else None):
        if owner and (path := download(store, f"runs:/{owner}/{name}", f"run-{owner}")):
            return path
    return None


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

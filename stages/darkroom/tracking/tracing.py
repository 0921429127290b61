"""A run's whole story: what it came from, what came of it, and what to type to have it again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from darkroom.errors import UserError
from darkroom.tracking.continuing import TRAINED_BY
from darkroom.tracking.fetching import find_version, is_model_uri, version_of
from darkroom.tracking.store import Store

REUSES = "darkroom.reuses"
FEWEST_LETTERS = 6
"""of a run's id that are enough to name it"""
MOST_NAMED = 10
"""runs of one name that are listed"""
SCORES = ("val_accuracy", "val_loss", "test_accuracy", "test_macro_f1", "test_nll", "test_ece")


@dataclass(frozen=True)
class Trace:
    """A run and its relations."""

    run: Run
    trained_in: Run | None
    """the run whose training this one takes over: continued, or used as it was"""
    parent: Run | None
    """the sweep that it is a trial of"""
    below: list[Run]
    """its trials, where it is a sweep, or the same settings with other seeds"""
    taken_over_by: list[Run]
    """runs that continue it, or use its training"""
    versions: list[ModelVersion]
    """of registered models that were made of it"""
    files: list[str]
    """artifacts, folders with a slash"""

    def values(self) -> dict[str, Any]:
        """As plain values: from the pictures to the alias."""
        run, tags, metrics = self.run, self.run.data.tags, self.run.data.metrics
        data = [each.dataset.name for each in run.inputs.dataset_inputs] if run.inputs else []
        counts = {
            split: int(metrics[key]) for split in ("train", "val", "test") if (key := f"data_num_{split}") in metrics
        }
        return {
            "run": {"id": run.info.run_id, "name": run.info.run_name, "status": run.info.status},
            "stages": {
                key.removeprefix("stage."): state for key, state in sorted(tags.items()) if key.startswith("stage.")
            },
            "data": {"name": (data or [""])[0], "sha256": tags.get("data.sha256", ""), **counts},
            "code": {"commit": tags.get("git.commit", ""), "uncommitted": tags.get("git.dirty") == "true"},
            "experiment": {"name": tags.get("dvc.exp", ""), "baseline": tags.get("dvc.baseline", "")},
            "sweep": _named(self.parent),
            "trained_in": _named(self.trained_in),
            "below": [_named(each) for each in self.below],
            "taken_over_by": [_named(each) for each in self.taken_over_by],
            "model_sha256": tags.get("model.sha256", ""),
            "scores": {name: metrics[name] for name in SCORES if name in metrics},
            "files": self.files,
            "versions": [
                {"name": each.name, "version": str(each.version), "aliases": list(each.aliases)}
                for each in self.versions
            ],
            "again": self._again(),
        }

    def _again(self) -> str:
        """What to type in a fresh clone; a run that took a training over is made again as that one was."""
        trained = self.trained_in or self.run
        return trained.data.tags.get("darkroom.reproduce", "")


def trace(store: Store, what: str) -> Trace:
    """The story of the run that `what` names. Raises UserError where it names none, or several."""
    run = find_run(store, what)
    run_id, tags = run.info.run_id, run.data.tags
    trained, parent = tags.get(TRAINED_BY) or tags.get(REUSES), tags.get(MLFLOW_PARENT_RUN_ID)
    heirs = [each for key in (TRAINED_BY, REUSES) for each in store.search(f"tags.`{key}` = '{run_id}'")]
    return Trace(
        run=run,
        trained_in=store.find(trained) if trained else None,
        parent=store.find(parent) if parent else None,
        below=store.children(run_id),
        taken_over_by=heirs,
        versions=[
            find_version(store, each.name, None, str(each.version))
            for each in store.client.search_model_versions(f"run_id = '{run_id}'")
        ],
        files=[f"{file.path}/" if file.is_dir else file.path for file in store.client.list_artifacts(run_id)],
    )


def find_run(store: Store, what: str) -> Run:
    """By its id or the start of it, by the name of a DVC experiment or a run, or by models:/NAME@ALIAS, models:/NAME/VERSION.

    Raises UserError where there is none, or where several have that name.
    """
    if is_model_uri(what):
        return _of_address(store, what)
    if run := store.find(what):
        return run
    found = store.search(f"tags.`dvc.exp` = '{_quoted(what)}'") or store.search(
        f"attributes.run_name = '{_quoted(what)}'"
    )
    if not found and re.fullmatch(rf"[0-9a-f]{{{FEWEST_LETTERS},31}}", what):
        found = [run for run in store.search("") if run.info.run_id.startswith(what)]
    if not found:
        raise UserError(
            f"{what!r} names no run at {store.address.shown}: give a run's id (mlflow ui, metrics/train.json), a DVC experiment's "
            "name (dvc exp show), or models:/NAME@champion"
        )
    if len(found) > 1:
        named = "\n".join(f"  {run.info.run_id} {run.info.run_name} {run.info.status}" for run in found[:MOST_NAMED])
        raise UserError(f"{what!r} names {len(found)} runs, give the id of one:\n{named}")
    return found[0]


def _of_address(store: Store, address: str) -> Run:
    run_id = (
        address.removeprefix("runs:/").strip("/") if address.startswith("runs:/") else version_of(store, address).run_id
    )
    run = store.find(run_id) if run_id else None
    if run is None:
        raise UserError(
            f"{address}: its run {run_id or ''} is not in the store at {store.address.shown}, or was deleted"
        )
    return run


def _quoted(text: str) -> str:
    return text.replace("'", "''")


def _named(run: Run | None) -> str:
    return f"{run.info.run_id} ({run.info.run_name})" if run else ""

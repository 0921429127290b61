"""What the store no longer needs: folders of artifacts without a run, and which checkpoints runs still name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mlflow.entities import ViewType
from mlflow.exceptions import MlflowException

from darkroom.tracking.store import Store

FINGERPRINT = "darkroom.fingerprint"
RUN_FOLDER, MODEL_FOLDER = re.compile(r"[0-9a-f]{32}"), re.compile(r"m-[0-9a-f]{32}")


def named_fingerprints(store: Store) -> dict[str, set[str]]:
    """Fingerprints of trainings that runs name which are not deleted, in any experiment, with these runs' states."""
    experiments = [each.experiment_id for each in store.client.search_experiments(view_type=ViewType.ALL)]
    found: dict[str, set[str]] = {}
    token: str | None = ""
    while token is not None:
        page = store.client.search_runs(
            experiments, f"tags.`{FINGERPRINT}` LIKE '%'", max_results=1000, page_token=token or None
        )
        for run in page:
            found.setdefault(run.data.tags[FINGERPRINT], set()).add(run.info.status)
        token = page.token or None
    return found


def orphan_artifacts(store: Store) -> Iterator[tuple[Path, str]]:
    """Folders in mlruns/ that belong to a run or a model which is gone or deleted, and why.

    None where the store is not the database of this project: what it does not know may be another's.
    """
    if store.address.file != store.root / "mlflow.db":
        return
    for folder in sorted((store.root / "mlruns").glob("*")):
        if RUN_FOLDER.fullmatch(folder.name) and folder.is_dir() and store.find(folder.name) is None:
            yield folder, "its run was deleted"
    for folder in sorted((store.root / "mlruns" / "models").glob("*")):
        if MODEL_FOLDER.fullmatch(folder.name) and folder.is_dir() and not _model_exists(store, folder.name):
            yield folder, "its model was deleted"


def _model_exists(store: Store, model_id: str) -> bool:
    try:
        store.client.get_logged_model(model_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    return True

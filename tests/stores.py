"""Stores for the tests: a project folder with a database that is ready, and what a test reads back from it."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from darkroom.params import Tracking
from darkroom.tracking import open_store
from darkroom.tracking.lineage import Lineage
from darkroom.tracking.store import Store

STAGES = Path(__file__).resolve().parents[1] / "stages"
NO_LINEAGE: dict[str, Any] = {
    "commit": None, "branch": None, "diff": "", "packages": "numpy==2\n", "experiment": None, "baseline": None
}  # fmt: skip


def tracking(**values: Any) -> Tracking:
    return Tracking(**{"uri": "", "experiment": "darkroom", "log_every": 1, "system_metrics": False, **values})


def lineage(folder: Path, **values: Any) -> Lineage:
    return Lineage(folder, **{**NO_LINEAGE, "commit": "c" * 40, **values})


def project(folder: Path) -> Path:
    """The folder with an empty database: making one takes a second, copying it nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_tables(), folder / "mlflow.db")
    return folder


def store_at(
    folder: Path, *, uri: str = "", experiment: str = "darkroom", experiment_name: str | None = None, **of_lineage: Any
) -> Store:
    """The folder's store, opened; made where there is none. `experiment_name` is the DVC experiment's."""
    if not uri and not (folder / "mlflow.db").exists():
        project(folder)
    return open_store(
        tracking(uri=uri, experiment=experiment), folder, lineage(folder, experiment=experiment_name, **of_lineage)
    )


def program(root: Path, body: str, *, opened: bool = True) -> list[str]:
    """A command that runs `body` in a process of its own as a stage's script would, with `store` open already."""
    start = (
        f"import sys; sys.path[:0] = [{str(STAGES)!r}, {str(Path(__file__).parent)!r}]\n"
        "from pathlib import Path; import os, signal, time\n"
        "from darkroom.door import enter\n"
        "from stores import lineage, tracking\n"
        f"root = Path({str(root)!r})\n"
        "def main():\n"
        "    from darkroom.tracking import open_store\n"
        + ("    store = open_store(tracking(), root, lineage(root))\n" if opened else "")
    )
    return [sys.executable, "-c", start + "".join(f"    {line}\n" for line in body.splitlines()) + "enter(main)\n"]


def points(store: Store, run_id: str, name: str) -> list[tuple[int, float]]:
    """(step, value) of all points that the store has, in order."""
    history = store.client.get_metric_history(run_id, name)
    return sorted((point.step, point.value) for point in history)


def status(store: Store, run_id: str) -> str:
    return str(store.client.get_run(run_id).info.status)


def tags(store: Store, run_id: str) -> dict[str, str]:
    return dict(store.client.get_run(run_id).data.tags)


def files(store: Store, run_id: str) -> set[str]:
    from darkroom.tracking.continuing import artifact_paths

    return set(artifact_paths(store.client, run_id))


def read(store: Store, run_id: str, name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return Path(store.client.download_artifacts(run_id, name, folder)).read_text()


@cache
def _tables() -> Path:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    store = SqlAlchemyStore(f"sqlite:///{folder / 'mlflow.db'}", (folder / "mlruns").as_uri())
    store.engine.dispose()
    return folder / "mlflow.db"

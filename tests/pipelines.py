"""A clone of the working tree in which dvc and mlflow are typed, and what a test reads back from it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ruamel.yaml

from darkroom.params import parse_yaml

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Pipeline:
    """A clone of the working tree in a folder of its own."""

    folder: Path

    def run(self, *command: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs the command in the clone; fails with all that it printed where it ends with another exit code."""
        done = subprocess.run(
            command, cwd=self.folder, env=os.environ | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )  # fmt: skip
        assert done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def set(self, changes: Mapping[str, Any]) -> None:
        """Edits params.yaml: {"train.lr": 0.1}."""
        yaml = ruamel.yaml.YAML()
        values = yaml.load(self.folder / "params.yaml")
        for key, value in changes.items():
            section, name = key.split(".")
            values[section][name] = value
        yaml.dump(values, self.folder / "params.yaml")

    def commit(self, message: str) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--allow-empty", f"--message={message}")


SMALL = {
    "model.width": 8, "model.blocks": [1], "train.epochs": 2, "train.warmup_epochs": 0, "train.threads": 1,
    "train.ema_decay": 0.0, "evaluate.corrupted_images": 50, "export.timing_runs": 2, "export.parity_images": 64,
    "export.int8_max_drop": 0.5,
}  # fmt: skip
"""Seconds instead of a minute; everything is still done once."""


def results() -> set[str]:
    """What the stages write, and dvc.lock with it."""
    stages = parse_yaml((REPOSITORY / "dvc.yaml").read_text())["stages"].values()
    entries = [entry for stage in stages for kind in ("outs", "metrics") for entry in stage.get(kind, [])]
    return {"dvc.lock", *(entry if isinstance(entry, str) else next(iter(entry)) for entry in entries)}


def clone(folder: Path) -> Pipeline:
    """The working tree as git would keep it, committed or not, without results, as a repository of its own."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    written = results()
    for name in filter(None, names.split("\0")):
        path = Path(name)
        if (REPOSITORY / path).is_file() and not {path.as_posix(), *map(Path.as_posix, path.parents)} & written:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / path, folder / path)
    pipeline = Pipeline(folder)
    pipeline.run("git", "init", "--quiet", "--initial-branch=main")
    return pipeline


def client_of(pipeline: Pipeline) -> MlflowClient:
    from mlflow import MlflowClient  # only here: two seconds

    return MlflowClient(f"sqlite:///{pipeline.folder / 'mlflow.db'}")


def all_runs(pipeline: Pipeline) -> list[Run]:
    """Every run of every experiment, the oldest first."""
    client = client_of(pipeline)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments, order_by=["attributes.start_time"]))


def artifacts_of(run: Run) -> set[str]:
    folder = Path(str(run.info.artifact_uri).removeprefix("file://"))
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def series(pipeline: Pipeline, run: Run, name: str) -> list[tuple[int, float]]:
    """A metric's history: (step, value)."""
    return [(metric.step, metric.value) for metric in client_of(pipeline).get_metric_history(run.info.run_id, name)]


def hashes(folder: Path) -> dict[str, str]:
    files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def restore(pipeline: Pipeline) -> None:
    """Everything as it was committed, results too."""
    pipeline.run("git", "checkout", "--quiet", ".")
    pipeline.run("git", "clean", "--quiet", "-d", "--force")
    pipeline.run("dvc", "checkout", "--quiet", "--force")


@contextmanager
def changed(pipeline: Pipeline, **values: Any) -> Iterator[None]:
    """params.yaml with other values (train__lr=0.2), and at the end everything as it was."""
    pipeline.set({name.replace("__", "."): value for name, value in values.items()})
    try:
        yield
    finally:
        restore(pipeline)

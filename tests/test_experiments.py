"""`dvc exp run` in its three ways, counted in MLflow; and what becomes of a training whose `dvc` is killed."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run

from pipelines import Pipeline, all_runs, artifacts_of, changed, restore, series

NEAR, TINY, QUEUED = "near", "tiny", ("queued-a", "queued-b")
VALUES = {NEAR: 5e-4, TINY: 1e-5, QUEUED[0]: 0.021, QUEUED[1]: 0.022}
"""Learning rates that no other test trains with: DVC would take those from its run cache."""


def wait_until(done: Callable[[], object], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"after {seconds} s still no {what}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def experiments(pipeline: Pipeline) -> Iterator[dict[str, Run]]:
    """Four experiments, each run in one of the three ways (the queued ones up to train), and the run of each in MLflow."""
    before = {run.info.run_id for run in all_runs(pipeline)}
    pipeline.run("dvc", "exp", "run", "--name", NEAR, "-S", f"train.lr={VALUES[NEAR]}")
    restore(pipeline)
    for name in QUEUED:
        pipeline.run("dvc", "exp", "run", "--queue", "--name", name, "-S", f"train.lr={VALUES[name]}", "train")
    # its workers keep what it prints to: a pipe would be waited for until they end
    start = ["dvc", "queue", "start", "--jobs", "2"]
    subprocess.run(start, cwd=pipeline.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    pipeline.run("dvc", "exp", "run", "--temp", "--name", TINY, "-S", f"train.lr={VALUES[TINY]}")
    wait_until(lambda: pipeline.run("dvc", "queue", "status").stdout.count("Success") == 2, 300, "end of the queue")
    pipeline.run("dvc", "queue", "stop", "--kill")
    found = [run for run in all_runs(pipeline) if run.info.run_id not in before]
    yield {run.data.tags["dvc.exp"]: run for run in found}
    pipeline.run("dvc", "exp", "remove", "--all-commits")


def test_each_experiment_is_one_finished_run_with_its_own_values(pipeline: Pipeline, experiments: dict[str, Run]):
    assert set(experiments) == set(VALUES)
    head = pipeline.run("git", "rev-parse", "HEAD").stdout.strip()
    for name, run in experiments.items():
        assert run.info.status == "FINISHED"
        assert run.info.run_name == name
        assert float(run.data.params["train.lr"]) == VALUES[name]
        assert run.data.tags["dvc.baseline"] == head
        assert run.data.tags["git.dirty"] == "false", "an experiment's params.yaml is no uncommitted code"
        stages = ("train",) if name in QUEUED else ("train", "evaluate", "export")
        assert {run.data.tags[f"stage.{stage}"] for stage in stages} == {"finished"}
        assert "model/model.pt" in artifacts_of(run)
        assert {"export/model.onnx", "report/report.html"} <= artifacts_of(run) or name in QUEUED
        assert str(run.info.artifact_uri).removeprefix("file://").startswith(str(pipeline.folder / "mlruns"))
        assert len(series(pipeline, run, "train_loss")) == 32
    assert len({run.data.tags["model.sha256"] for run in experiments.values()}) == 4
    databases = list(pipeline.folder.rglob("mlflow.db"))
    assert databases == [pipeline.folder / "mlflow.db"]


def test_dvc_shows_each_experiment_with_its_run(pipeline: Pipeline, experiments: dict[str, Run]):
    shown = rows_of(json.loads(pipeline.run("dvc", "exp", "show", "--json").stdout))
    for name, run in experiments.items():
        metrics = shown[name]["metrics"]
        for stage in ("train",) if name in QUEUED else ("train", "test", "export"):
            assert metrics[f"metrics/{stage}.json"]["data"]["mlflow_run_id"] == run.info.run_id
        assert float(shown[name]["params"]["params.yaml"]["data"]["train"]["lr"]) == VALUES[name]


def rows_of(shown: list[dict[str, Any]]) -> dict[str, Any]:
    """Each experiment's data in what `dvc exp show --json` prints."""
    return {
        revision["name"]: revision["data"]
        for commit in shown
        for experiment in commit["experiments"] or []
        for revision in experiment["revs"][:1]
    }


def test_experiments_are_compared_and_applied(pipeline: Pipeline, experiments: dict[str, Run]):
    compared = json.loads(pipeline.run("dvc", "exp", "diff", "--json", NEAR, TINY).stdout)
    changes = compared["params"]["params.yaml"]["train.lr"]
    assert (float(changes["old"]), float(changes["new"])) == (VALUES[NEAR], VALUES[TINY])
    assert "val_loss" in compared["metrics"]["metrics/train.json"]
    pipeline.run("dvc", "exp", "apply", TINY)
    try:
        assert "lr: 1e-05" in (pipeline.folder / "params.yaml").read_text(), "PyYAML alone would read this as text"
        assert pipeline.json("metrics/train.json")["mlflow_run_id"] == experiments[TINY].info.run_id
        assert "Data and pipelines are up to date." in pipeline.run("dvc", "repro").stdout
    finally:
        restore(pipeline)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("+train.lrr=1", "train.lrr: unknown key; did you mean train.lr?"),
        ("model.init=None", "model.init: 'None' is text; for no earlier model leave it empty ('')"),
    ],
)
def test_a_faulty_change_is_refused_before_anything_runs(pipeline: Pipeline, change: str, said: str):
    runs = len(all_runs(pipeline))
    refused = pipeline.run("dvc", "exp", "run", "--temp", "-S", change, code=255)
    assert said in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stdout + refused.stderr
    assert len(all_runs(pipeline)) == runs


def test_code_that_git_does_not_know_is_named_before_training(pipeline: Pipeline):
    runs = len(all_runs(pipeline))
    room = pipeline.folder / "stages/darkroom/training"
    (room / "mine.py").write_text("LARGER = 2\n")
    with (room / "__init__.py").open("a") as file:
        file.write("\nfrom darkroom.training.mine import LARGER\n")
    try:
        refused = pipeline.run("dvc", "exp", "run", "--temp", code=255)
        assert "stages/darkroom/training/mine.py is not in git" in refused.stdout + refused.stderr
        assert "Traceback" not in refused.stdout + refused.stderr
        assert len(all_runs(pipeline)) == runs
    finally:
        restore(pipeline)


LONG = {"train__epochs": 100, "train__batch_size": 32, "train__lr": 0.07, "model__width": 24, "model__blocks": [1, 1],
        "train__checkpoint_every": 0.5}  # fmt: skip
"""Half a minute of training: long enough to be killed twice."""
STEPS = 100 * 31


def train_process(pipeline: Pipeline) -> int | None:
    """The id of the train stage that works in the clone."""
    import psutil

    for process in psutil.process_iter(["cmdline", "cwd"]):
        if "stages/train.py" in (process.info["cmdline"] or []) and process.info["cwd"] == str(pipeline.folder):
            return int(process.pid)
    return None


def newest(pipeline: Pipeline) -> tuple[str, str]:
    """Id and status of the newest run."""
    with closing(sqlite3.connect(pipeline.folder / "mlflow.db", timeout=30)) as database:
        run, status = database.execute("select run_uuid, status from runs order by start_time desc limit 1").fetchone()
    return run, status


def start_repro(pipeline: Pipeline, runs: int, after_step: int, said: Path) -> subprocess.Popen[bytes]:
    """A `dvc repro` that is in the middle of training: it has kept a checkpoint after `after_step`."""
    with said.open("ab") as file:
        dvc = subprocess.Popen(
            ["dvc", "repro", "train"], cwd=pipeline.folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    wait_until(lambda: last_checkpoint(pipeline) > after_step, 60, "training under way")
    assert len(all_runs(pipeline)) == runs
    return dvc


def last_checkpoint(pipeline: Pipeline) -> int:
    """The step of the newest checkpoint of an unfinished training; 0 where there is none."""
    kept = (pipeline.folder / ".checkpoints").glob("*/step-*.pt")
    return max((int(path.stem.removeprefix("step-")) for path in kept), default=0)


def test_a_training_whose_dvc_is_killed_stops_and_goes_on_in_the_same_run(pipeline: Pipeline, tmp_path: Path):
    before = len(all_runs(pipeline))
    with changed(pipeline, train__epochs=200, train__lr=0.07, train__checkpoint_every=0.2):
        ids = set()
        for number in (signal.SIGKILL, signal.SIGTERM):
            dvc = start_repro(pipeline, before + 1, last_checkpoint(pipeline), tmp_path / "said")
            if number == signal.SIGKILL:
                second = pipeline.run("dvc", "repro", code=255)
                assert "lock" in second.stderr.lower(), "two at once: the second is refused, the first unharmed"
            dvc.send_signal(number)
            dvc.wait()
            wait_until(lambda: train_process(pipeline) is None, 30, "end of the train stage")
            run, status = newest(pipeline)
            assert status == "KILLED", (number, (tmp_path / "said").read_text())
            ids.add(run)
        pipeline.run("dvc", "repro", "train")
        (run,) = all_runs(pipeline)[before:]
        assert ids == {run.info.run_id}
        assert run.info.status == "FINISHED"
        steps = [step for step, _ in series(pipeline, run, "train_loss")]
        assert steps == list(range(1, 200 * 16 + 1)), "nothing lost, nothing twice"
        assert pipeline.json("metrics/train.json")["mlflow_run_id"] == run.info.run_id

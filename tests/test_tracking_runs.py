"""What a run holds, how it ends, and where it says that it came from."""

from __future__ import annotations

import json
import math
import os
import posixpath
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.exceptions import MlflowException
from mlflow.utils.validation import validate_param_and_metric_name

from darkroom.door import Terminated
from darkroom.errors import UserError
from darkroom.tracking import machine
from darkroom.tracking.lineage import gather
from darkroom.tracking.values import metric_name, owned_names, owned_tags, same_value, text_of
from pipelines import Pipeline
from stores import files, lineage, points, program, read, status, store_at, tags, tracking


def test_parameters_arrive_flat_with_one_spelling_and_searchable(tmp_path: Path):
    store = store_at(tmp_path)
    values = {"train.lr": 5e-4, "train.weight_decay": 1e-5, "model.blocks": [1, 2], "augment.flip": False,
              "model.init": "", "train.epochs": 30, "train.momentum": 1.0, "data.name": "Zürich/1"}  # fmt: skip
    with store.start("train", values) as run:
        pass
    assert store.client.get_run(run.run_id).data.params == {
        "train.lr": "0.0005", "train.weight_decay": "1e-05", "model.blocks": "[1, 2]", "augment.flip": "false",
        "model.init": "", "train.epochs": "30", "train.momentum": "1.0", "data.name": "Zürich/1",
    }  # fmt: skip
    assert len(store.client.search_runs([store.experiment_id], "params.`train.lr` = '0.0005'")) == 1


def test_two_thousand_class_names_are_cut_visibly_and_whole_in_the_artifact(tmp_path: Path):
    names = [f"class number {place}" for place in range(2000)]
    content = f"# kept as it is\nevaluate:\n  names: {json.dumps(names)}\n"
    (tmp_path / "params.yaml").write_text(content)
    store = store_at(tmp_path)
    with store.start("train", {"data.names": names}) as run:
        pass
    logged = store.client.get_run(run.run_id).data.params["data.names"]
    assert len(logged) == 6000
    assert logged.endswith("… (cut here; whole in params.yaml)")
    assert read(store, run.run_id, "params.yaml") == content
    with store.start("train", {"data.names": names}, resume=run.run_id) as again:
        assert again.run_id == run.run_id, "a value that was cut is still the same value"


def test_two_hundred_parameters_take_more_than_one_call(tmp_path: Path):
    store = store_at(tmp_path)
    with store.start("train", {f"train.p{place}": place for place in range(250)}) as run:
        pass
    assert len(store.client.get_run(run.run_id).data.params) == 250


def test_the_working_folders_files_and_packages_are_artifacts(tmp_path: Path):
    (tmp_path / "params.yaml").write_text("a: 1\n")
    (tmp_path / "dvc.lock").write_text("schema: '2.0'\n")
    store = store_at(tmp_path, diff="--- a\n+++ b\n")
    with store.start("train", {}) as run:
        run.artifact(tmp_path / "params.yaml", "copies")
        (tmp_path / "plots" / "below").mkdir(parents=True)
        (tmp_path / "plots" / "below" / "x.csv").write_text("1\n")
        run.artifacts(tmp_path / "plots", "plots")
    assert files(store, run.run_id) == {
        "params.yaml", "dvc.lock", "code.diff", "environment.txt", "copies/params.yaml", "plots/below/x.csv"
    }  # fmt: skip
    assert read(store, run.run_id, "code.diff") == "--- a\n+++ b\n"


def test_the_number_shown_is_the_one_logged_last(tmp_path: Path):
    """Also after a series of that name, and when the stage is done again."""
    store = store_at(tmp_path)
    with store.start("train", {}) as run:
        series = run.series(tmp_path / "spool.jsonl")
        for epoch in range(1, 31):
            series.add(epoch, {"val_accuracy": epoch / 100})
        run.metrics({"val_accuracy": 0.25, "epochs": 30})
        run.metrics({"best_val_accuracy": 0.3}, step=17)
    shown = store.client.get_run(run.run_id).data.metrics
    assert (shown["val_accuracy"], shown["epochs"]) == (0.25, 30)
    assert points(store, run.run_id, "best_val_accuracy") == [(17, 0.3)]
    with store.start("train", {}, resume=run.run_id) as again:
        again.metrics({"val_accuracy": 0.2})
    assert store.client.get_run(run.run_id).data.metrics["val_accuracy"] == 0.2


def test_numbers_that_are_no_numbers_are_logged_as_they_are(tmp_path: Path):
    store = store_at(tmp_path)
    with store.start("train", {}) as run:
        run.metrics({"loss": math.nan, "norm": math.inf, "down": -math.inf})
        run.diverged(12)
    found = store.client.get_run(run.run_id).data
    assert math.isnan(found.metrics["loss"])
    assert found.metrics["norm"] > 1e308
    assert found.metrics["down"] < -1e308
    assert found.tags["darkroom.diverged"] == "12"


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_metric_name_is_made_one_that_mlflow_takes(one: str, other: str):
    for name in (f"test_f1/{one}", one or "x"):
        made = metric_name(name)
        assert validate_param_and_metric_name(made), made
        assert posixpath.normpath(made) == made
        assert not made.startswith(("/", ".."))
        assert made != "."
    if one != other:
        assert metric_name(f"f1/{one}") != metric_name(f"f1/{other}")


def test_ordinary_metric_names_stay_as_they_are():
    for name in ("train_loss", "test_f1/T-shirt", "f1/a b", "f1/Zürich", "onnx_latency_ms_batch_1", "a.b"):
        assert metric_name(name) == name
    assert metric_name("f1/C++") == "f1/C-x2b--x2b-"


@given(
    st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.none(), st.lists(st.integers()))
)
def test_a_value_is_the_same_as_its_text(value: object):
    assert same_value(text_of(value), value)


def test_equal_numbers_are_the_same_value_and_text_is_not_a_number():
    assert same_value("1", 1.0)
    assert same_value("1e-05", 0.00001)
    assert not same_value("0.1", 0.2)
    assert not same_value("auto", 1)


def test_which_metrics_a_stage_logged_is_known_however_many():
    names = {f"test_f1/class number {place}" for place in range(2000)}
    kept = owned_tags("evaluate", names)
    assert len(kept) > 1
    assert all(len(text) <= 8000 for text in kept.values())
    assert owned_names("evaluate", kept | owned_tags("export", {"x"})) == names


@pytest.mark.parametrize(
    ("error", "ending", "line"),
    [
        (SystemExit(0), "FINISHED", None),
        (SystemExit(), "FINISHED", None),
        (SystemExit(3), "FAILED", "SystemExit: 3"),
        (Terminated(), "KILLED", "stopped by SIGTERM"),
        (KeyboardInterrupt(), "KILLED", "stopped by Ctrl-C"),
        (UserError("train.lr: too large\nsecond line"), "FAILED", "train.lr: too large"),
        (ZeroDivisionError("by zero"), "FAILED", "ZeroDivisionError: by zero"),
    ],
)
def test_a_run_ends_as_its_stage_did(tmp_path: Path, error: BaseException, ending: str, line: str | None):
    store = store_at(tmp_path)
    with pytest.raises(type(error)), store.start("train", {}) as run:
        raise error
    assert status(store, run.run_id) == ending
    found = tags(store, run.run_id)
    assert found["stage.train"] == ending.lower()
    assert found.get("darkroom.error") == line
    traced = "errors/train.txt" in files(store, run.run_id)
    assert traced == isinstance(error, ZeroDivisionError | SystemExit) if ending == "FAILED" else not traced


def test_a_traceback_of_a_programmers_error_is_kept_and_holds_no_password(tmp_path: Path):
    store = store_at(tmp_path)
    with pytest.raises(ValueError, match="odd"), store.start("train", {}) as run:
        raise ValueError("odd answer from https://ada:s3cret@host/x")
    assert "https://***:***@host/x" in tags(store, run.run_id)["darkroom.error"]
    kept = read(store, run.run_id, "errors/train.txt")
    assert "test_tracking_runs.py" in kept
    assert "s3cret" not in kept


def lost(*_args: Any, **_rest: Any) -> None:
    """Takes the place of a call to a server that is away."""
    raise MlflowException("API request to http://ada:s3cret@host failed\nConnection refused")


@pytest.mark.parametrize("lost_first", ["metrics", "end"])
def test_a_stage_that_loses_its_store_fails_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_first: str):
    store = store_at(tmp_path)
    with pytest.raises(UserError) as told, store.start("evaluate", {}) as run:
        monkeypatch.setattr(type(store.client), "log_batch", lost)
        if lost_first == "metrics":
            run.metrics({"test_accuracy": 0.5})
    assert str(told.value) == (
        f"the end of run {run.run_id} is not in the store at {store.address.shown}: MlflowException: API request to "
        "http://***:***@host failed; when it answers, type the same command: a finished training is not done again"
    )


def test_a_stages_own_error_goes_before_that_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    store = store_at(tmp_path)
    with pytest.raises(UserError, match="^data/packed is missing$"), store.start("evaluate", {}) as run:
        monkeypatch.setattr(type(store.client), "log_batch", lost)
        raise UserError("data/packed is missing")
    assert f"the end of run {run.run_id} is not in the store at" in capsys.readouterr().out


def test_a_later_success_makes_the_run_finished_again(tmp_path: Path):
    store = store_at(tmp_path)
    with pytest.raises(UserError), store.start("train", {}) as run:
        raise UserError("first try")
    with store.start("train", {}, resume=run.run_id) as again:
        assert again.run_id == run.run_id
        assert status(store, run.run_id) == "RUNNING"
    assert status(store, run.run_id) == "FINISHED"
    assert "darkroom.error" not in tags(store, run.run_id)


def test_a_trial_that_is_given_up_ends_as_it_is_told(tmp_path: Path):
    store = store_at(tmp_path)
    with pytest.raises(RuntimeError), store.start("train", {}) as run:
        run.ends("KILLED", "pruned")
        raise RuntimeError("no failure")
    assert status(store, run.run_id) == "KILLED"
    assert tags(store, run.run_id)["darkroom.error"] == "pruned"


def test_a_child_is_shown_below_its_parent(tmp_path: Path):
    store = store_at(tmp_path)
    with (
        store.start("sweep", {}, name="sweep") as parent,
        store.start("train", {}, parent=parent.run_id, name="t 1") as run,
    ):
        pass
    found = store.client.get_run(run.run_id)
    assert found.data.tags["mlflow.parentRunId"] == parent.run_id
    assert found.info.run_name == "t 1"


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_stage_that_is_killed_does_not_stay_running(tmp_path: Path, how: int, code: int):
    store = store_at(tmp_path)
    body = """
with store.start("train", {}) as run:
    (root / "run").write_text(run.run_id)
    time.sleep(60)
"""
    process = subprocess.Popen(program(tmp_path, body))
    deadline = time.monotonic() + 60
    while not (tmp_path / "run").exists() or not (tmp_path / "run").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run_id = (tmp_path / "run").read_text()
    store_at(tmp_path)
    assert status(store, run_id) == "RUNNING", "its process is alive"
    process.send_signal(how)
    assert process.wait(30) == code
    store_at(tmp_path)
    assert status(store, run_id) == "KILLED"
    assert tags(store, run_id)["stage.train"] == "killed"


def test_only_runs_of_this_machine_are_judged(tmp_path: Path):
    store = store_at(tmp_path)
    gone = {machine.HOST: machine.host(), machine.PID: "1", machine.STARTED: "17.00"}
    reused = {machine.HOST: machine.host(), machine.PID: str(os.getpid()), machine.STARTED: "17.00"}
    elsewhere = gone | {machine.HOST: "another"}
    made = [
        store.client.create_run(store.experiment_id, tags=each).info.run_id for each in (gone, reused, elsewhere, {})
    ]
    store.mark_vanished()
    assert [status(store, run_id) for run_id in made] == ["KILLED", "KILLED", "RUNNING", "RUNNING"]


def test_the_dataset_is_mlflows_own(tmp_path: Path):
    store = store_at(tmp_path)
    with store.start("train", {}) as run:
        run.dataset(name="digits", sha256="d" * 64, source="data/raw", counts={"train": 970, "val": 108})
    found = store.client.get_run(run.run_id).inputs.dataset_inputs
    assert [(each.dataset.name, each.dataset.digest) for each in found] == [("digits", "d" * 32)]
    assert json.loads(found[0].dataset.profile)["num_images"] == {"train": 970, "val": 108}


def test_system_metrics_are_recorded_and_their_thread_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import threading

    from darkroom.tracking import open_store, system

    monkeypatch.setattr(system, "SAMPLE_SECONDS", 0.1)
    store_at(tmp_path)
    store = open_store(tracking(system_metrics=True), tmp_path, lineage(tmp_path))
    with store.start("train", {}) as run:
        deadline = time.monotonic() + 20
        while "system/cpu_utilization_percentage" not in store.client.get_run(run.run_id).data.metrics:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert "SystemMetricsMonitor" not in {thread.name for thread in threading.enumerate()}
    assert status(store, run.run_id) == "FINISHED"


def test_the_last_lines_lead_to_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = store_at(tmp_path / "a project")
    page = f"http://127.0.0.1:5000/#/experiments/{store.experiment_id}/runs"
    monkeypatch.chdir(tmp_path / "a project")
    assert store.farewell("abc").splitlines() == ["mlflow ui", f"  run:  {page}/abc", f"  runs: {page}"]
    monkeypatch.chdir(tmp_path)
    assert store.farewell("abc").splitlines()[0] == (
        f"mlflow ui --backend-store-uri 'sqlite:///{tmp_path}/a project/mlflow.db'"
    )


@pytest.fixture
def repository(tmp_path: Path) -> Pipeline:
    """A little project under git, committed."""
    place = Pipeline(tmp_path)
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "train.py").write_text("one = 1\n")
    for name in ("dvc.yaml", "requirements.lock", "pyproject.toml", "params.yaml"):
        (tmp_path / name).write_text("a: 1\n")
    place.run("git", "init", "--quiet", "--initial-branch=main")
    place.commit("First")
    return place


def test_a_clean_commit_is_named(repository: Pipeline):
    head = repository.run("git", "rev-parse", "HEAD").stdout.strip()
    found = gather(repository.folder)
    assert (found.commit, found.branch, found.dirty, found.diff) == (head, "main", False, "")
    assert found.tags()["git.dirty"] == "false"
    assert found.tags()["git.commit"] == found.tags()["mlflow.source.git.commit"] == head
    assert "numpy==" in found.packages


def test_parameters_and_the_lock_are_no_code(repository: Pipeline):
    (repository.folder / "params.yaml").write_text("a: 2\n")
    (repository.folder / "dvc.lock").write_text("schema: '2.0'\n")
    (repository.folder / "notes.txt").write_text("mine\n")
    assert not gather(repository.folder).dirty


@pytest.mark.parametrize(
    "name", ["stages/train.py", "dvc.yaml", "requirements.lock", "pyproject.toml", "stages/new/room.py"]
)
def test_uncommitted_code_is_dirty_and_its_diff_makes_it_again(
    repository: Pipeline, tmp_path_factory: pytest.TempPathFactory, name: str
):
    changed = repository.folder / name
    changed.parent.mkdir(exist_ok=True)
    changed.write_text("two = 2\nthree = 'ü'\n")
    staged = repository.run("git", "status", "--porcelain").stdout
    found = gather(repository.folder)
    assert found.dirty
    assert repository.run("git", "status", "--porcelain").stdout == staged, "the user's index stays as it is"
    other = Pipeline(tmp_path_factory.mktemp("other") / "clone")
    subprocess.run(["git", "clone", "--quiet", str(repository.folder), str(other.folder)], check=True)
    (other.folder / "code.diff").write_text(found.diff)
    other.run("git", "apply", "code.diff")
    assert (other.folder / name).read_text() == "two = 2\nthree = 'ü'\n"


def test_a_folder_without_git_has_runs_without_a_commit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = store_at(tmp_path, commit=None)
    assert gather(tmp_path).commit is None
    with store.start("train", {}) as run:
        pass
    assert status(store, run.run_id) == "FINISHED"
    assert not {"git.commit", "git.dirty"} & tags(store, run.run_id).keys()
    assert "no git repository" in capsys.readouterr().out


def test_a_dvc_experiment_names_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DVC_EXP_NAME", "tidy-owl")
    monkeypatch.setenv("DVC_EXP_BASELINE_REV", "b" * 40)
    found = gather(tmp_path)
    store = replace(store_at(tmp_path), lineage=found)
    with store.start("train", {}) as run:
        pass
    assert store.client.get_run(run.run_id).info.run_name == "tidy-owl"
    assert tags(store, run.run_id)["dvc.exp"] == "tidy-owl"
    assert tags(store, run.run_id)["dvc.baseline"] == "b" * 40


def test_the_room_is_imported_without_mlflow():
    code = "import sys; sys.path.insert(0, 'stages'); import darkroom.tracking; print('mlflow' in sys.modules)"
    folder = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_command_that_makes_a_run_again_names_what_differs_from_its_commit(tmp_path: Path) -> None:
    other = Pipeline(tmp_path)
    other.run("git", "init", "--quiet")
    (tmp_path / "params.yaml").write_text("train:\n  lr: 0.1\n  debug: []\n  threads: auto\nmodel:\n  init: ''\n")
    other.commit("As cloned")
    found = replace(gather(tmp_path), diff="")
    head = f"git checkout {found.commit} && "
    assert found.command({}) == f"{head}dvc exp run"
    quoted = shlex.quote("model.init='runs:/a b'")
    values = {"train.lr": 5e-5, "train.debug": ["profile"], "train.threads": 2, "model.init": "runs:/a b"}
    assert found.command(values) == (
        f"{head}dvc exp run -S {quoted} -S 'train.debug=[profile]' -S train.lr=5.0e-05 -S train.threads=2"
    )
    (tmp_path / "params.yaml").write_text("train:\n  lr: 0.2\n")
    assert found.command({}) == f"{head}dvc exp run -S train.lr=0.2"
    assert replace(found, diff="--- a\n").command({}).startswith(f"{head}git apply code.diff && dvc exp run")
    assert replace(found, commit=None).command({}) == ""
    (tmp_path / "params.yaml").write_text("<<<<<<< conflict")
    other.commit("Broken")
    (tmp_path / "params.yaml").write_text("train:\n  lr: 0.2\n")
    assert gather(tmp_path).command({}).endswith("dvc exp run -S train.lr=0.2")


def test_a_repeat_that_fails_before_it_records_leaves_the_finished_run_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """DVC may restore what the stage left before, and then runs nothing that could heal the run."""
    store = store_at(tmp_path)
    with store.start("train", {"train.lr": 0.1}) as run:
        run.tags({"model.sha256": "a"})

    def evaluate(**numbers: float) -> None:
        with store.join("evaluate", {"evaluate.mistakes": 25}, run_id=run.run_id, model_sha256="a") as joined:
            joined.metrics(numbers)
            if numbers.get("test_accuracy") != 0.9:
                raise UserError("evaluate.against: bad.csv is no table of predictions")

    evaluate(test_accuracy=0.9)
    with pytest.raises(UserError, match=r"bad\.csv"):
        evaluate()
    found = tags(store, run.run_id)
    assert (status(store, run.run_id), found["stage.evaluate"]) == ("FINISHED", "finished")
    assert "bad.csv" in found["darkroom.failed_again"]
    assert "stays FINISHED" in capfd.readouterr().out
    with pytest.raises(UserError, match=r"bad\.csv"):
        evaluate(test_accuracy=0.8)  # other numbers are in the run now: it must not pass for the earlier one
    assert (status(store, run.run_id), tags(store, run.run_id)["stage.evaluate"]) == ("FAILED", "failed")

"""Opening the store: made once whoever else starts, and every way in which it cannot be used said in a line."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from darkroom.errors import UserError
from darkroom.tracking import open_store
from stores import lineage, points, program, project, read, status, store_at, tracking

EIGHT = """
import mlflow, darkroom.tracking.opening
children = []
for number in range(8):
    child = os.fork()
    if child == 0:
        store = open_store(tracking(), root, lineage(root))
        with store.start("train", {"train.seed": number}) as run:
            series = run.series(root / f"{number}.jsonl")
            for step in range(50):
                series.add(step, {"train_loss": float(step)})
        os._exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
"""


def test_eight_processes_on_no_database_make_one_and_all_finish(tmp_path: Path):
    subprocess.run(program(tmp_path, EIGHT, opened=False), check=True)
    store = store_at(tmp_path)
    assert sorted(experiment.name for experiment in store.client.search_experiments()) == ["Default", "darkroom"]
    runs = store.client.search_runs([store.experiment_id])
    assert sorted(run.data.params["train.seed"] for run in runs) == [str(number) for number in range(8)]
    for run in runs:
        assert run.info.status == "FINISHED"
        assert len(points(store, run.info.run_id, "train_loss")) == 50


KILLED_WHILE_WRITING = """
import sqlite3
database = sqlite3.connect(root / "mlflow.db", isolation_level=None)
database.execute("pragma cache_size = 1")  # so that pages reach the file before the commit
database.execute("begin")
for number in range(2000):
    database.execute("insert into tags values (?, ?, ?)", (f"half {number}", "x" * 200, run))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_was_killed_in_a_transaction_leaves_a_database_that_opens(tmp_path: Path):
    store = store_at(tmp_path)
    with store.start("train", {}) as run:
        pass
    body = f"run = {run.run_id!r}\n{KILLED_WHILE_WRITING}"
    assert subprocess.run(program(tmp_path, body, opened=False)).returncode == -signal.SIGKILL
    assert (tmp_path / "mlflow.db-journal").stat().st_size > 0
    found = store_at(tmp_path).client.get_run(run.run_id)
    assert found.info.status == "FINISHED"
    assert not [name for name in found.data.tags if name.startswith("half")]
    assert not (tmp_path / "mlflow.db-journal").exists()


def test_artifacts_lie_below_the_root_whatever_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root, copy = tmp_path / "a project", tmp_path / "copy"
    copy.mkdir()
    root.mkdir()
    monkeypatch.chdir(copy)
    store = open_store(tracking(), root, lineage(copy))
    with store.start("train", {}) as run:
        run.text("hello", "note.txt")
    assert (root / "mlruns" / run.run_id / "artifacts" / "note.txt").read_text() == "hello"
    assert read(store, run.run_id, "note.txt") == "hello"
    assert list(copy.iterdir()) == []
    experiments = store.client.search_experiments()
    assert all(experiment.artifact_location.startswith((root / "mlruns").as_uri()) for experiment in experiments)


def test_a_relative_sqlite_address_is_below_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = project(tmp_path / "root")
    (root / "mlflow.db").rename(root / "own.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///own.db")
    store = open_store(tracking(), root, lineage(root))
    with store.start("train", {}) as run:
        pass
    assert status(store, run.run_id) == "FINISHED"
    assert not (tmp_path / "own.db").exists()
    assert not (root / "mlflow.db").exists()


def test_a_deleted_experiment_says_how_it_comes_back(tmp_path: Path):
    store = store_at(tmp_path)
    store.client.delete_experiment(store.experiment_id)
    with pytest.raises(UserError, match=rf"mlflow experiments restore -x {store.experiment_id}"):
        store_at(tmp_path)
    environment = os.environ | {"MLFLOW_TRACKING_URI": store.address.uri}
    command = ["mlflow", "experiments", "restore", "-x", store.experiment_id]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert store_at(tmp_path).experiment_id == store.experiment_id


def test_an_old_store_of_files_is_left_alone_and_its_migration_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    _old_store(tmp_path)
    with store_at(tmp_path).start("train", {}) as run:
        pass
    store = store_at(tmp_path)
    assert status(store, run.run_id) == "FINISHED"
    told = next(line for line in capsys.readouterr().out.splitlines() if "migrate-filestore" in line)
    command = told.partition("To see the old ones: ")[2].partition(", then")[0]
    subprocess.run(command.split(), check=True, capture_output=True, cwd=tmp_path)
    with closing(sqlite3.connect(tmp_path / "mlflow.db.old")) as database:
        assert database.execute("select name from experiments").fetchall() == [("Default",)]
    assert status(store_at(tmp_path), run.run_id) == "FINISHED"
    assert "migrate-filestore" not in capsys.readouterr().out
    assert "--backend-store-uri" in store.farewell(run.run_id), "a bare mlflow ui would look into the files"


def _old_store(folder: Path) -> None:
    (folder / "mlruns" / "0").mkdir(parents=True)
    (folder / "mlruns" / "0" / "meta.yaml").write_text(
        f"artifact_location: {(folder / 'mlruns' / '0').as_uri()}\nexperiment_id: '0'\nlifecycle_stage: active\n"
        "name: Default\ncreation_time: 1\nlast_update_time: 1\n"
    )


def test_a_project_that_was_moved_finds_its_artifacts_and_writes_no_more_to_the_old_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    old, new = tmp_path / "old place", tmp_path / "new place"
    store = store_at(old)
    with store.start("train", {}) as run:
        run.text("hello", "note.txt")
    other = store_at(old, experiment="other")
    with other.start("train", {}) as second:
        second.text("there", "note.txt")
    shutil.copytree(old, new)
    moved = store_at(new)
    told = capsys.readouterr().out
    assert told.count("\n") == 1
    assert str(old) in told
    (old / "mlruns").rename(tmp_path / "gone")
    assert read(moved, run.run_id, "note.txt") == "hello"
    assert read(moved, second.run_id, "note.txt") == "there"
    with moved.start("train", {}) as again:
        again.text("new", "note.txt")
    assert (new / "mlruns" / again.run_id / "artifacts" / "note.txt").exists()
    assert not (old / "mlruns").exists()
    store_at(new, experiment="other")
    assert capsys.readouterr().out == ""


def _break_schema(folder: Path, revision: str) -> None:
    with closing(sqlite3.connect(project(folder) / "mlflow.db")) as database, database:
        database.execute("update alembic_version set version_num = ?", (revision,))


def test_an_older_database_names_the_upgrade(tmp_path: Path):
    _break_schema(tmp_path, "451aebb31d03")
    with pytest.raises(
        UserError, match=r"older MLflow: copy it somewhere safe, then mlflow db upgrade sqlite:///"
    ) as told:
        store_at(tmp_path)
    assert "\n" not in str(told.value)


def test_a_newer_database_names_the_newer_mlflow(tmp_path: Path):
    _break_schema(tmp_path, "ffffffffffff")
    with pytest.raises(UserError, match="made by a newer MLflow"):
        store_at(tmp_path)


@pytest.mark.parametrize("content", [b"no database", b"\0" * 5000])
def test_a_file_that_is_no_database_is_told_at_once(tmp_path: Path, content: bytes):
    (tmp_path / "mlflow.db").write_bytes(content)
    start = time.monotonic()
    with pytest.raises(UserError, match="no database that can be opened"):
        store_at(tmp_path)
    assert time.monotonic() - start < 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable_is_told(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="not writable"):
        open_store(tracking(), tmp_path, lineage(tmp_path))


def test_something_else_that_answers_http_is_told(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with pytest.raises(UserError, match="no MLflow server answers"):
            store_at(tmp_path, uri=f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - start < 10


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = project(tmp_path / "server")
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1",
               "--backend-store-uri", f"sqlite:///{place / 'mlflow.db'}",
               "--artifacts-destination", str(place / "artifacts")]  # fmt: skip
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = subprocess.Popen(command, cwd=place, env=environment, start_new_session=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def test_a_server_gets_the_whole_run(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.replace("//", "//ada:s3cret@"))
    work = tmp_path / "work"
    work.mkdir()
    (work / "params.yaml").write_text("train:\n  lr: 0.1\n")
    store = open_store(tracking(), work, lineage(work))
    with store.start("train", {"train.lr": 0.1, "data.source": ""}, tags={"model.sha256": "m"}) as run:
        series = run.series(work / "spool.jsonl")
        for step in range(100):
            series.add(step, {"train_loss": float(step)})
        run.metrics({"val_accuracy": 0.9, "odd": float("nan")})
        run.artifact(work / "params.yaml", "there")
        run.dataset(name="digits", sha256="d" * 64, source="data/raw", counts={"train": 9})
    with store.join("evaluate", {"evaluate.batch_size": 2}, run_id=run.run_id, model_sha256="m") as joined:
        joined.metrics({"test_accuracy": 0.8})
    assert joined.run_id == run.run_id
    assert points(store, run.run_id, "train_loss") == [(step, float(step)) for step in range(100)]
    assert read(store, run.run_id, "there/params.yaml") == "train:\n  lr: 0.1\n"
    found = store.client.get_run(run.run_id)
    assert found.data.params == {"train.lr": "0.1", "data.source": "", "evaluate.batch_size": "2"}
    assert found.info.status == "FINISHED"
    assert not (work / "mlflow.db").exists()
    assert not (work / "mlruns").exists()
    printed = capfd.readouterr()
    assert "s3cret" not in printed.out + printed.err + store.farewell(run.run_id) + repr(found.data)
    page = f"{server}/#/experiments/{store.experiment_id}/runs"
    assert store.farewell(run.run_id).splitlines() == ["recorded:", f"  run:  {page}/{run.run_id}", f"  runs: {page}"]


def test_nobody_is_called_home_and_no_pickle_is_loaded():
    program = (
        "import sys; sys.path.insert(0, 'stages'); import darkroom.tracking; early = 'mlflow' in sys.modules;"
        "from mlflow.environment_variables import MLFLOW_ALLOW_PICKLE_DESERIALIZATION as pickle;"
        "from mlflow.telemetry import get_telemetry_client; print(early, get_telemetry_client(), bool(pickle.get()))"
    )
    environment = {key: value for key, value in os.environ.items() if "TELEMETRY" not in key and "PICKLE" not in key}
    environment.pop("DO_NOT_TRACK", None)
    environment.pop("PYTEST_CURRENT_TEST", None)
    environment.pop("CI", None)
    folder = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "None", "False"], "mlflow loaded early, its telemetry, its pickles"

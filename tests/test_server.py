"""The whole pipeline against a server as a team has one: with a password, runs in PostgreSQL, files in S3."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from darkroom.errors import UserError
from darkroom.tracking import series as series_module
from darkroom.tracking.spool import read_points
from darkroom.tracking.store import Store
from darkroom.tracking.values import metric_name
from pipelines import REPOSITORY, SMALL, Pipeline, clone
from servers import (
    RUNS,
    USERS,
    Servers,
    TrackingServer,
    free_port,
    listens,
    postgres_programs,
    servers,
    tracking_server,
)
from stores import points, status, store_at

USER, PASSWORD = "ada", f"l0ve: 'lace' /100% @{secrets.token_hex(4)}"
EPOCHS = 120
"""long enough for the server to be killed in the middle"""
HASTY = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0"}


@dataclass
class Site:
    """A project, its server, which can be killed and come back, and all that was said."""

    stores: Servers
    project: Pipeline
    port: int = field(default_factory=free_port)
    said: list[str] = field(default_factory=list)
    running: ExitStack = field(default_factory=ExitStack)
    server: TrackingServer | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(self.address, self.address)

    @property
    def run_id(self) -> str:
        return str(self.project.json("metrics/train.json")["mlflow_run_id"])

    def start(self) -> None:
        self.server = self.running.enter_context(tracking_server(self.stores, USER, PASSWORD, self.port))

    def kill(self) -> None:
        assert self.server is not None
        os.killpg(self.server.group, signal.SIGKILL)
        self.running.close()

    def together(self, *commands: list[str], **environment: str) -> list[subprocess.CompletedProcess[str]]:
        """Runs the commands side by side in the project, or in the folder that one begins with."""
        started = []
        for first, *rest in commands:
            folder, command = (first, rest) if Path(first).is_dir() else (self.project.folder, [first, *rest])
            started.append(subprocess.Popen(
                command, cwd=folder, env={**os.environ, **environment}, text=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            ))  # fmt: skip
        done = []
        for process in started:
            out, err = process.communicate(timeout=120)
            self.said += [out, err]
            done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
        return done

    def spool(self) -> Path | None:
        return next(self.project.folder.glob(".checkpoints/*/series.jsonl"), None)

    def num_points(self) -> int:
        spool = self.spool()
        return spool.read_bytes().count(b"\n") if spool else 0


def wait_for(happened: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def postgresql() -> None:
    try:
        postgres_programs()
    except UserError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def empty_site(postgresql: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server without a run, and a project with its pictures packed."""
    with servers() as stores, pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(1) as pool:
        site = Site(stores, Pipeline(tmp_path_factory.mktemp("team") / "project"))
        with site.running:
            starting = pool.submit(site.start)
            clone(site.project.folder)
            site.project.set(SMALL | {"train.epochs": EPOCHS})
            site.project.commit("As cloned")
            site.project.run("dvc", "repro", "prepare")
            starting.result()
            assert site.server is not None
            for name, value in site.server.environment().items():
                patched.setenv(name, value)
            yield site


@pytest.fixture(scope="module")
def outage(empty_site: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """`dvc repro`, with the server killed in mid-training and back a while later; what was seen meanwhile.

    While it is away, stages of other projects end.
    """
    site, seen = empty_site, dict[str, Any]()
    others = [Other.begin(tmp_path_factory.mktemp(name), fails=name == "fails") for name in ("ends", "fails")]
    output = site.project.folder.parent / "repro.log"
    with output.open("w") as file:
        repro = subprocess.Popen(["dvc", "repro"], cwd=site.project.folder, stdout=file, stderr=file)
        wait_for(lambda: site.num_points() > 20)
        site.kill()
        seen["before"] = site.num_points()
        seen["others"] = [(other.store.root, other.end()) for other in others]
        wait_for(lambda: "slow or away" in output.read_text())
        seen["after"] = site.num_points()
        site.start()
        seen["code"] = repro.wait(120)
    seen["output"] = output.read_text()
    site.said.append(seen["output"])
    return seen


@pytest.fixture
def site(empty_site: Site, outage: dict[str, Any]) -> Site:
    """With the pipeline recorded."""
    return empty_site


@dataclass
class Other:
    """A stage of another project, at work when the server is killed."""

    store: Store
    run: Any
    fails: bool

    @classmethod
    def begin(cls, folder: Path, *, fails: bool) -> Other:
        store = store_at(folder, uri=os.environ["MLFLOW_TRACKING_URI"], experiment="other")
        run = store.start("train", {"train.lr": 0.1})
        run.__enter__()
        curve = run.series(folder / "series.jsonl")
        for step in range(50):
            curve.add(step, {"train_loss": 1 / (step + 1)})
        return cls(store, run, fails)

    def end(self) -> str:
        """What the user is told."""
        with pytest.MonkeyPatch.context() as patched, pytest.raises(UserError) as told:
            patched.setattr(series_module, "CLOSE_SECONDS", 0.5)
            for name, value in HASTY.items():
                patched.setenv(name, value)
            try:
                if self.fails:
                    self.run.metrics({"val_accuracy": 0.5})
            except MlflowException as error:
                self.run.__exit__(type(error), error, error.__traceback__)
            else:
                self.run.__exit__(None, None, None)
        return str(told.value)


def test_training_goes_on_while_the_server_is_away_and_no_step_is_lost(site: Site, outage: dict[str, Any]):
    assert outage["code"] == 0, outage["output"]
    assert outage["after"] > outage["before"] + 100, "steps go on"
    assert outage["output"].count("slow or away") == 1
    assert "Traceback" not in outage["output"]
    spool = site.spool()
    assert spool is not None
    kept: dict[str, list[tuple[int, float, int]]] = {}
    for point in read_points(spool):
        for key, number in point.numbers.items():
            kept.setdefault(metric_name(key), []).append((point.step, number, point.when))
    assert len(kept["train_loss"]) > 1000
    for name, expected in kept.items():
        history = site.client.get_metric_history(site.run_id, name)
        found = sorted((metric.step, metric.value, metric.timestamp) for metric in history)
        logged_again = len(found) - len(expected)
        assert logged_again in (0, 1), f"{name}: the result stands at the last step too"
        assert set(expected) <= set(found), name


def test_a_stage_that_ends_while_the_server_is_away_fails_in_a_line_and_its_next_try_records_all(
    site: Site, outage: dict[str, Any]
):
    assert len(outage["others"]) == 2
    for root, told in outage["others"]:
        assert told.startswith("the end of run "), told
        assert f"is not in the store at {site.address}: MlflowException: API request" in told
        assert told.endswith("; when it answers, type the same command: a finished training is not done again")
        assert "\n" not in told
        run_id = told.split()[4]
        store = store_at(root, uri=site.address, experiment="other")
        assert status(store, run_id) == "RUNNING"
        with store.start("train", {"train.lr": 0.1}, resume=run_id) as run:
            assert run.run_id == run_id
            run.series(root / "series.jsonl")
        assert status(store, run_id) == "FINISHED"
        assert points(store, run_id, "train_loss") == [(step, 1 / (step + 1)) for step in range(50)]


def test_the_one_run_holds_everything_and_its_files_are_in_the_bucket(site: Site):
    client = site.client
    experiment = client.get_experiment_by_name("darkroom")
    assert experiment is not None
    assert experiment.artifact_location.startswith("mlflow-artifacts:/")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id, run.info.status) == (site.run_id, "FINISHED")
    stages = {key: value for key, value in run.data.tags.items() if key.startswith("stage.")}
    assert stages == {f"stage.{name}": "finished" for name in ("train", "evaluate", "export", "report")}
    assert {key.split(".")[0] for key in run.data.params} >= {"augment", "data", "evaluate", "export", "model", "train"}
    assert run.data.params["train.epochs"] == str(EPOCHS)
    assert run.data.metrics["test_accuracy"] == site.project.json("metrics/test.json")["accuracy"]
    kept = {item.key.split("artifacts/", 1)[1]: item.size for item in site.stores.bucket().objects.filter(
        Prefix=f"{experiment.experiment_id}/{site.run_id}/"
    )}  # fmt: skip
    sent = {"model": "models/model.pt", "export": "export/model.onnx", "metrics": "metrics/test.json",
            "": "params.yaml", "report": "reports/report.html"}  # fmt: skip
    for place, name in sent.items():
        path = site.project.folder / name
        assert kept[f"{place}/{path.name}".strip("/")] == path.stat().st_size
    assert not (site.project.folder / "mlflow.db").exists()
    assert not (site.project.folder / "mlruns").exists()


def test_two_promotions_at_once_make_one_champion_which_serves(site: Site, tmp_path: Path):
    """From two folders, as two machines: no lock holds one back while the other promotes."""
    other = tmp_path / "project"
    shutil.copytree(site.project.folder, other, symlinks=True)
    done = site.together(["python", "stages/promote.py"], [str(other), "python", "stages/promote.py"])
    client = site.client
    decisions = [json.loads(text) for key, text in sorted(client.get_registered_model("darkroom").tags.items())
                 if key.startswith("darkroom.decision.")]  # fmt: skip
    assert len(decisions) == 2, [each.stderr for each in done]
    won = [each for each in decisions if each["result"].startswith("promoted as darkroom version")]
    assert sorted(each.returncode for each in done) == sorted(0 if each in won else 1 for each in decisions)
    assert won
    assert all("Traceback" not in each.stderr for each in done)
    champion = client.get_model_version_by_alias("darkroom", "champion")
    assert champion.version in {each["version"] for each in won}
    assert champion.run_id == site.run_id

    picture = next((site.project.folder / "plots/data").glob("*.png"))
    load = (
        "import json, mlflow, numpy; model = mlflow.pyfunc.load_model('models:/darkroom@champion');"
        "print(json.dumps(model.predict(numpy.zeros((2, 1, 8, 8), 'uint8'))['probabilities'].tolist()))"
    )
    shown, predicted, loaded = site.together(
        ["python", "stages/runs.py", "show", "models:/darkroom@champion", "--format", "json"],
        ["python", "stages/predict.py", str(picture), "--model", "models:/darkroom@champion", "--format", "json"],
        [str(tmp_path), sys.executable, "-c", load],
    )
    story = json.loads(shown.stdout)
    assert (story["run"]["id"], story["run"]["status"]) == (site.run_id, "FINISHED")
    assert "champion" in [alias for version in story["versions"] for alias in version["aliases"]]
    assert json.loads(predicted.stdout)[0]["path"] == str(picture)
    probabilities = json.loads(loaded.stdout)
    assert [len(row) for row in probabilities] == [10, 10]
    assert [sum(row) for row in probabilities] == pytest.approx([1, 1])


def test_a_wrong_password_or_none_is_told_in_a_line_before_anything_is_trained(site: Site):
    train, variable = ["python", "stages/train.py"], "MLFLOW_TRACKING_PASSWORD"
    experiments = [experiment.experiment_id for experiment in site.client.search_experiments()]
    before = len(site.client.search_runs(experiments))
    done = site.together(
        ["env", f"{variable}=wrong", *train], ["env", "-u", "MLFLOW_TRACKING_USERNAME", "-u", variable, *train]
    )
    for each in done:
        assert (each.returncode, each.stdout) == (1, "")
        assert each.stderr.strip() == (
            f"error: {site.address}: the server refuses this user; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
    assert len(site.client.search_runs(experiments)) == before


@pytest.mark.usefixtures("postgresql")
def test_a_program_that_is_killed_leaves_no_server_and_no_folder():
    program = (
        "import time; from servers import servers\n"
        "with servers() as stores:\n"
        "    print(stores.folder, stores.s3_port, stores.database_port, flush=True); time.sleep(60)"
    )
    paths = os.pathsep.join([str(REPOSITORY / "stages"), str(REPOSITORY / "tests")])
    with subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder, *ports = process.stdout.readline().split()
        assert all(listens(int(port)) for port in ports)
        process.kill()
    wait_for(lambda: not Path(folder).exists(), 20)
    assert not any(listens(int(port)) for port in ports)


def test_a_missing_postgresql_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("servers.POSTGRES_FOLDERS", "/nowhere/*/bin")
    with pytest.raises(UserError, match="^PostgreSQL is missing on PATH and in .*: apt-get install postgresql$"):
        postgres_programs()


def test_no_password_stands_anywhere(site: Site):
    """Not in a file of the project or the servers, nor in what was printed, recorded or stored."""
    cluster = site.stores.folder / "postgres"  # its content is in the dumps below
    places = {str(path): path.read_bytes() for folder in (site.project.folder, site.stores.folder)
              for path in folder.rglob("*") if path.is_file() and cluster not in path.parents}  # fmt: skip
    places |= {f"s3://{item.key}": item.get()["Body"].read() for item in site.stores.bucket().objects.all()}
    places |= {f"printed {number}": text.encode() for number, text in enumerate(site.said)}
    for name in (RUNS, USERS):
        dump = [postgres_programs() / "pg_dump", "--inserts", site.stores.database(name)]
        environment = os.environ | {"PGPASSWORD": site.stores.database_password}
        places[name] = subprocess.run(dump, env=environment, capture_output=True, check=True).stdout
    known = [name for name, content in places.items() if site.run_id.encode() in content]
    assert RUNS in known, "it looks where things are"
    assert any(name.startswith("s3://") for name in known)
    assert any(name.startswith("printed") for name in known)
    passwords = [PASSWORD, site.stores.database_password, site.stores.s3_secret]
    spelled = {form.encode() for text in passwords for form in (text, quote(text), quote(text, safe=""))}
    spelled.add(base64.b64encode(f"{USER}:{PASSWORD}".encode()))
    assert [name for name, content in places.items() for each in spelled if each in content] == []

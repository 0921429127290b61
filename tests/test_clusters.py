"""Sweeps in the jobs of a real Slurm, of one node: totals, stops, preemptions, and that nobody sees a password."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from darkroom.errors import UserError
from darkroom.params import Params, with_values
from darkroom.sweeping import launching
from darkroom.sweeping.clusters import Array, Job, find_array, submit
from darkroom.sweeping.launching import Watch, check_cluster, num_jobs
from darkroom.sweeping.pool import physical_cores
from darkroom.sweeping.progress import Progress
from darkroom.sweeping.standing import counts
from digits import pack_digits
from pipelines import REPOSITORY
from servers import DATABASE_USER, HOST, RUNS, servers
from slurms import Slurm, missing_packages, slurm
from stores import project, store_at
from test_sweep import runs_of, state_of
from test_sweep_study import ledger_of, section

SCRIPT = REPOSITORY / "stages" / "sweep.py"
SECRET = "a-tracking-password-that-nobody-sees"
SMALL = {
    "model.name": "mlp",
    "model.width": 16,
    "model.blocks": "auto",
    "train.epochs": 2,
    "train.warmup_epochs": 0.0,
    "tracking.system_metrics": False,
    "sweep.pruner": "none",
    "sweep.confirm.top": 0,
    "sweep.space": {"train.lr": {"low": 0.001, "high": 0.1, "log": True}},
}
LONG = 4000
"""epochs of a training that is stopped in the middle"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    if missing := missing_packages():
        assert not os.environ.get("CI"), f"CI has to install {', '.join(missing)}"
        pytest.skip(f"needs a Slurm of its own: apt-get install {' '.join(missing)}")
    with slurm() as running:
        yield running


@pytest.fixture
def client(cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The cluster, with this process as one that submits to it."""
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    return cluster


@dataclass(frozen=True)
class Studies:
    """A database server for them."""

    url: str
    """with the password in it"""
    password: str
    storage: RDBStorage
    """opened once: each has connections of its own"""

    def trials(self, study: str) -> list[FrozenTrial]:
        known = {found.study_name: found for found in self.storage.get_all_studies()}
        return self.storage.get_all_trials(known[study]._study_id) if study in known else []


@pytest.fixture(scope="module")
def studies() -> Iterator[Studies]:
    with servers() as running:
        password = running.database_password
        url = f"postgresql://{DATABASE_USER}:{password}@{HOST}:{running.database_port}/{RUNS}"
        storage = RDBStorage(url)
        yield Studies(url, password, storage)
        storage.engine.dispose()


@dataclass(frozen=True)
class Site:
    """A project on a machine that submits to a cluster, its studies on a database server."""

    folder: Path
    cluster: Slurm
    studies: Studies
    said: list[str] = field(default_factory=list)

    def start(self, *options: str) -> subprocess.Popen[str]:
        """A submitting sweep, as one types it."""
        environment = {"DVC_ROOT": str(self.folder), "OPTUNA_STORAGE": self.studies.url, "OMP_NUM_THREADS": "1",
                       "MLFLOW_TRACKING_PASSWORD": SECRET, **self.cluster.environment()}  # fmt: skip
        return subprocess.Popen(
            [sys.executable, SCRIPT, "--launcher", "slurm", "--workers", "1", *options],
            cwd=self.folder, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ended(self, process: subprocess.Popen[str], code: int) -> str:
        """All that it said; fails with it, and with the jobs' logs, where it ends with another exit code."""
        out, err = process.communicate(timeout=240)
        self.said.append(out + err)
        assert process.returncode == code, "\n".join([out, err, *self.logs()])
        assert "Traceback" not in out + err
        return out + err

    def logs(self) -> list[str]:
        return [path.read_text() for path in sorted((self.folder / ".slurm").glob("*.log"))]

    def training(self, study: str, *, after: int = -1) -> FrozenTrial:
        """A trial with a number beyond `after` that runs and has done an epoch, when there is one."""
        found: list[FrozenTrial] = []

        def look() -> bool:
            found.extend(trial for trial in self.studies.trials(study) if trial.number > after and trial.state == TrialState.RUNNING
                             and trial.intermediate_values and "mlflow_run_id" in trial.user_attrs)  # fmt: skip
            return bool(found)

        wait(look, f"a trial of {study}")
        return found[0]

    def visible(self) -> str:
        """All that Slurm shows of its jobs, and what they and the commands left."""
        arrays = {name.partition("_")[0] for name in self.cluster.jobs()}
        scripts = [self.cluster.run("scontrol", "write", "batch_script", number, "-") for number in arrays]
        shown = [
            self.cluster.run("scontrol", "show", "job"),
            self.cluster.run("squeue", "--states=all", "--Format=ALL"),
        ]
        return "\n".join([*scripts, *shown, *self.logs(), *self.said])


@pytest.fixture
def site(params: Params, tmp_path: Path, cluster: Slurm, studies: Studies) -> Site:
    project(tmp_path)
    pack_digits(tmp_path / "data" / "packed")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(with_values(params, SMALL).model_dump(exclude_none=True)))
    return Site(tmp_path, cluster, studies)


def wait(done: Callable[[], object], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.1)


def jobs_of(cluster: Slurm, state: str) -> list[str]:
    return [name for name, found in cluster.jobs().items() if found == state]


def test_two_jobs_share_a_study_and_a_second_command_waits_for_the_same_jobs(site: Site):
    began = site.start("--study", "shared", "--trials", "4", "--jobs", "2", "--slurm", "cpus-per-task=1")
    wait(lambda: len(jobs_of(site.cluster, "RUNNING")) == 2, "two jobs")
    began.kill()  # as when a connection breaks: the jobs go on
    began.communicate()
    out = site.ended(site.start("--study", "shared", "--trials", "4"), 0)

    trials = site.studies.trials("shared")
    assert sum(map(counts, trials)) == 4
    assert not [trial for trial in trials if trial.state == TrialState.RUNNING]
    assert len(site.logs()) == 2, "of the first command's jobs, and no others"
    assert [line.split("; ")[1].split(",")[0] for line in out.splitlines() if "of 4 done" in line][-1] == "4 of 4 done"
    assert "best: trial" in out
    assert "--launcher slurm" in out.splitlines()[-1]
    store = store_at(site.folder)
    (parent,) = runs_of(store, "sweep")
    nested = runs_of(store, "train")
    assert [state_of(run) for run in nested] == [("FINISHED", "complete")] * 4
    assert {run.data.tags["mlflow.parentRunId"] for run in nested} == {parent.info.run_id}
    for secret in (site.studies.password, SECRET):
        assert secret not in site.visible()
        files = [path for path in site.folder.rglob("*") if path.is_file()]
        assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_stopped_and_cancelled_jobs_leave_their_trials_to_the_next(site: Site):
    changed = ["--study", "stopped", "--trials", "2", "-S", f"train.epochs={LONG}"]
    stopped = site.start(*changed, "--jobs", "1")
    first = site.training("stopped")
    stopped.send_signal(signal.SIGINT)
    said = site.ended(stopped, 130)
    assert "stopping the jobs" in said
    assert not jobs_of(site.cluster, "RUNNING")
    assert [trial.user_attrs["lost"] for trial in site.studies.trials("stopped") if trial.number == first.number] == [
        "interrupted"
    ]

    cancelled = site.start(*changed, "--jobs", "1")
    second = site.training("stopped", after=first.number)
    assert second.user_attrs["retry_of"] == first.number
    site.cluster.run("scancel", *jobs_of(site.cluster, "RUNNING"))  # as a person does, or a time limit
    said = site.ended(cancelled, 1)
    assert said.splitlines()[-1].startswith(
        "error: the jobs have ended (1 CANCELLED) with 0 of 2 trials done: the same command"
    )
    trials = site.studies.trials("stopped")
    assert not [trial for trial in trials if trial.state == TrialState.RUNNING]
    (waiting,) = (trial for trial in trials if trial.state == TrialState.WAITING)
    assert waiting.user_attrs["retry_of"] == second.number
    assert waiting.user_attrs["kills"] == 0, "to be told to stop is no fault of the trial's"
    assert waiting.user_attrs["mlflow_run_id"] == first.user_attrs["mlflow_run_id"]


# What a job does that is told to stop, and the second time has nothing to do.
OBEDIENT = """
import signal, sys, time
def obey(*_): print("saved", flush=True); sys.exit(143)
signal.signal(signal.SIGTERM, obey)
print("begun", flush=True)
time.sleep(0 if sys.argv[1:] else 60)
"""


def test_a_job_that_is_preempted_begins_again_with_the_same_log(client: Slurm, tmp_path: Path):
    command = ["sh", "-c", f"exec {sys.executable} -c {shlex.quote(OBEDIENT)} $SLURM_RESTART_COUNT"]
    array = submit(command, name="again", num_jobs=1, options={}, environment={}, logs=tmp_path)
    log = tmp_path / f"{array.number}_0.log"
    wait(lambda: log.exists() and "begun" in log.read_text(), "the job")
    found = find_array("again", tmp_path)
    assert found == array
    client.run("scontrol", "requeue", f"{array.number}_0")
    wait(lambda: [job.state for job in array.jobs()] == ["COMPLETED"], "the end")
    assert [line for line in log.read_text().splitlines() if "slurmstepd" not in line] == ["begun", "saved", "begun"]
    assert find_array("again", tmp_path) is None


def test_a_failed_job_is_told_with_the_end_of_its_log(
    client: Slurm, params: Params, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(launching, "ASK_SECONDS", 0.2)
    monkeypatch.setattr(launching, "LOOK_SECONDS", 0.1)
    script = 'test "$SLURM_ARRAY_TASK_ID" = 1 || exit 0; seq 20; echo out of paper >&2; exit 3'
    array = submit(["sh", "-c", script], name="fails", num_jobs=2, options={}, environment={}, logs=tmp_path / "logs")
    with ledger_of(section(params), tmp_path) as ledger, pytest.raises(UserError) as told:
        Watch(ledger, array, Progress(ledger, live=False)).run()
    assert str(told.value).startswith(
        "the jobs have ended (1 COMPLETED, 1 FAILED) with 0 of 20 trials done: the same command"
    )
    end = "\n  ".join([f"job {array.number}_1 failed (FAILED, exit code 3):", "17", "18", "19", "20", "out of paper"])
    assert end in capsys.readouterr().out
    assert sorted(array.jobs(), key=lambda job: job.task) == [Job("0", "COMPLETED", 0), Job("1", "FAILED", 3)]
    assert Array(999_999, tmp_path).jobs() == [], "as when Slurm forgot them"


def test_jobs_that_wait_are_told_with_the_reason_and_end_with_a_stop(
    client: Slurm, params: Params, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(launching, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(launching, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(launching, "STOP_SECONDS", 10.0)
    array = submit(["true"], name="waits", num_jobs=2, options={"hold": True}, environment={}, logs=tmp_path)
    threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with ledger_of(section(params), tmp_path) as ledger, pytest.raises(KeyboardInterrupt):
        Watch(ledger, array, Progress(ledger, live=False)).run()
    assert capsys.readouterr().out.count("waiting for Slurm (JobHeldUser)") == 1
    assert {job.state for job in array.jobs()} == {"CANCELLED"}


def test_a_job_uses_the_cpus_that_it_was_given(client: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    array = submit(["sh", "-c", "echo $SLURM_CPUS_ON_NODE"], name="cpus", num_jobs=1, options={"cpus-per-task": 3},
                   environment={}, logs=tmp_path)  # fmt: skip
    wait(lambda: [job.state for job in array.jobs()] == ["COMPLETED"], "the end")
    assert array.last_lines(array.jobs()[0]) == ["3"]
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    assert physical_cores() == 1


def test_options_that_slurm_refuses_are_told_in_its_words(client: Slurm, tmp_path: Path):
    for options, words in (
        ({"partition": "nowhere"}, "invalid partition specified: nowhere"),
        ({"tme": "4:00:00"}, "unrecognized option '--tme=4:00:00'"),
        ({"mem": "900000G"}, "Memory specification can not be satisfied"),
    ):
        with pytest.raises(UserError, match=f"sbatch: .*{words}.*sweep.slurm in params.yaml, and --slurm"):
            submit(["true"], name="refused", num_jobs=1, options=options, environment={}, logs=tmp_path)


def test_runs_in_a_file_are_refused_where_jobs_may_run_elsewhere(
    client: Slurm, params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    params = with_values(params, {"sweep.storage": "postgresql://db/studies"})
    check_cluster(params, tmp_path)  # the cluster's one node is this machine
    monkeypatch.setattr("socket.gethostname", lambda: "login.example.org")
    with pytest.raises(
        UserError, match=r"tracking.uri: runs in the file .*mlflow.db cannot be written by jobs on several"
    ):
        check_cluster(params, tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://runs.example.org")
    check_cluster(params, tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--launcher", "slurm"],
            "sbatch is not here: --launcher slurm runs on a machine that submits to a Slurm cluster",
        ),
        (["--jobs", "2"], "--jobs: means nothing to --launcher local"),
        (["--slurm", "time=5"], "--slurm: means nothing to --launcher local"),
        (["--launcher", "slurm", "--slurm", "output=x"], "sweep.slurm: output is set by the sweep itself"),
        (["--launcher", "slurm", "--jobs", "0"], "sweep.jobs: 0 is not auto or a number at least 1"),
    ],
)
def test_mistakes_are_told_in_a_line(params: Params, tmp_path: Path, options: list[str], said: str):
    pack_digits(tmp_path / "data" / "packed")
    (tmp_path / "params.yaml").write_text((REPOSITORY / "params.yaml").read_text())
    environment = os.environ | {"DVC_ROOT": str(tmp_path), "PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, SCRIPT, *options], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "optuna.db").exists()


def test_a_study_in_a_file_is_refused(client: Slurm, params: Params, tmp_path: Path):
    for storage in ("", "sqlite:////shared/optuna.db"):
        with pytest.raises(
            UserError, match=r"sweep.storage: a study in a file is for one machine and one sweep at a time"
        ):
            check_cluster(with_values(params, {"sweep.storage": storage}), tmp_path)


def test_no_more_jobs_than_trials_are_missing(params: Params):
    def wanted(done: int, **changes: object) -> int:
        return num_jobs(with_values(params, {f"sweep.{name}": value for name, value in changes.items()}).sweep, done)

    assert [wanted(done, trials=20, workers="auto", jobs="auto") for done in (0, 17, 19)] == [4, 3, 1]
    assert [wanted(done, trials=20, workers=4, jobs=16) for done in (0, 11, 16)] == [5, 3, 1]

"""Whole sweeps with real processes: totals through kills and stops, runs below one parent, and what the user is told."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
import yaml
from mlflow.entities import Run

import sweep as script
from darkroom.errors import UserError
from darkroom.packed import PackedSet
from darkroom.params import Params, flatten, read_params, with_values
from darkroom.sweeping.checking import check_packed
from darkroom.sweeping.coordinator import Coordinator
from darkroom.sweeping.ledger import Ledger
from darkroom.sweeping.pool import Pool, divide
from darkroom.sweeping.progress import Progress
from darkroom.sweeping.sampling import make_pruner
from darkroom.sweeping.space import identity, make_space
from darkroom.sweeping.standing import counts, num_by_state, winner
from darkroom.sweeping.study import make_terms, opened, storage_url, train_values
from darkroom.sweeping.trial import Trainer, TrialOpener
from darkroom.sweeping.worker import Task
from darkroom.tracking.store import Store
from digits import pack_digits
from pipelines import REPOSITORY
from stores import files, project, store_at
from train import train
from trials import Broken, Light, Made

STAGES = REPOSITORY / "stages"
LR = {"low": 0.01, "high": 0.5, "log": True}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A project's folder, with a folder for orders."""
    (tmp_path / "orders").mkdir()
    return project(tmp_path)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take two seconds; one test draws them."""
    monkeypatch.setattr("darkroom.sweeping.search.draw", lambda *_: None)


@pytest.fixture
def packed(place: Path) -> PackedSet:
    """Digits whose test split cannot be read."""
    made = pack_digits(place / "data" / "packed")
    for path in made.folder.glob("test.*"):
        path.unlink()
    return made


def wanted(params: Params, **changes: Any) -> Params:
    """Few epochs, pruned after the first; no system metrics; `changes` are keys of sweep."""
    fixed = {
        "train.epochs": 5,
        "train.warmup_epochs": 0.0,
        "tracking.system_metrics": False,
        "sweep.space": {"train.lr": LR},
        "sweep.confirm": {"top": 0, "seeds": 2},
    }
    return with_values(params, fixed | {f"sweep.{name}": value for name, value in changes.items()})


@contextmanager
def light_sweep(params: Params, root: Path, opener: Light, data_sha256: str = "f" * 64) -> Iterator[Ledger]:
    """A finished sweep of trials without runs."""
    terms = make_terms(params, data_sha256)
    with opened(storage_url(params, root), params.sweep.study, terms, root) as (study, _):
        study.pruner = make_pruner(params.sweep, params.train)
        ledger = Ledger(study, make_space(params.sweep.space), params.sweep)
        workers, threads = divide(params.sweep.workers, params.sweep.trials)
        values = train_values(params)
        Coordinator(ledger, Pool(opener, threads), lambda point: values | point, Progress(ledger, live=False)).run(
            workers
        )
        yield ledger


def trials_of(root: Path) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="darkroom", storage=f"sqlite:///{root / 'optuna.db'}").get_trials()


def runs_of(store: Store, stage: str) -> list[Run]:
    found = store.client.search_runs([store.experiment_id])
    return [run for run in found if f"stage.{stage}" in run.data.tags]


def state_of(run: Run) -> tuple[str, str]:
    return run.info.status, run.data.tags["darkroom.trial_state"]


def test_eight_workers_train_eight_points(params: Params, tmp_path: Path):
    with light_sweep(
        wanted(params, trials=8, workers=8, pruner="none"), tmp_path, Light(tmp_path, seconds=0.3)
    ) as ledger:
        trials = ledger.trials()
        assert len(trials) == len({identity(ledger.space.decode(trial.params)) for trial in trials}) == 8
        assert num_by_state(ledger.study) == {"complete": 8, "pruned": 0, "failed": 0}
        assert len({trial.user_attrs["mlflow_run_id"] for trial in trials}) == 8, "each by a worker of its own"


def test_killed_workers_are_replaced_and_the_total_is_kept(params: Params, tmp_path: Path):
    for i in range(2):
        (tmp_path / f"kill-{i}").touch()
    with light_sweep(wanted(params, trials=6, workers=2), tmp_path, Light(tmp_path, seconds=0.02)) as ledger:
        trials = ledger.trials()
        assert sum(map(counts, trials)) == 6
        lost = [trial for trial in trials if "lost" in trial.user_attrs]
        assert len(lost) == 2
        assert all(trial.params == trials[trial.user_attrs["successor"]].params for trial in lost)
        assert {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED", "FAIL"}


def test_workers_that_cannot_start_end_the_sweep_in_a_line(params: Params, tmp_path: Path):
    with (
        pytest.raises(UserError, match="no film in the camera"),
        light_sweep(wanted(params, workers=2), tmp_path, Broken(tmp_path)),
    ):
        pass


def test_a_sweep_has_a_run_with_a_run_for_each_trial_and_a_finished_one_adds_none(
    params: Params, place: Path, packed: PackedSet
):
    (place / "orders" / "kill-1").touch()
    train = Made(place / "orders", seconds=0.02)
    found = script.sweep(wanted(params, trials=6, workers=2), packed=packed, root=place, train=train)
    store = store_at(place)
    (parent,) = runs_of(store, "sweep")
    nested = runs_of(store, "train")
    numbers = num_by_state(optuna.load_study(study_name="darkroom", storage=f"sqlite:///{place / 'optuna.db'}"))
    states = [state_of(run) for run in nested]
    assert len(nested) == 6
    assert {run.data.tags["mlflow.parentRunId"] for run in nested} == {parent.info.run_id}
    assert states.count(("FINISHED", "complete")) == numbers["complete"] >= 1
    assert states.count(("FINISHED", "pruned")) == numbers["pruned"] >= 1
    assert parent.info.status == "FINISHED"
    assert parent.data.params["sweep.space.train.lr"] == '{"low": 0.01, "high": 0.5, "log": true}'
    assert parent.data.metrics["best_val_accuracy"] == found["value"]
    assert parent.data.tags["darkroom.best_run"] == found["run_id"]
    assert {"study/study.html", "study/trials.csv", "study/optimization_history.png", "study/param_importances.png",
            "study/parallel_coordinate.png"} <= files(store, parent.info.run_id)  # fmt: skip
    best = store.client.get_run(found["run_id"])
    assert float(best.data.params["train.lr"]) == found["values"]["train.lr"]

    assert script.sweep(wanted(params, trials=6, workers=2), packed=packed, root=place, train=train) == found
    assert len(runs_of(store, "train")) == 6


@pytest.mark.usefixtures("no_pictures")
def test_trials_that_fail_or_diverge_are_failed_and_the_rest_run(
    params: Params, place: Path, packed: PackedSet, capsys: pytest.CaptureFixture[str]
):
    space = {"train.lr": {"choices": [0.1, 0.6, 0.9]}}
    found = script.sweep(wanted(params, trials=9, workers=1, space=space), packed=packed, root=place, train=Made(place))
    assert found["values"] == {"train.lr": 0.1}
    assert "every point of sweep.space was tried" in capsys.readouterr().out
    runs = {run.data.params["train.lr"]: run for run in runs_of(store_at(place), "train")}
    assert {lr: state_of(run) for lr, run in runs.items()} == {
        "0.1": ("FINISHED", "complete"), "0.6": ("FAILED", "failed"), "0.9": ("FAILED", "failed")
    }  # fmt: skip
    assert "nan at report 1" in runs["0.6"].data.tags["darkroom.error"]
    assert runs["0.9"].data.tags["darkroom.error"] == "RuntimeError: out of paper"
    errors = sorted(trial.user_attrs["error"] for trial in trials_of(place) if "error" in trial.user_attrs)
    assert [error.split(":")[0] for error in errors] == ["RuntimeError", "diverged"]


class Deaf:
    """Stands in for a worker's line to the coordinator."""

    def started(self, run_id: str) -> None:
        self.run_id = run_id

    def report(self, epoch: int, value: float) -> None: ...


def test_a_point_that_params_yaml_does_not_allow_has_its_failed_run(params: Params, place: Path, packed: PackedSet):
    store = store_at(place)
    opener = TrialOpener(Made(place), wanted(params), packed.folder, place, "0" * 32, store.lineage)
    task = Task(3, train_values(params) | {"train.epochs": 4, "train.warmup_epochs": 9.0}, None, 3, again=False)
    with pytest.raises(UserError, match=r"train.warmup_epochs: 9.0 is longer than train.epochs: 4"):
        Trainer(opener, packed, store)(task, line := Deaf())
    run = store.client.get_run(line.run_id)
    assert state_of(run) == ("FAILED", "failed")
    assert run.data.params["train.warmup_epochs"] == "9.0"


PROGRAM = f"""
import sys; sys.path[:0] = [{str(STAGES)!r}, {str(Path(__file__).parent)!r}]
from pathlib import Path
from darkroom.door import enter
from darkroom.packed import open_packed
from darkroom.params import read_params
from sweep import sweep
from trials import Made

root = Path(sys.argv[1])

def main():
    sweep(read_params(root / "params.yaml"), packed=open_packed(root / "data/packed"), root=root,
          train=Made(root / "orders", seconds=float(sys.argv[2])))

if __name__ == "__main__":
    enter(main)
"""


def _write_params(place: Path, params: Params) -> None:
    (place / "params.yaml").write_text(yaml.safe_dump(params.model_dump(exclude_none=True)))


def begun(place: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A sweep in a process of its own, a trial of which has done two epochs, and its workers."""
    reached = place / "orders" / "epoch-2"
    reached.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(place), "0.15"],
        cwd=place,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    while not reached.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    return process, psutil.Process(process.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    """Whether they end within half a minute; one that nobody has buried yet is as good as gone."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        alive = [process for process in processes if process.is_running()]
        with suppress(psutil.NoSuchProcess):
            if all(process.status() == psutil.STATUS_ZOMBIE for process in alive):
                return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.usefixtures("no_pictures")
def test_stopped_and_killed_and_gone_on_with(params: Params, place: Path, packed: PackedSet):
    changed = wanted(params, trials=4, workers=1, pruner="none")
    _write_params(place, changed)

    stopped, workers = begun(place)
    stopped.send_signal(signal.SIGINT)
    output, _ = stopped.communicate(timeout=60)
    assert stopped.returncode == 130, output
    assert "Traceback" not in output
    assert gone(workers)
    trials = trials_of(place)
    assert {trial.user_attrs.get("lost") for trial in trials if trial.state.name == "FAIL"} == {"interrupted"}
    assert not [trial for trial in trials if trial.state.name == "RUNNING"]
    assert ("KILLED", "interrupted") in [state_of(run) for run in runs_of(store_at(place), "train")]

    killed, workers = begun(place)
    killed.kill()
    killed.communicate()
    assert gone(workers), "workers end with their coordinator"
    assert [trial for trial in trials_of(place) if trial.state.name == "RUNNING"]

    script.sweep(changed, packed=packed, root=place, train=Made(place / "orders"))
    trials = trials_of(place)
    assert sum(map(counts, trials)) == 4
    assert {trial.state.name for trial in trials} == {"COMPLETE", "FAIL"}
    store = store_at(place)
    (parent,) = runs_of(store, "sweep")
    assert parent.info.status == "FINISHED"
    nested = runs_of(store, "train")
    assert [state_of(run) for run in nested] == [("FINISHED", "complete")] * 4
    assert {run.data.tags["mlflow.parentRunId"] for run in nested} == {parent.info.run_id}


def swept(place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DVC_ROOT": str(place)}
    command = [sys.executable, str(STAGES / "sweep.py"), *options]
    return subprocess.run(command, cwd=place, env=environment, text=True, capture_output=True, timeout=120)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-S", "train.learning_rate=0.1"], "train.learning_rate: unknown key; did you mean train.lr?"),
        (["-S", "train.epochs=many"], "train.epochs: 'many' is text, not a whole number"),
        (["-S", "train.epochs"], "write key=value"),
        (["-S", "train.lr=0.1"], "the key is in sweep.space"),
        (["-S", "evaluate.batch_size=8"], "means nothing to a sweep"),
        (["--trials", "0"], "sweep.trials: 0 is too small (at least 1)"),
        (["--storage", "optuna.db"], "is no storage URL"),
        ([], "data/packed is missing: run dvc repro prepare"),
    ],
)
def test_mistakes_are_told_in_a_line_before_anything_starts(place: Path, options: list[str], said: str):
    shutil.copy(REPOSITORY / "params.yaml", place)
    began = time.perf_counter()
    done = swept(place, *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert time.perf_counter() - began < 5
    assert not (place / "optuna.db").exists()


@pytest.mark.parametrize(("key", "value"), [("name", "mnist"), ("image_size", 16), ("channels", 3), ("resize", "pad")])
def test_other_pictures_than_params_yaml_says_are_refused(params: Params, packed: PackedSet, key: str, value: str):
    check_packed(params, packed.meta)
    held = getattr(packed.meta, key)
    with pytest.raises(
        UserError, match=f"data.{key} is {value}, but data/packed was made with {held}: run dvc repro prepare"
    ):
        check_packed(with_values(params, {f"data.{key}": value}), packed.meta)


def test_a_trial_is_the_train_stages_own_training(params: Params, place: Path, packed: PackedSet):
    small = {
        "model.name": "mlp",
        "model.width": 16,
        "model.blocks": "auto",
        "train.epochs": 2,
        "tracking.system_metrics": False,
    }
    _write_params(place, with_values(wanted(params, trials=1, workers=1), small))
    done = swept(place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("next: python stages/sweep.py --apply   writes these values into params.yaml\n")
    store = store_at(place)
    (run,), (trial,) = runs_of(store, "train"), trials_of(place)
    assert {"model/model.pt", "metrics/train.json", "plots/training/epochs.csv"} <= files(store, run.info.run_id)
    assert f"best: trial 0, val_accuracy {trial.value:.4f}\n  train.lr: {trial.params['train.lr']}\n" in done.stdout

    shutil.rmtree(place / ".checkpoints")
    best = with_values(read_params(place / "params.yaml"), trial.params | {"train.threads": divide(1, 1)[1]})
    numbers = train(packed, augment=best.augment, model=best.model, train=best.train, store=store, out=place / "out",
                    checkpoints=place / ".checkpoints")  # fmt: skip
    assert numbers["val_accuracy"] == run.data.metrics["val_accuracy"] == trial.value
    assert numbers["model_sha256"] == run.data.tags["model.sha256"]


def test_applying_a_finished_study_writes_the_winner_and_what_was_fixed(params: Params, place: Path, packed: PackedSet):
    shutil.copy(REPOSITORY / "params.yaml", place)
    given = with_values(params, {"sweep.trials": 2, "train.epochs": 4})
    with light_sweep(given, place, Light(place), packed.meta.sha256) as ledger:
        best = winner(ledger.study, ledger.sweep)
        found = ledger.space.decode(best.params)
    unconfirmed = ("-S", "sweep.confirm.top=0")
    done = swept(place, "--trials", "2", "-S", "params.yaml:train.epochs=4", *unconfirmed, "--apply")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("next: dvc repro\n")
    assert "-  epochs: 30 # passes" in done.stdout
    assert "+  epochs: 4 # passes" in done.stdout
    values = flatten(read_params(place / "params.yaml"))
    assert {key: values[key] for key in found} == found
    assert values["train.epochs"] == 4
    again = swept(place, "--trials", "2", *unconfirmed, "--apply")
    assert "params.yaml holds these values already" in again.stdout

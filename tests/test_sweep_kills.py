"""Sweeps whose workers and coordinator are killed outright at any moment: no trial is lost, none is there twice."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
import yaml

from darkroom.params import Params
from darkroom.sweeping.standing import counts
from digits import pack_digits
from pipelines import REPOSITORY
from stores import project, store_at
from test_sweep import STAGES, runs_of, state_of, wanted
from test_sweep_hosts import database, found  # noqa: F401 - a fixture

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")
SOAK = REPOSITORY / ".soak"
LIMIT_SECONDS = 1800
PROGRAM = f"""
import sys; sys.path[:0] = [{str(STAGES)!r}, {str(Path(__file__).parent)!r}]
from pathlib import Path
from darkroom.door import enter
from darkroom.packed import open_packed
from darkroom.params import read_params
from darkroom.sweeping import search
from sweep import sweep
from trials import Made

root = Path(sys.argv[1])
search.draw = lambda *_: None

def main():
    sweep(read_params(root / "params.yaml"), packed=open_packed(root / "data/packed", "train", "val"), root=root,
          train=Made(root / "orders", seconds=float(sys.argv[2])))

if __name__ == "__main__":
    enter(main)
"""
AIMS = {"a worker": 6, "both workers": 2, "the coordinator": 2, "all of them": 1}
"""what a blow hits, and how often that is beside the others"""
ENDED = re.compile(r"^trial \d+: (?:\d|pruned|failed)", re.MULTILINE)
STATES = {"COMPLETE": ("FINISHED", "complete"), "PRUNED": ("FINISHED", "pruned"), "FAIL": ("FAILED", "failed")}
"""Of a trial that counts: status and tag of its run."""


@dataclass
class Killer:
    """One sweep, started again whenever its coordinator was killed, until so many workers were."""

    place: Path
    trials: int
    epoch_seconds: float
    rng: random.Random
    blows: Counter[str] = field(default_factory=Counter)
    num_killed: int = 0
    """workers"""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.place / "sweep.log"

    def sweep(self, kills: int) -> None:
        """Deals blows, spread over the study, until `kills` workers were killed; then lets it finish.

        Between two blows a trial ends: a sweep that loses three workers in a row while they start gives up.
        """
        try:
            while self.num_killed < kills:
                if not self._wait_for(max(int(0.8 * self.trials * self.num_killed / kills), self._num_ended() + 1)):
                    break
                time.sleep(self.rng.uniform(0, 6 * self.epoch_seconds))
                self._strike(self.rng.choices(list(AIMS), weights=list(AIMS.values()))[0])
            assert self._running().wait(LIMIT_SECONDS) == 0, self._told()
        finally:
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
                self._process.wait(60)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, str(self.place), str(self.epoch_seconds)],
                    cwd=self.place, stdout=log, stderr=log,
                )  # fmt: skip
        return self._process

    def _wait_for(self, num_trials: int) -> bool:
        """Until that many trials have ended, and there is somebody to be killed; False where the sweep was quicker."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while self._num_ended() < num_trials or not self._workers():
            if (code := self._running().poll()) is not None:
                assert code == 0, f"ended after {self.num_killed} kills:\n{self._told()}"
                return False
            assert time.monotonic() < deadline, self._told()
            time.sleep(0.05)
        return True

    def _workers(self) -> list[psutil.Process]:
        """Those that run; multiprocessing has a process of its own beside them."""
        found = []
        for child in psutil.Process(self._running().pid).children():
            with suppress(psutil.NoSuchProcess):
                if child.status() != psutil.STATUS_ZOMBIE and any("spawn_main" in part for part in child.cmdline()):
                    found.append(child)
        return found

    def _strike(self, aim: str) -> None:
        """Of all that are hit, none has time to learn that another is gone."""
        workers = self._workers()
        self.rng.shuffle(workers)
        hit = {"a worker": workers[:1], "the coordinator": []}.get(aim, workers)
        if aim in ("the coordinator", "all of them"):
            self._running().kill()
        for worker in hit:
            worker.kill()
        if aim in ("the coordinator", "all of them"):
            self._running().wait()
            self._process = None
        self.num_killed += len(hit)
        self.blows[aim] += 1

    def _num_ended(self) -> int:
        return len(ENDED.findall(self._told()))

    def _told(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def killed_sweep(
    params: Params, place: Path, *, trials: int, kills: int, epoch_seconds: float, seed: int, storage: str = ""
) -> tuple[Killer, list[optuna.trial.FrozenTrial]]:
    """A study of two workers in which `kills` workers died; its killer and its trials."""
    project(place)
    pack_digits(place / "data/packed")
    (place / "orders").mkdir()
    changed = wanted(params, trials=trials, workers=2, storage=storage)
    (place / "params.yaml").write_text(yaml.safe_dump(changed.model_dump(exclude_none=True)))
    killer = Killer(place, trials, epoch_seconds, random.Random(seed))
    killer.sweep(kills)
    return killer, found(storage or f"sqlite:///{place / 'optuna.db'}")


def check_trials(trials: list[optuna.trial.FrozenTrial], total: int) -> Counter[str]:
    """Asserts that the study has its total and that each killed attempt has its successor; how the trials ended."""
    assert {trial.state.name for trial in trials} <= set(STATES), "none is running or waiting"
    counted = [trial for trial in trials if counts(trial)]
    assert sorted(trial.user_attrs["place"] for trial in counted) == list(range(total))
    assert len({trial.params["train.lr"] for trial in counted}) == total
    for attempt in trials:
        if not counts(attempt):
            successor = trials[attempt.user_attrs["successor"]]
            assert (attempt.state.name, successor.user_attrs["retry_of"]) == ("FAIL", attempt.number)
            assert re.match("the sweep was killed|its worker was killed", attempt.user_attrs["lost"])
            assert attempt.params.items() <= successor.params.items()
            assert attempt.user_attrs.get("place", successor.user_attrs["place"]) == successor.user_attrs["place"]
    failed = [trial for trial in counted if trial.state.name == "FAIL"]
    assert all(trial.user_attrs["error"].endswith("3 times") for trial in failed), "none fails but by the kills"
    return Counter(trial.state.name for trial in counted)


def check_runs(place: Path, trials: list[optuna.trial.FrozenTrial]) -> None:
    """Asserts that MLflow has one run for each trial that counts, below one parent, and says of each what Optuna says."""
    store = store_at(place)
    parents, nested = runs_of(store, "sweep"), {run.info.run_id: run for run in runs_of(store, "train")}
    (parent,) = (run for run in parents if run.info.status == "FINISHED")
    assert {run.info.status for run in parents} <= {"FINISHED", "KILLED"}
    assert {run.data.tags["mlflow.parentRunId"] for run in nested.values()} == {parent.info.run_id}
    counted = {trial.user_attrs["mlflow_run_id"]: trial for trial in trials if counts(trial)}
    assert set(counted) == set(nested)
    for run_id, trial in counted.items():
        run = nested[run_id]
        assert state_of(run) == STATES[trial.state.name], (trial, run.data.tags)
        assert run.data.tags["darkroom.trial"] == str(trial.number)
        assert float(run.data.params["train.lr"]) == trial.params["train.lr"]
    ended = Counter(trial.state.name for trial in counted.values())
    recorded = [int(parent.data.metrics[f"num_{state}"]) for state in ("complete", "pruned", "failed")]
    assert recorded == [ended[state] for state in STATES]


def test_workers_and_coordinator_killed_now_and_then(params: Params, tmp_path: Path) -> None:
    seed = int(os.environ.get("DARKROOM_SEED", "51"))  # a worker, all of them, a worker, both workers
    killer, trials = killed_sweep(params, tmp_path, trials=12, kills=6, epoch_seconds=0.05, seed=seed)
    assert killer.num_killed >= 3, "six, where this machine is quick enough to strike before the sweep is done"
    assert check_trials(trials, 12)["COMPLETE"] >= 1
    check_runs(tmp_path, trials)


@pytest.mark.soak
@pytest.mark.timeout(2 * LIMIT_SECONDS)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_fifty_kills_over_a_hundred_trials(
    params: Params, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    made: Callable[[str], str] = (lambda _: "") if kind == "sqlite" else request.getfixturevalue("database")
    options: dict[str, Any] = {"trials": 100, "kills": 50, "epoch_seconds": 0.2, "seed": 1}
    killer, trials = killed_sweep(params, tmp_path, storage=made("kills"), **options)
    SOAK.mkdir(exist_ok=True)
    (SOAK / f"sweep_kills-{kind}.log").write_text(killer.log.read_text())
    assert killer.num_killed >= 50
    ended = check_trials(trials, 100)
    check_runs(tmp_path, trials)
    lost = len(trials) - sum(ended.values())
    print(f"\n{kind}: {killer.num_killed} workers killed in {dict(killer.blows)}: {lost} attempts lost, {dict(ended)}")

"""What a sweep makes of single faults: a process that dies at the worst moment, a storage that fails now and then."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest

import sweep as script
from darkroom.errors import UserError
from darkroom.packed import PackedSet
from darkroom.params import Params
from darkroom.sweeping import coordinator
from darkroom.sweeping.coordinator import MOST_UNOPENED
from darkroom.sweeping.ledger import Ledger
from darkroom.sweeping.liveness import own_name
from darkroom.sweeping.standing import counts, num_by_state
from darkroom.sweeping.study import PARENT
from darkroom.sweeping.trial import Trial
from darkroom.sweeping.trial_runs import TrialStore
from darkroom.sweeping.worker import Task
from darkroom.tracking import machine
from digits import pack_digits
from stores import project, store_at
from test_sweep import Deaf, light_sweep, runs_of, state_of, trials_of, wanted
from test_sweep_study import claim, ledger_of, section
from trials import Early, Light, Made, Weak


@pytest.fixture
def packed(tmp_path: Path) -> PackedSet:
    (project(tmp_path) / "orders").mkdir()
    return pack_digits(tmp_path / "data" / "packed")


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.sweeping.search.draw", lambda *_: None)


def test_one_that_was_killed_while_it_asked_for_an_attempt_again_loses_neither_point_nor_run(
    params: Params, tmp_path: Path
):
    with ledger_of(section(params, trials=2), tmp_path) as ledger:
        first = claim(ledger)
        ledger.started(first, "run-1")
        ledger.lose(first, "killed")
        asked = ledger.study.ask()  # and killed before it has a value
        assert ledger.recover() == 0, "another may be about to settle it"
        assert ledger.recover(alone=True) == 1
        again = claim(ledger)
        assert (again.retry_of, again.attributes["retry_of"]) == (asked.number, 1)
        assert (again.point, again.run_id, again.attributes["place"]) == (first.point, "run-1", 0)
        assert again.attributes["kills"] == 1


def test_a_killed_coordinator_that_nobody_buried_is_gone(params: Params, tmp_path: Path):
    killed = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = psutil.Process(killed.pid).create_time()
    with ledger_of(section(params, trials=1), tmp_path) as ledger:
        name = f"{machine.host()} {killed.pid} {started:.0f}"
        assert not ledger.roll.is_gone(name)
        assert not ledger.roll.is_gone(own_name())
        killed.kill()
        while psutil.Process(killed.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert ledger.roll.is_gone(name)
    killed.communicate()


def test_an_attempt_goes_on_in_the_run_that_the_study_never_heard_of(params: Params, packed: PackedSet, tmp_path: Path):
    store = store_at(tmp_path)

    def started(number: int, place: int, *, again: bool) -> str:
        line: Any = Deaf()
        task = Task(number, {}, None, place, again)
        of_trial = TrialStore(**vars(store), trial=Trial(task, line, params.sweep))
        with of_trial.start("train", {"train.lr": 0.1}, parent="0" * 32, name="t") as run:
            pass
        return run.run_id

    first, other = started(0, 0, again=False), started(1, 1, again=False)
    assert started(2, 0, again=True) == first
    assert len({first, other, started(3, 2, again=True), started(4, 3, again=False)}) == 4
    assert store.client.get_run(first).data.tags["darkroom.trial"] == "2"


def test_a_trial_that_kills_its_worker_before_it_has_a_run_has_its_failed_run(
    params: Params, packed: PackedSet, tmp_path: Path
):
    changed = wanted(params, trials=2, workers=1, space={"train.lr": {"choices": [0.1, 0.2]}})
    found = script.sweep(changed, packed=packed, root=tmp_path, train=Early(tmp_path / "orders"))
    assert found["values"] == {"train.lr": 0.1}
    counted = [trial for trial in trials_of(tmp_path) if counts(trial)]
    assert sorted(trial.state.name for trial in counted) == ["COMPLETE", "FAIL"]
    runs = {run.data.params["train.lr"]: run for run in runs_of(store_at(tmp_path), "train")}
    assert {lr: state_of(run) for lr, run in runs.items()} == {
        "0.1": ("FINISHED", "complete"), "0.2": ("FAILED", "failed")
    }  # fmt: skip
    assert runs["0.2"].data.tags["darkroom.error"].endswith("3 times")


def test_a_sweep_that_was_killed_after_its_last_trial_is_recorded_by_the_next(
    params: Params, packed: PackedSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    changed = wanted(params, trials=2, workers=1, pruner="none")
    sweep: dict[str, Any] = {"packed": packed, "root": tmp_path, "train": Made(tmp_path / "orders")}
    found = script.sweep(changed, **sweep)
    store = store_at(tmp_path)
    (parent,) = runs_of(store, "sweep")
    store.client.update_run(parent.info.run_id, "RUNNING")
    study = optuna.load_study(study_name="darkroom", storage=f"sqlite:///{tmp_path / 'optuna.db'}")
    attribute = study.user_attrs[PARENT]
    assert attribute.pop("recorded")
    study.set_user_attr(PARENT, attribute)

    capsys.readouterr()
    assert script.sweep(changed, **sweep) == found
    assert "all 2 trials done; what they came to is recorded now" in capsys.readouterr().out
    (parent,) = runs_of(store, "sweep")
    assert parent.info.status == "FINISHED"
    assert len(runs_of(store, "train")) == 2
    script.sweep(changed, **sweep)
    assert "recorded now" not in capsys.readouterr().out


@pytest.mark.parametrize(("deaths", "finishes"), [(MOST_UNOPENED - 1, True), (MOST_UNOPENED, False)])
def test_workers_that_die_while_they_start_are_replaced_but_not_for_ever(
    params: Params, tmp_path: Path, deaths: int, finishes: bool
):
    for number in range(deaths):
        (tmp_path / f"start-{number}").touch()
    changed = wanted(params, trials=2, workers=1)
    if finishes:
        with light_sweep(changed, tmp_path, Weak(tmp_path)) as ledger:
            assert sum(num_by_state(ledger.study).values()) == 2
            assert len(ledger.trials()) == 2
    else:
        with (
            pytest.raises(UserError, match=r"3 workers in a row died while they opened the data: .*signal 9"),
            light_sweep(changed, tmp_path, Weak(tmp_path)),
        ):
            pass


def test_a_storage_that_fails_at_every_second_call_loses_nothing(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Before the call, or after it, when it is only the answer that gets lost."""
    calls: Counter[str] = Counter()

    def flaky(name: str) -> Any:
        plain = getattr(Ledger, name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            if calls[name] % 4 == 1:
                raise optuna.exceptions.StorageInternalError("gone")
            result = plain(*arguments, **options)
            if calls[name] % 4 == 3 and name != "claim":
                raise optuna.exceptions.StorageInternalError("gone")
            return result

        return call

    (tmp_path / "kill-1").touch()
    monkeypatch.setattr(coordinator.time, "sleep", lambda _: None)
    with monkeypatch.context() as patch:
        for name in ("claim", "started", "is_ours", "complete", "prune", "lose", "is_open"):
            patch.setattr(Ledger, name, flaky(name))
        with light_sweep(wanted(params, trials=6, workers=2), tmp_path, Light(tmp_path)) as ledger:
            trials = ledger.trials()
    assert sum(map(counts, trials)) == 6
    assert sorted(trial.user_attrs["place"] for trial in trials if counts(trial)) == list(range(6))
    assert sum("lost" in trial.user_attrs for trial in trials) == 1
    assert min(calls.values()) >= 2, calls

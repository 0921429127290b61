"""The study's total, its points and its terms, without workers: what is asked, told, counted and refused."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from darkroom.errors import UserError
from darkroom.params import Params, with_values
from darkroom.sweeping.attempts import MOST_KILLS
from darkroom.sweeping.ledger import Claim, Ledger
from darkroom.sweeping.sampling import make_pruner
from darkroom.sweeping.space import identity, make_space
from darkroom.sweeping.standing import best, counts, num_by_state, winner
from darkroom.sweeping.study import make_terms, opened, shown, storage_url
from darkroom.tracking import machine
from pipelines import REPOSITORY

LR = {"low": 0.01, "high": 1.0, "log": True}


def section(params: Params, **changes: Any) -> Params:
    return with_values(params, {f"sweep.{name}": value for name, value in changes.items()})


@cache
def _tables() -> Path:
    """An empty database: making one takes half a second, copying it nothing."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    optuna.storages.RDBStorage(f"sqlite:///{folder / 'optuna.db'}").engine.dispose()
    return folder / "optuna.db"


@contextmanager
def ledger_of(params: Params, root: Path) -> Iterator[Ledger]:
    root.mkdir(exist_ok=True)
    if not (root / "optuna.db").exists():
        shutil.copyfile(_tables(), root / "optuna.db")
    terms = make_terms(params, "f" * 64)
    with opened(storage_url(params, root), params.sweep.study, terms, root) as (study, _):
        study.pruner = make_pruner(params.sweep, params.train)
        yield Ledger(study, make_space(params.sweep.space), params.sweep)


def claim(ledger: Ledger) -> Claim:
    found = ledger.claim()
    assert found is not None
    return found


def complete(ledger: Ledger, found: Claim, value: float, **other: float) -> None:
    ledger.complete(found, {ledger.sweep.metric: value, **other})


def train(ledger: Ledger, found: Claim) -> None:
    """A made-up training: the closer train.lr to 0.1, the better; rises with the epochs."""
    for epoch in range(1, 5):
        score = -abs(found.point["train.lr"] - 0.1) - 1 / epoch
        if ledger.report(found, epoch, score):
            ledger.prune(found)
            return
    complete(ledger, found, score)


def points(ledger: Ledger) -> list[str]:
    return [identity(ledger.space.decode(trial.params)) for trial in ledger.trials() if counts(trial)]


def test_the_total_is_that_of_the_study_also_after_a_restart(params: Params, tmp_path: Path):
    for trials, expected in ((4, 4), (4, 4), (7, 7)):
        with ledger_of(section(params, trials=trials), tmp_path) as ledger:
            while (found := ledger.claim()) is not None:
                complete(ledger, found, 0.5)
            assert (ledger.num_done(), len(ledger.trials()), ledger.is_open()) == (expected, expected, False)


def test_running_trials_are_claimed_so_that_nobody_overshoots(params: Params, tmp_path: Path):
    with ledger_of(section(params, trials=8), tmp_path) as ledger:
        claims = [claim(ledger) for _ in range(8)]
        assert ledger.claim() is None
        assert len({identity(found.point) for found in claims}) == 8
        assert [found.trial.user_attrs["place"] for found in claims] == list(range(8))


def test_a_killed_attempt_is_told_fail_and_its_successor_has_its_point_and_run(params: Params, tmp_path: Path):
    with ledger_of(section(params, trials=2), tmp_path) as ledger:
        first = claim(ledger)
        ledger.started(first, "run-1")
        assert ledger.lose(first, "killed")
        again = claim(ledger)
        assert (again.point, again.run_id, again.retry_of, again.trial.user_attrs["place"]) == (
            first.point,
            "run-1",
            0,
            0,
        )
        lost = ledger.trials()[0]
        assert (lost.state, lost.user_attrs["successor"], lost.user_attrs["lost"]) == (TrialState.FAIL, 1, "killed")
        complete(ledger, again, 0.5)
        train(ledger, claim(ledger))
        assert ledger.claim() is None
        assert ledger.num_done() == 2


def test_a_trial_that_kills_its_worker_each_time_fails_by_itself(params: Params, tmp_path: Path):
    with ledger_of(section(params, trials=1), tmp_path) as ledger:
        outcomes = [ledger.lose(claim(ledger), "killed") for _ in range(MOST_KILLS)]
        assert outcomes == [True] * (MOST_KILLS - 1) + [False]
        assert ledger.claim() is None
        assert num_by_state(ledger.study) == {"complete": 0, "pruned": 0, "failed": 1}


def test_an_interrupted_trial_may_be_interrupted_any_number_of_times(params: Params, tmp_path: Path):
    with ledger_of(section(params, trials=1), tmp_path) as ledger:
        for _ in range(MOST_KILLS + 2):
            ledger.interrupt(claim(ledger))
        assert ledger.num_done() == 0
        assert claim(ledger).retry_of == MOST_KILLS + 1


def test_what_a_killed_sweep_left_running_is_run_again(params: Params, tmp_path: Path):
    with ledger_of(section(params, trials=3), tmp_path) as ledger:
        left = [claim(ledger), claim(ledger)]
        for trial, host in zip(left, (machine.host(), "elsewhere"), strict=True):
            trial.trial.set_user_attr("coordinator", f"{host} 999999 1")
        assert ledger.recover() == 1
        assert [trial.state for trial in ledger.trials()] == [TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING]
        assert claim(ledger).point == left[0].point
        assert ledger.recover() == 0, "this process lives"


def test_a_failing_trial_counts_and_the_best_is_among_the_complete(params: Params, tmp_path: Path):
    with ledger_of(section(params, trials=3), tmp_path) as ledger:
        ledger.fail(claim(ledger), "out of memory")
        ledger.report(hopeless := claim(ledger), 1, 0.99)
        ledger.prune(hopeless)
        with pytest.raises(UserError, match=r"1 pruned, 1 failed.*the last failed: out of memory"):
            winner(ledger.study, ledger.sweep)
        complete(ledger, claim(ledger), 0.4)
        found = best(ledger.study, ledger.sweep)
        assert found is not None
        assert (found.number, found.value) == (2, 0.4)
        assert num_by_state(ledger.study) == {"complete": 1, "pruned": 1, "failed": 1}


def test_of_equals_the_other_metric_decides(params: Params, tmp_path: Path):
    with ledger_of(section(params, trials=4), tmp_path) as ledger:
        for accuracy, loss in ((0.9, 0.1), (1.0, 0.4), (1.0, 0.3), (1.0, 0.3)):
            complete(ledger, claim(ledger), accuracy, val_loss=loss)
        assert winner(ledger.study, ledger.sweep).number == 2


@pytest.mark.parametrize(("metric", "expected"), [("val_accuracy", 0.8), ("val_loss", 0.2)])
def test_a_pruned_trials_value_is_its_best_report(params: Params, tmp_path: Path, metric: str, expected: float):
    with ledger_of(section(params, trials=1, metric=metric), tmp_path) as ledger:
        found = claim(ledger)
        for epoch, value in enumerate([0.5, 0.8, 0.2, 0.4], start=1):
            ledger.report(found, epoch, value)
        assert ledger.prune(found).value == expected


def test_halving_stops_trials_and_a_killed_attempt_does_not_compete_with_its_successor(params: Params, tmp_path: Path):
    params = with_values(section(params, trials=9), {"train.epochs": 9, "train.warmup_epochs": 0.0})
    with ledger_of(params, tmp_path) as ledger:
        first = claim(ledger)
        assert not ledger.report(first, 1, 0.5)
        ledger.lose(first, "killed")
        again = claim(ledger)
        assert not ledger.report(again, 1, 0.5), "its only rival would be itself"
        complete(ledger, again, 0.6)
        assert ledger.report(claim(ledger), 1, 0.4)
        assert not ledger.report(claim(ledger), 1, 0.7)


def test_nothing_is_pruned_before_an_epoch_at_the_full_learning_rate(params: Params, tmp_path: Path):
    params = with_values(section(params, trials=2), {"train.epochs": 9, "train.warmup_epochs": 2.5})
    with ledger_of(params, tmp_path) as ledger:
        good, bad = claim(ledger), claim(ledger)
        answers = [(ledger.report(good, epoch, 0.9), ledger.report(bad, epoch, 0.1)) for epoch in (1, 2, 3, 4)]
        assert answers == [(False, False)] * 3 + [(False, True)]


def test_a_successor_that_goes_on_from_a_checkpoint_has_the_reports_before_it(params: Params, tmp_path: Path):
    with ledger_of(section(params, trials=1), tmp_path) as ledger:
        first = claim(ledger)
        for epoch in range(1, 6):
            ledger.report(first, epoch, epoch / 10)
        ledger.lose(first, "killed")
        again = claim(ledger)
        ledger.report(again, 4, 0.41)
        assert ledger.trials()[again.number].intermediate_values == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.41}


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc"])
def test_one_seed_gives_the_same_trials_also_when_stopped_and_gone_on_with(
    params: Params, tmp_path: Path, sampler: str
):
    def searched(root: Path, seed: int, *stops: int) -> list[str]:
        wanted = section(
            params, trials=12, sampler=sampler, seed=seed, space={"train.lr": LR, "model.width": {"low": 8, "high": 64}}
        )
        wanted = with_values(wanted, {"train.epochs": 4, "train.warmup_epochs": 0.0})
        for stop in (*stops, 99):
            with ledger_of(wanted, root) as ledger:
                while (found := ledger.claim()) is not None:
                    if ledger.num_done() == stop:
                        ledger.report(found, 1, -0.9)
                        ledger.interrupt(found)
                        break
                    train(ledger, found)
        with ledger_of(wanted, root) as ledger:
            assert ledger.num_done() == 12
            return points(ledger)

    whole = searched(tmp_path / "a", 0)
    assert searched(tmp_path / "b", 0) == whole
    assert searched(tmp_path / "c", 0, 3, 11) == whole
    assert searched(tmp_path / "d", 1) != whole
    assert len(set(whole)) == 12


def test_the_first_points_are_the_same_whatever_the_workers(params: Params, tmp_path: Path):
    with ledger_of(params, tmp_path / "one") as ledger:
        for _ in range(6):
            train(ledger, claim(ledger))
        alone = points(ledger)
    with ledger_of(params, tmp_path / "six") as ledger:
        together = [identity(claim(ledger).point) for _ in range(6)]
    assert alone == together


def test_a_point_is_trained_once_and_a_small_space_is_tried_out(params: Params, tmp_path: Path):
    small = {"train.optimizer": {"choices": ["sgd", "adamw"]}, "model.width": {"choices": [16, 32, 48]}}
    with ledger_of(section(params, trials=50, space=small), tmp_path) as ledger:
        while (found := ledger.claim()) is not None:
            complete(ledger, found, 0.5)
        assert len(points(ledger)) == len(set(points(ledger))) == 6
        assert not ledger.is_open()
        twins = [trial for trial in ledger.trials() if "duplicate_of" in trial.user_attrs]
        assert all(trial.state == TrialState.FAIL and trial.value is None for trial in twins)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sweep.metric": "val_loss"}, "sweep.metric: val_accuracy in the study, val_loss now"),
        ({"train.epochs": 5}, "train.epochs: 30 in the study, 5 now"),
        (
            {"sweep.space": {"train.lr": LR}},
            "sweep.space.model.width: {low: 16, high: 48, step: 8} in the study, absent now",
        ),
    ],
)
def test_a_study_begun_on_other_terms_is_refused_with_both(
    params: Params, tmp_path: Path, changes: dict[str, Any], said: str
):
    with ledger_of(params, tmp_path):
        pass
    with pytest.raises(UserError) as refused, ledger_of(with_values(params, changes), tmp_path):
        pass
    assert said in str(refused.value)
    assert "--study darkroom-2" in str(refused.value)


def test_settings_that_shape_no_result_and_swept_keys_may_change(params: Params, tmp_path: Path):
    changed = with_values(params, {"train.threads": 1, "train.lr": 0.5, "sweep.workers": 1, "sweep.trials": 99})
    for wanted in (params, changed):
        with ledger_of(wanted, tmp_path) as ledger:
            assert ledger.sweep == wanted.sweep


def test_a_key_whose_condition_is_not_met_keeps_the_value_of_the_studys_first_day(params: Params, tmp_path: Path):
    space = {
        "train.momentum": {"low": 0.8, "high": 0.95, "when": {"train.optimizer": "sgd"}},
        "train.optimizer": {"choices": ["sgd", "adamw"]},
    }
    wanted = section(params, space=space)
    for momentum in (0.9, 0.5):  # as after --apply
        terms = make_terms(with_values(wanted, {"train.momentum": momentum}), "f" * 64)
        with opened(storage_url(wanted, tmp_path), "s", terms, tmp_path) as (_, kept):
            assert kept.otherwise == {"train.momentum": 0.9}


def test_a_study_is_swept_by_one_process_at_a_time(params: Params, tmp_path: Path):
    with (
        ledger_of(params, tmp_path),
        pytest.raises(UserError, match=r"study darkroom is being worked on by process \d+ on .*--study"),
        ledger_of(params, tmp_path),
    ):
        pass


def test_a_study_of_somebody_elses_is_left_alone(params: Params, tmp_path: Path):
    study = optuna.create_study(storage=storage_url(params, tmp_path), study_name="darkroom", direction="maximize")
    study.tell(study.ask(), 1.0)
    with pytest.raises(UserError, match="was not made by this sweep"), ledger_of(params, tmp_path):
        pass


@pytest.mark.parametrize(
    "url", ["sqlite:////nowhere/at/all.db", "nothing://host/name", "postgresql+nodriver://u:secret@localhost/x"]
)
def test_a_storage_that_cannot_be_reached_is_said_in_a_line(params: Params, tmp_path: Path, url: str):
    with (
        pytest.raises(UserError, match=r"sweep\.storage: .* cannot be opened") as refused,
        ledger_of(section(params, storage=url), tmp_path),
    ):
        pass
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_storage_that_fails_in_the_middle_is_said_in_a_line(params: Params, tmp_path: Path):
    with (
        pytest.raises(UserError, match=r"sweep.storage: sqlite.* failed \(disk full\); the same command goes on"),
        ledger_of(params, tmp_path),
    ):
        raise optuna.exceptions.StorageInternalError("disk full")


def test_a_file_that_is_no_database_is_said_in_a_line(params: Params, tmp_path: Path):
    (tmp_path / "optuna.db").write_text("a letter " * 1000)
    with pytest.raises(UserError, match="not a database"), ledger_of(params, tmp_path):
        pass
    assert shown("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"


SIX = """
import os, sys
from pathlib import Path
from darkroom.params import read_params
from darkroom.sweeping.study import make_terms, opened, storage_url

params, root = read_params(Path(sys.argv[1])), Path(sys.argv[2])
children = []
for number in range(6):  # forked: what takes time is importing, which is done
    children.append(os.fork())
    if not children[-1]:
        with opened(storage_url(params, root), f"study-{number}", make_terms(params, "f"), root):
            os._exit(0)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_six_processes_open_a_new_database_at_once(tmp_path: Path):
    command = [sys.executable, "-c", SIX, str(REPOSITORY / "params.yaml"), str(tmp_path)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(REPOSITORY / "stages")}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(optuna.get_all_study_names(f"sqlite:///{tmp_path / 'optuna.db'}")) == 6

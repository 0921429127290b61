"""The best trials over fresh seeds: whose luck is not applied, and what a stop in between leaves."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from statistics import stdev

import optuna
import pytest

import sweep as script
from darkroom.errors import UserError
from darkroom.packed import PackedSet
from darkroom.params import Params, with_values
from darkroom.sweeping.standing import counts
from digits import pack_digits
from stores import project, read, store_at
from test_sweep import runs_of, wanted
from trials import Lucky, Made

CHOICES = {"train.lr": {"choices": [0.05, 0.1, 0.2]}}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "orders").mkdir()
    return project(tmp_path)


@pytest.fixture
def packed(place: Path) -> PackedSet:
    return pack_digits(place / "data/packed")


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.sweeping.search.draw", lambda *_: None)


def confirming(params: Params, *, top: int = 2, seeds: int = 2, trials: int = 3, **changes: object) -> Params:
    found = wanted(params, trials=trials, workers=1, sampler="grid", pruner="none", space=CHOICES, **changes)
    return with_values(found, {"sweep.confirm": {"top": top, "seeds": seeds}})


def study(place: Path, name: str) -> optuna.Study:
    return optuna.load_study(study_name=name, storage=f"sqlite:///{place / 'optuna.db'}")


def test_the_lucky_trial_is_not_the_winner(
    params: Params, place: Path, packed: PackedSet, capsys: pytest.CaptureFixture[str]
):
    asked = confirming(params)
    found = script.sweep(asked, packed=packed, root=place, train=Lucky(place / "orders"))
    trials = {trial.params["train.lr"]: trial for trial in study(place, "darkroom").trials}
    assert max(trials.values(), key=lambda trial: trial.value).params["train.lr"] == 0.05, "as the sweep saw it"
    assert (found["values"], found["trial"]) == ({"train.lr": 0.1}, trials[0.1].number)
    score = trials[0.1].value
    assert found["mean"] == pytest.approx(score + 0.0015), "seeds 1 and 2, not the one that chose it"
    told = capsys.readouterr().out
    assert (
        f"trial {found['trial']}: val_accuracy {found['mean']:.4f} ± {stdev([0.001, 0.002]):.4f} over 2 fresh" in told
    )

    store = store_at(place)
    (parent,) = runs_of(store, "sweep")
    assert len(runs_of(store, "train")) == 3 + 2 * 2
    assert {run.data.tags["mlflow.parentRunId"] for run in runs_of(store, "train")} == {parent.info.run_id}
    assert parent.data.metrics["confirmed_val_accuracy"] == pytest.approx(found["mean"])
    assert parent.data.metrics["best_val_accuracy"] == pytest.approx(score)
    assert parent.data.tags["darkroom.best_trial"] == str(found["trial"])
    table = list(csv.DictReader(io.StringIO(read(store, parent.info.run_id, "study/confirmed.csv"))))
    assert [(int(row["trial"]), int(row["num_seeds"])) for row in table] == [
        (trials[0.1].number, 2), (trials[0.05].number, 2)
    ]  # fmt: skip

    again = script.sweep(asked, packed=packed, root=place, train=Lucky(place / "orders"))
    assert again == found
    assert len(runs_of(store, "train")) == 7, "a finished study is read"


def test_without_it_the_best_trial_wins(params: Params, place: Path, packed: PackedSet):
    found = script.sweep(confirming(params, top=0), packed=packed, root=place, train=Lucky(place / "orders"))
    assert found["values"] == {"train.lr": 0.05}
    assert len(runs_of(store_at(place), "train")) == 3


def test_a_study_that_goes_on_confirms_its_new_best(params: Params, place: Path, packed: PackedSet):
    for trials, expected in ((2, 1), (3, 2)):
        script.sweep(confirming(params, trials=trials, top=1), packed=packed, root=place, train=Made(place / "orders"))
        names = [each.study_name for each in optuna.get_all_study_summaries(f"sqlite:///{place / 'optuna.db'}")]
        again = [name for name in names if name.startswith("darkroom again")]
        assert len(again) <= expected
        for name in again:
            assert sum(map(counts, study(place, name).trials)) == 2


def test_a_sweep_that_runs_out_of_time_confirms_nothing_yet(
    params: Params, place: Path, packed: PackedSet, capsys: pytest.CaptureFixture[str]
):
    slow = Made(place / "orders", seconds=0.1)
    found = script.sweep(confirming(params, timeout=0.3), packed=packed, root=place, train=slow)
    assert found["value"] == found["mean"]
    assert "sweep.timeout: 0.3 seconds are over; the same command goes on with the study" in capsys.readouterr().out
    assert sum(map(counts, study(place, "darkroom").trials)) < 3
    script.sweep(confirming(params), packed=packed, root=place, train=Made(place / "orders"))
    assert len(runs_of(store_at(place), "train")) == 3 + 4


def test_repeats_that_all_fail_are_said(
    params: Params, place: Path, packed: PackedSet, monkeypatch: pytest.MonkeyPatch
):
    asked = with_values(confirming(params, top=1), {"train.seed": 0})
    script.sweep(with_values(asked, {"sweep.confirm.top": 0}), packed=packed, root=place, train=Made(place / "orders"))
    with pytest.raises(
        UserError, match=r"trial 1 of study darkroom could not be trained with another seed: RuntimeError: out of"
    ):
        script.sweep(asked, packed=packed, root=place, train=Unlucky(place / "orders"))


class Unlucky(Made):
    """Trains with seed 0 alone."""

    def __call__(self, params: Params, **options: object) -> dict[str, object]:
        if params.train.seed:
            raise RuntimeError("out of paper")
        return super().__call__(params, **options)  # type: ignore[arg-type]

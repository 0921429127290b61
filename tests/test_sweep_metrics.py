"""Sweeps of several metrics, over folds, and pruned within an epoch."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

import sweep as script
from darkroom.errors import UserError
from darkroom.folds import fold_sets
from darkroom.packed import PackedSet
from darkroom.params import Params, with_values
from darkroom.sweeping.sampling import make_pruner
from darkroom.sweeping.standing import front, ranked
from digits import pack_digits
from pipelines import REPOSITORY
from stores import files, project, read, store_at
from test_sweep import LR, runs_of, trials_of, wanted
from train import train_with
from trials import Made, Sized

SEVERAL = {"metric": ["val_accuracy", "num_parameters"], "pruner": "none", "workers": 1,
           "space": {"train.lr": LR, "model.width": {"low": 8, "high": 64, "step": 8}}}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "orders").mkdir()
    return project(tmp_path)


@pytest.fixture
def packed(place: Path) -> PackedSet:
    made = pack_digits(place / "data" / "packed")
    for path in made.folder.glob("test.*"):
        path.unlink()
    return made


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("darkroom.sweeping.search.draw", lambda *_: None)


def several(params: Params, **changes: Any) -> Params:
    return wanted(params, **(SEVERAL | changes))


@pytest.mark.parametrize("sampler", ["nsga2", "tpe"])
def test_several_metrics_are_improved_at_once_and_the_rule_chooses(
    params: Params,
    place: Path,
    packed: PackedSet,
    sampler: str,
    capsys: pytest.CaptureFixture[str],
):
    made = Sized(place / "orders")
    chosen = several(params, trials=15, sampler=sampler, tolerance=0.2)
    found = script.sweep(chosen, packed=packed, root=place, train=made)
    said = capsys.readouterr().out
    values = {trial.number: trial.values for trial in trials_of(place) if trial.values}
    assert len(values) == 15
    close = [each for each in values.values() if each[0] >= max(v[0] for v in values.values()) - 0.2]
    assert values[found["trial"]][1] == min(size for _, size in close)
    assert "sweep.tolerance: 0.2 takes the best num_parameters so close to the best val_accuracy" in said
    study = optuna.load_study(study_name="darkroom", storage=f"sqlite:///{place / 'optuna.db'}")
    assert {trial.number for trial in front(study, chosen.sweep)} == {trial.number for trial in study.best_trials}
    strict = with_values(chosen, {"sweep.tolerance": 0.0}).sweep
    assert ranked(study, strict)[0].values[0] == max(value for value, _ in values.values())
    store = store_at(place)
    (parent,) = runs_of(store, "sweep")
    assert parent.data.metrics["best_num_parameters"] == values[found["trial"]][1]
    assert "num_epochs" not in parent.data.metrics, "there were no reports to count"
    assert {"study/pareto_front.png", "study/study.html"} <= files(store, parent.info.run_id)
    table = list(csv.DictReader(io.StringIO(read(store, parent.info.run_id, "study/trials.csv"))))
    sizes = [float(row["num_parameters"]) for row in table if row["counts"] == "true"]
    assert sizes == [size for _, size in values.values()]


@pytest.mark.usefixtures("no_pictures")
def test_nsga2_proposes_the_same_points_again_also_after_a_stop(params: Params, place: Path, packed: PackedSet):
    def points(study: str, *totals: int) -> list[dict[str, Any]]:
        for total in totals:
            chosen = several(params, study=study, trials=total, sampler="nsga2", tolerance=0)
            script.sweep(chosen, packed=packed, root=place, train=Sized(place / "orders"))
        storage = f"sqlite:///{place / 'optuna.db'}"
        return [trial.params for trial in optuna.load_study(study_name=study, storage=storage).get_trials()]

    whole = points("whole", 14)
    assert len({str(point) for point in whole}) == 14
    assert points("again", 14) == whole
    assert points("stopped", 11, 14)[:11] == whole[:11]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pruner": "median"}, "sweep.pruner: median judges by one metric: none with several"),
        ({"sampler": "cmaes"}, "sweep.sampler: cmaes improves one metric"),
        ({"confirm": {"top": 2, "seeds": 2}}, "sweep.confirm.top: 2 trials are compared by one metric: 0 with several"),
        ({"metric": ["val_loss", "val_loss"]}, "sweep.metric: .* names one twice"),
        ({"metric": ["seconds", "val_loss"]}, "sweep.metric: seconds is no score to be the first of several"),
        ({"metric": "val_loss", "tolerance": 0.1}, "sweep.tolerance: 0.1 means nothing to one metric: 0"),
        ({"metric": "val_loss", "report_every": 0.3}, "sweep.report_every: 0.3 is no whole part of an epoch"),
        ({"metric": "val_loss", "folds": 5, "pruner": "hyperband"}, "sweep.pruner: hyperband judges by epochs"),
        (
            {"metric": "val_loss", "folds": 3, "pruner": "wilcoxon"},
            "sweep.folds: 3 are too few for the pruner wilcoxon",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(params: Params, changes: dict[str, Any], said: str):
    with pytest.raises(UserError, match=said):
        several(params, **changes)


def test_folds_hold_each_picture_once_and_nothing_of_the_test_split(packed: PackedSet, tmp_path: Path):
    sets = fold_sets(packed, 5, tmp_path / "folds")
    whole = [packed.split(name) for name in ("train", "val")]
    everything = sorted(image.tobytes() for split in whole for image in split.images)
    assert sorted(image.tobytes() for fold in sets for image in fold.split("val").images) == everything
    sizes = np.array([np.bincount(fold.split("val").labels, minlength=10) for fold in sets])
    assert np.ptp(sizes, axis=0).max() <= 1, "each class is spread evenly"
    for fold in sets:
        pictures = [split.images for split in map(fold.split, ("train", "val"))]
        assert sorted(image.tobytes() for images in pictures for image in images) == everything
        assert fold.meta.counts["val"] == np.bincount(fold.split("val").labels, minlength=10).tolist()
        assert fold.meta.counts["train"] == np.bincount(fold.split("train").labels, minlength=10).tolist()
        images = fold.split("train").images
        assert isinstance(images, np.memmap)
        again = np.memmap(images.filename or "", images.dtype, "r", images.offset, images.shape)
        assert np.array_equal(again, images), "what is read ahead is what is trained on"
    assert len({fold.meta.sha256 for fold in sets} | {packed.meta.sha256}) == 6
    labelled = {
        image.tobytes(): label for split in whole for image, label in zip(split.images, split.labels, strict=True)
    }
    split = sets[3].split("train")
    assert [labelled[image.tobytes()] for image in split.images] == split.labels.tolist()
    with pytest.raises(UserError, match="there is no split test"):
        sets[0].split("test")
    with pytest.raises(UserError, match=r"sweep.folds: 2000 are more than the \d+ pictures of \d in train and val"):
        fold_sets(packed, 2000, tmp_path / "folds")


@pytest.mark.usefixtures("no_pictures")
def test_a_trial_over_folds_has_a_run_for_each_and_a_killed_one_goes_on_with_them(
    params: Params,
    place: Path,
    packed: PackedSet,
    capsys: pytest.CaptureFixture[str],
):
    (place / "orders" / "kill-1").touch()
    chosen = wanted(params, trials=3, workers=1, folds=5, pruner="wilcoxon", sampler="random")
    found = script.sweep(chosen, packed=packed, root=place, train=Made(place / "orders"))
    store = store_at(place)
    (parent,) = runs_of(store, "sweep")
    trials = {run.data.tags["darkroom.trial"]: run for run in runs_of(store, "trial")}
    assert len(trials) == 3
    assert all(run.data.tags["mlflow.parentRunId"] == parent.info.run_id for run in trials.values())
    best = store.client.get_run(found["run_id"])
    folds = store.children(best.info.run_id)
    assert sorted(run.data.tags["darkroom.fold"] for run in folds) == ["1", "2", "3", "4", "5"]
    assert {run.info.status for run in [*folds, *trials.values()]} == {"FINISHED"}
    assert best.data.metrics["val_accuracy"] == pytest.approx(found["value"])
    assert "(mean of 5 folds)" in capsys.readouterr().out
    counted = [trial for trial in trials_of(place) if "lost" not in trial.user_attrs]
    assert {len(trial.intermediate_values) for trial in counted} <= {4, 5}
    assert parent.data.metrics["num_folds"] >= 13


def test_wilcoxon_stops_what_is_worse_on_every_fold(params: Params):
    chosen = wanted(params, folds=8, pruner="wilcoxon")
    study = optuna.create_study(direction="maximize", pruner=make_pruner(chosen.sweep, chosen.train))
    stopped = []
    for quality in (0.9, 0.5, 0.91):
        trial = study.ask()
        for fold in range(1, 9):
            trial.report(quality + fold / 100, fold)
            if trial.should_prune():
                stopped.append((quality, fold))
                break
        study.tell(trial, quality)
    assert stopped == [(0.5, 4)], "four folds, all worse: 1 in 16"


@pytest.mark.usefixtures("no_pictures")
def test_a_hopeless_trial_stops_within_an_epoch(params: Params, place: Path, packed: PackedSet):
    space = {"train.lr": {"choices": [0.003, 0.00001, 0.00002, 0.00003]}}
    fixed = {"train.epochs": 2, "train.batch_size": 64, "train.threads": 1}
    chosen = with_values(wanted(params, trials=4, workers=1, sampler="grid", report_every=0.25, space=space), fixed)
    script.sweep(chosen, packed=packed, root=place, train=train_with)
    trials = trials_of(place)
    assert max(trials[0].intermediate_values) == 8, "four reports an epoch"
    pruned = [trial for trial in trials if trial.state.name == "PRUNED"]
    assert pruned
    assert all(trial.last_step is not None and trial.last_step < 4 for trial in pruned)
    (parent,) = runs_of(store_at(place), "sweep")
    assert parent.data.metrics["num_epochs"] == sum(trial.last_step or 0 for trial in trials) / 4


def test_a_study_goes_on_with_its_own_reports_and_folds_alone(params: Params, place: Path, packed: PackedSet):
    made = Made(place / "orders")
    script.sweep(wanted(params, trials=1, workers=1), packed=packed, root=place, train=made)
    with pytest.raises(UserError, match="sweep.report_every: 1.0 in the study, 0.5 now"):
        script.sweep(wanted(params, trials=2, report_every=0.5), packed=packed, root=place, train=made)


def test_params_yaml_names_every_choice():
    text = (REPOSITORY / "params.yaml").read_text()
    assert all(word in text for word in ("nsga2", "wilcoxon", "num_parameters"))

"""The train stage: what it writes and records, and how an interrupted, repeated or hopeless training ends."""

from __future__ import annotations

import csv
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.door import Terminated
from darkroom.errors import UserError
from darkroom.models import SavedModel, load_model, save_model
from darkroom.packed import PackedSet
from darkroom.params import Params, with_values
from darkroom.tracking.store import Store
from darkroom.training import EpochRecord
from digits import pack_digits
from stores import points, status, store_at, tags
from train import starting_model, train

SMALL = {
    "model.name": "simple_cnn",
    "model.width": 4,
    "model.blocks": "auto",
    "train.epochs": 3,
    "train.batch_size": 128,
    "train.warmup_epochs": 1,
    "train.threads": 1,
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    return pack_digits(tmp_path_factory.mktemp("packed"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return store_at(tmp_path)


def run_stage(packed: PackedSet, params: Params, store: Store, out: Path, **options: Any) -> dict[str, Any]:
    return train(
        packed,
        augment=params.augment,
        model=params.model,
        train=params.train,
        store=store,
        out=out,
        checkpoints=store.root / ".checkpoints",
        **options,
    )


def test_the_stage_writes_the_model_its_numbers_and_its_curves(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path
) -> None:
    numbers = run_stage(packed, with_values(params, SMALL), store, tmp_path)
    saved = load_model(tmp_path / "models/model.pt")
    assert json.loads((tmp_path / "metrics/train.json").read_text()) == numbers
    assert (saved.run_id, saved.model_sha256) == (numbers["mlflow_run_id"], numbers["model_sha256"])
    assert saved.classes == packed.meta.classes
    assert saved.data_sha256 == packed.meta.sha256
    assert numbers["epochs"] == 3
    assert numbers["steps"] == 3 * 8  # 1000 pictures in steps of 128, the short last one kept
    with (tmp_path / "plots/training/epochs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    assert float(rows[-1]["train_loss"]) == numbers["epoch_train_loss"]


def test_the_run_holds_every_step_and_every_number(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path
) -> None:
    numbers = run_stage(packed, with_values(params, SMALL), store, tmp_path)
    run_id = numbers["mlflow_run_id"]
    run = store.client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["train.batch_size"] == "128"
    assert [step for step, _ in points(store, run_id, "train_loss")] == list(range(1, 25))
    assert {step for step, _ in points(store, run_id, "val_accuracy")} == {1, 2, 3}
    numeric = {
        key: value for key, value in numbers.items() if isinstance(value, int | float) and key != "best_val_accuracy"
    }
    assert {key: run.data.metrics[key] for key in numeric} == numeric
    assert points(store, run_id, "best_val_accuracy")[-1] == (numbers["best_epoch"], numbers["best_val_accuracy"])
    assert run.data.tags["model.sha256"] == numbers["model_sha256"]
    assert run.inputs.dataset_inputs[0].dataset.digest == packed.meta.sha256[:32]


def test_a_training_stopped_in_mid_epoch_goes_on_in_its_run_and_ends_bit_for_bit_the_same(
    packed: PackedSet, params: Params, tmp_path: Path
) -> None:
    small = with_values(params, SMALL | {"train.ema_decay": 0.9, "train.schedule": "one_cycle"})
    whole = run_stage(packed, small, store_at(tmp_path / "whole"), tmp_path / "whole")
    store = store_at(tmp_path / "halves")

    def stop(record: EpochRecord) -> None:
        # the signal arrives now; the loop sees it after this epoch, saves, and ends as SIGTERM ends a process
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Terminated):
        run_stage(packed, small, store, tmp_path / "halves", on_epoch=stop)
    [run_id] = [run.info.run_id for run in store.client.search_runs([store.experiment_id])]
    assert status(store, run_id) == "KILLED"
    numbers = run_stage(packed, small, store, tmp_path / "halves")
    assert numbers["mlflow_run_id"] == run_id
    assert status(store, run_id) == "FINISHED"
    assert numbers["model_sha256"] == whole["model_sha256"]
    assert points(store, run_id, "train_loss") == points(
        store_at(tmp_path / "whole"), whole["mlflow_run_id"], "train_loss"
    )


def test_a_finished_training_is_reused_in_a_run_of_its_own(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run_stage(packed, with_values(params, SMALL), store, tmp_path / "a")
    # memory settings shape no result
    again = run_stage(packed, with_values(params, SMALL | {"train.accumulate": 2}), store, tmp_path / "b")
    assert again["mlflow_run_id"] != first["mlflow_run_id"]
    assert again["model_sha256"] == first["model_sha256"]
    assert f"trained before, in run {first['mlflow_run_id']}" in capsys.readouterr().out
    assert tags(store, again["mlflow_run_id"])["darkroom.reuses"] == first["mlflow_run_id"]
    both = [points(store, numbers["mlflow_run_id"], "train_loss") for numbers in (first, again)]
    assert both[0] == both[1]


def test_fresh_trains_again_and_ends_with_the_same_weights(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_stage(packed, with_values(params, SMALL), store, tmp_path)
    monkeypatch.setenv("DARKROOM_FRESH", "1")
    again = run_stage(packed, with_values(params, SMALL), store, tmp_path)
    assert again["model_sha256"] == first["model_sha256"]
    assert "darkroom.reuses" not in tags(store, again["mlflow_run_id"])


@pytest.mark.parametrize(
    "change", [{"train.lr": 0.05}, {"train.seed": 1}, {"augment.flip": True}, {"model.width": 8}, {"train.epochs": 2}]
)
def test_another_setting_picks_no_checkpoint_up(
    packed: PackedSet, params: Params, change: dict[str, Any], tmp_path: Path
) -> None:
    from train import fingerprint

    def digest(changed: Params) -> str:
        return fingerprint(packed.meta.sha256, changed.augment, changed.model, changed.train, None)

    small = with_values(params, SMALL)
    assert digest(with_values(small, change)) != digest(small)
    assert digest(with_values(small, {"train.threads": 2, "train.checkpoint_every": 5})) == digest(small)


def test_a_loss_that_is_not_finite_fails_the_run_and_names_the_step(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path
) -> None:
    wild = with_values(
        params, SMALL | {"model.name": "mlp", "train.lr": 100, "train.clip_norm": 0, "train.warmup_epochs": 0}
    )
    with pytest.raises(UserError, match=r"train\.lr: 100.* not finite at step \d+"):
        run_stage(packed, wild, store, tmp_path)
    [run] = store.client.search_runs([store.experiment_id])
    assert run.info.status == "FAILED"
    assert int(run.data.tags["darkroom.diverged"]) > 0
    assert not (tmp_path / "models/model.pt").exists()


def test_a_second_process_waits_and_takes_the_first_ones_result(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = with_values(params, SMALL)
    begun = threading.Event()
    results: dict[str, Any] = {}

    def first() -> None:
        results["first"] = run_stage(packed, small, store, tmp_path / "a", on_epoch=lambda _: begun.set())

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(60)
    second = run_stage(packed, small, store, tmp_path / "b")
    thread.join()
    assert "trains exactly this: waiting for it" in capsys.readouterr().out
    assert second["model_sha256"] == results["first"]["model_sha256"]


def test_it_starts_from_an_earlier_model(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = with_values(params, SMALL)
    numbers = run_stage(packed, small, store, tmp_path)
    teacher = tmp_path / "models/init/teacher.pt"
    save_model(teacher, load_model(tmp_path / "models/model.pt"))
    for init in ("models/init/teacher.pt", f"runs:/{numbers['mlflow_run_id']}"):
        warm = with_values(small, {"model.init": init, "train.epochs": 1, "train.lr": 1e-6})
        start = starting_model(warm.model, store)
        assert isinstance(start, SavedModel)
        assert start.model_sha256 == numbers["model_sha256"]
        told = run_stage(packed, warm, store, tmp_path / "warm", init=start)
        assert told["val_accuracy"] == pytest.approx(numbers["val_accuracy"], abs=0.02)


def test_an_earlier_model_that_dvc_does_not_watch_is_refused(
    params: Params, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outside = with_values(params, {"model.init": "elsewhere/teacher.pt"})
    with pytest.raises(UserError, match="lies outside models/init"):
        starting_model(outside.model, store)
    absent = with_values(params, {"model.init": "models/init/teacher.pt"})
    with pytest.raises(UserError, match=r"models/init/teacher\.pt is missing"):
        starting_model(absent.model, store)


def test_the_saved_weights_are_those_of_the_epoch_kept(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path
) -> None:
    numbers = run_stage(packed, with_values(params, SMALL | {"train.keep": "best"}), store, tmp_path)
    network = load_model(tmp_path / "models/model.pt").build()
    val = packed.split("val")
    images = torch.from_numpy(val.images.copy()).permute(0, 3, 1, 2)
    found = (network(images).argmax(1) == torch.from_numpy(val.labels.copy())).double().mean()
    assert float(found) == numbers["val_accuracy"]
    assert numbers["chosen_epoch"] == numbers["best_epoch"]

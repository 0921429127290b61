"""The train stage: what it writes and records, and how an interrupted, repeated or hopeless training ends."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.door import Terminated
from darkroom.errors import UserError
from darkroom.fitting import Parts, Plan
from darkroom.models import SavedModel, load_model, save_model
from darkroom.packed import PackedSet
from darkroom.params import Params, with_values
from darkroom.tracking.fetching import keep_training
from darkroom.tracking.store import Store
from darkroom.training import EpochRecord, PartRecord
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
    assert points(store, run_id, "best_val_accuracy") == [(numbers["best_epoch"], numbers["best_val_accuracy"])]
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


def test_looking_within_epochs_changes_nothing(packed: PackedSet, params: Params, tmp_path: Path) -> None:
    small = with_values(params, SMALL | {"train.ema_decay": 0.9, "model.dropout": 0.2})
    heard: list[PartRecord] = []
    looked = run_stage(packed, small, store_at(tmp_path / "a"), tmp_path / "a", parts=Parts(4, heard.append))
    plain = run_stage(packed, small, store_at(tmp_path / "b"), tmp_path / "b")
    assert looked["model_sha256"] == plain["model_sha256"]
    assert [(part.epoch, part.part) for part in heard] == [(epoch, part) for epoch in (1, 2, 3) for part in (1, 2, 3)]
    assert len({part.val_loss for part in heard}) == 9
    assert heard[-1].val_accuracy > heard[0].val_accuracy
    every: list[PartRecord] = []
    run_stage(packed, small, store_at(tmp_path / "c"), tmp_path / "c", parts=Parts(100, every.append))
    assert [part.part for part in every[:7]] == [12, 25, 37, 50, 62, 75, 87], "8 steps an epoch end 8 parts"
    assert [part.val_loss for part in every if part.part in (25, 50, 75)] == [part.val_loss for part in heard]


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


def test_a_training_of_another_machine_is_fetched_from_its_run(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    first = run_stage(packed, with_values(params, SMALL), store, tmp_path / "one")
    kept = store.root / ".checkpoints" / first["fingerprint"]
    keep_training(store, first["mlflow_run_id"], kept)
    shutil.rmtree(store.root / ".checkpoints")
    second = run_stage(packed, with_values(params, SMALL), store, tmp_path / "two")
    assert f"fetched from run {first['mlflow_run_id']}" in capsys.readouterr().out
    assert {**second, "mlflow_run_id": ""} == {**first, "mlflow_run_id": ""}
    assert tags(store, second["mlflow_run_id"])["darkroom.reuses"] == first["mlflow_run_id"]
    for name in ("train_loss", "val_accuracy"):
        assert points(store, second["mlflow_run_id"], name) == points(store, first["mlflow_run_id"], name)


def test_one_that_was_not_kept_is_done_again_on_as_many_threads(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The winner of a sweep trained on one thread of many; on another number it would be another model."""
    first = run_stage(packed, with_values(params, SMALL), store, tmp_path / "one")
    shutil.rmtree(store.root / ".checkpoints")
    second = run_stage(packed, with_values(params, SMALL | {"train.threads": "auto"}), store, tmp_path / "two")
    assert "trained before on 1 threads, and not kept: done again on as many" in capsys.readouterr().out
    assert (second["threads"], second["model_sha256"]) == (1, first["model_sha256"])


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
    def digest(changed: Params) -> str:
        return Plan(packed, changed.augment, changed.model, changed.train).fingerprint()

    small = with_values(params, SMALL)
    assert digest(with_values(small, change)) != digest(small)
    shapeless = {
        "threads": 2,
        "checkpoint_every": "5 steps",
        "devices": 2,
        "debug": ["profile"],
        "grad_checkpoint": True,
    }
    assert digest(with_values(small, {f"train.{key}": value for key, value in shapeless.items()})) == digest(small)


CONSTANT = SMALL | {"train.schedule": "constant", "train.ema_decay": 0.9}


def test_more_epochs_go_on_where_the_schedule_does_not_look_ahead(
    packed: PackedSet, params: Params, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long, short = (with_values(params, CONSTANT | {"train.epochs": epochs}) for epochs in (4, 2))
    whole = run_stage(packed, long, store_at(tmp_path / "whole"), tmp_path / "whole")
    store = store_at(tmp_path / "parts")
    first = run_stage(packed, short, store, tmp_path / "parts")
    capsys.readouterr()
    second = run_stage(packed, long, store, tmp_path / "parts")
    assert "going on in epoch 3, after step 16" in capsys.readouterr().out
    assert second["model_sha256"] == whole["model_sha256"] != first["model_sha256"]
    assert second["mlflow_run_id"] != first["mlflow_run_id"], "train.epochs is another, and a run keeps its own"
    assert points(store, second["mlflow_run_id"], "train_loss") == points(
        store_at(tmp_path / "whole"), whole["mlflow_run_id"], "train_loss"
    )


def test_fewer_epochs_than_trained_start_over(
    packed: PackedSet, params: Params, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long, short = (with_values(params, CONSTANT | {"train.epochs": epochs}) for epochs in (3, 2))
    store = store_at(tmp_path)
    expected = run_stage(packed, short, store_at(tmp_path / "apart"), tmp_path / "apart")
    run_stage(packed, long, store, tmp_path)
    assert run_stage(packed, short, store, tmp_path)["model_sha256"] == expected["model_sha256"]
    assert "trained for 3 epochs before, train.epochs asks for 2: starting over" in capsys.readouterr().out


def test_more_epochs_of_a_cosine_start_over_and_say_why(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stage(packed, with_values(params, SMALL), store, tmp_path)
    numbers = run_stage(packed, with_values(params, SMALL | {"train.epochs": 4}), store, tmp_path)
    assert numbers["steps"] == 4 * 8
    assert "train.schedule: cosine depends on it, so this training starts over" in capsys.readouterr().out


def test_checkpoints_by_steps_and_how_many_are_kept(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path
) -> None:
    small = with_values(params, SMALL | {"train.checkpoint_every": "3 steps", "train.checkpoint_keep": 3})
    seen = []

    def look(_: EpochRecord) -> None:
        seen.append(sorted(path.name for path in tmp_path.glob(".checkpoints/*/step-*.pt")))

    run_stage(packed, small, store, tmp_path, on_epoch=look)
    assert seen[-1] == ["step-000000018.pt", "step-000000021.pt", "step-000000024.pt"]


def test_finished_trainings_leave_oldest_first_when_they_take_too_much(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path
) -> None:
    def left() -> int:
        return len(list(tmp_path.glob(".checkpoints/*/finished.pt")))

    for seed in (0, 1, 2):
        run_stage(packed, with_values(params, SMALL | {"train.seed": seed}), store, tmp_path)
    assert left() == 3
    size = next(tmp_path.glob(".checkpoints/*/finished.pt")).stat().st_size
    tight = with_values(params, SMALL | {"train.seed": 3, "train.finished_gb": 2.5 * size / 1e9})
    kept = run_stage(packed, tight, store, tmp_path)
    assert left() == 2
    assert run_stage(packed, tight, store, tmp_path)["model_sha256"] == kept["model_sha256"]


def test_a_loss_that_is_not_finite_fails_the_run_and_names_the_step(
    packed: PackedSet, params: Params, store: Store, tmp_path: Path
) -> None:
    wild = with_values(
        params,
        SMALL
        | {
            "model.name": "mlp",
            "train.optimizer": "sgd",
            "train.lr": 100,
            "train.clip_norm": 0,
            "train.warmup_epochs": 0,
        },
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

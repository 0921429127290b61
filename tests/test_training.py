"""The loop: what a step is, what accumulation and precision may change, what is kept."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from darkroom.errors import UserError
from darkroom.models import build_network
from darkroom.training import Augmentation, Diverged, EpochRecord, StepRecord, choose_device, set_threads
from darkroom.training.devices import choose_precision
from darkroom.training.losses import balanced_weights
from darkroom.training.order import split_evenly
from darkroom.training.progress import Progress
from darkroom.training.schedules import PLATEAU_PATIENCE
from darkroom.training.validation import TEMPERATURES, fit_temperature
from sessions import Digits, digits, recipe, records, same_weights, session, small

TRAIN, VAL = digits(0, 600), digits(600, 800)


def skewed() -> Digits:
    """Few of some classes."""
    keep = (TRAIN.labels < 5) | (np.arange(600) % 4 == 0)
    return Digits(TRAIN.images[keep], TRAIN.labels[keep])


# Accumulation


@pytest.mark.parametrize("accumulate", [3, 4, 64])
@pytest.mark.parametrize(
    "augmentation", [Augmentation(), Augmentation(crop_padding=1, erasing=0.3, mixup=0.2, cutmix=0.5)]
)
def test_accumulation_changes_nothing(accumulate: int, augmentation: Augmentation) -> None:
    settings: dict[str, Any] = {
        "epochs": 1, "lr": 0.1, "class_weights": "balanced", "label_smoothing": 0.1, "clip_norm": 1.0,
    }  # fmt: skip
    train = skewed()
    assert len(train.labels) % 64 not in (0, 1)  # a short last step
    one, (epoch_one,) = records(session(small(), train, VAL, augmentation=augmentation, **settings))
    many, (epoch_many,) = records(
        session(small(), train, VAL, augmentation=augmentation, accumulate=accumulate, **settings)
    )
    assert len(one) == len(many) == math.ceil(len(train.labels) / 64)
    for first, second in zip(one, many, strict=True):
        assert second.loss == pytest.approx(first.loss, rel=1e-5)
        assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-4)
    assert epoch_many.train_loss == pytest.approx(epoch_one.train_loss, rel=1e-5)
    assert epoch_many.val_loss == pytest.approx(epoch_one.val_loss, rel=1e-5)


def test_split_is_even_and_whole() -> None:
    assert [rows.stop - rows.start for rows in split_evenly(64, 3)] == [22, 21, 21]
    assert split_evenly(5, 1) == [slice(0, 5)]


def test_a_step_is_torchs_cross_entropy_of_the_whole_batch() -> None:
    train = skewed()
    settings: dict[str, Any] = {"class_weights": "balanced", "label_smoothing": 0.1, "accumulate": 3, "lr": 0.01}
    ours = session(small(), train, VAL, **settings)
    twin = session(small(), train, VAL, **settings)
    cut = twin.batches.cut(0, 0)
    batch = twin.batches.load(cut, slice(None))
    weights = torch.from_numpy(balanced_weights(train.labels, 10))
    expected = functional.cross_entropy(twin.network(batch.images), batch.labels, weight=weights, label_smoothing=0.1)
    record = next(ours.run())
    assert isinstance(record, StepRecord)
    assert record.loss == pytest.approx(float(expected.detach()), rel=1e-5)
    expected.backward()  # type: ignore[no-untyped-call]  # torch's
    norm = torch.stack([p.grad.norm() for p in twin.network.parameters() if p.grad is not None]).norm()
    assert record.grad_norm == pytest.approx(float(norm), rel=1e-5)


def test_balanced_weights_are_inverse_to_the_counts() -> None:
    weights = balanced_weights(np.array([0, 0, 0, 1]), 3)
    assert weights.tolist() == pytest.approx([2 / 3, 2.0, 0.0])


def test_gradient_is_clipped_to_the_norm() -> None:
    ours = session(small(), TRAIN, VAL, clip_norm=0.01, lr=1.0, momentum=0.0)
    before = torch.cat([p.detach().flatten().clone() for p in ours.network.parameters()])
    record = next(ours.run())
    after = torch.cat([p.detach().flatten() for p in ours.network.parameters()])
    assert isinstance(record, StepRecord)
    assert record.grad_norm > 0.1
    assert float((after - before).norm()) == pytest.approx(0.01, rel=1e-3)


# Learning


@pytest.mark.parametrize("name", ["mlp", "simple_cnn", "vgg", "resnet"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_networks_learn_real_digits(name: str, optimizer: str) -> None:
    spec = small(name, width=8) if name in ("vgg", "resnet") else small(name)
    lr = 0.1 if optimizer == "sgd" else 0.01
    ours = session(
        spec, TRAIN, VAL, optimizer=optimizer, lr=lr, epochs=6, schedule="cosine", warmup_epochs=1, precision="auto"
    )
    steps, epochs = records(ours)
    assert len(steps) == 6 * 10
    assert [record.step for record in steps] == list(range(1, 61))
    assert [record.epoch for record in epochs] == [1, 2, 3, 4, 5, 6]
    assert epochs[-1].val_accuracy > 0.75
    assert epochs[-1].val_loss < epochs[0].val_loss
    assert sum(record.num_images for record in steps) == 6 * 600


def test_same_seed_same_bits_other_seed_others() -> None:
    runs = [session(small("resnet", dropout=0.2), TRAIN, VAL, precision="auto", seed=seed) for seed in (0, 0, 1)]
    for run in runs:
        records(run)
    weights = [run.result().weights for run in runs]
    assert same_weights(weights[0], weights[1])
    assert not same_weights(weights[0], weights[2])


def test_validation_gives_the_same_digits_every_time_and_leaves_no_trace() -> None:
    ours = session(small("resnet", dropout=0.5), TRAIN, VAL)
    records(ours)
    weights = {key: value.clone() for key, value in ours.network.state_dict().items()}
    first, second = ours.result(), ours.result()
    assert (first.val_accuracy, first.val_loss, first.temperature) == (
        second.val_accuracy, second.val_loss, second.temperature,
    )  # fmt: skip
    assert same_weights(weights, dict(ours.network.state_dict()))


def test_result_is_what_the_weights_give_in_float32() -> None:
    ours = session(small("resnet"), TRAIN, VAL, precision="auto", ema_decay=0.9, epochs=3)
    records(ours)
    outcome = ours.result()
    network = build_network(small("resnet"))
    network.load_state_dict(outcome.weights)
    images = (torch.from_numpy(VAL.images).permute(0, 3, 1, 2).float() / 255 - 0.3) / 0.35
    with torch.no_grad():
        logits = network.eval()(images)
    labels = torch.from_numpy(VAL.labels)
    assert outcome.val_accuracy == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert outcome.val_loss == pytest.approx(float(functional.cross_entropy(logits, labels)), rel=1e-4)
    assert all(weight.dtype in (torch.float32, torch.int64) for weight in outcome.weights.values())
    assert outcome.num_parameters == sum(parameter.numel() for parameter in network.parameters())
    assert outcome.threads == torch.get_num_threads()


# Precision


def test_precisions_agree_and_none_warns() -> None:
    losses = {}
    for precision in ("fp32", "bf16", "fp16"):
        ours = session(small("resnet"), TRAIN, VAL, precision=precision, accumulate=2, clip_norm=1.0)
        _, epochs = records(ours)
        assert ours.result().precision == precision
        assert all(parameter.dtype == torch.float32 for parameter in ours.network.parameters())
        losses[precision] = epochs[-1].train_loss
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.03)
    assert losses["fp16"] == pytest.approx(losses["fp32"], rel=0.03)


def test_overflowing_fp16_steps_are_skipped_counted_and_do_not_advance_the_schedule() -> None:
    ours = session(small("mlp"), TRAIN, VAL, precision="fp16", schedule="cosine", ema_decay=0.9, epochs=1)
    ours.updates.scaler.load_state_dict(  # type: ignore[no-untyped-call]  # torch's
        {**ours.updates.scaler.state_dict(), "scale": 2.0**24}
    )
    before = {key: value.clone() for key, value in ours.network.state_dict().items()}
    run = ours.run()
    record = next(run)
    assert isinstance(record, StepRecord)
    assert record.skipped
    assert same_weights(before, dict(ours.network.state_dict()))
    steps = [record, *(other for other in run if isinstance(other, StepRecord))]
    skipped = sum(step.skipped for step in steps)
    assert 1 <= skipped < len(steps)
    assert ours.progress.skipped_steps == ours.result().skipped_steps == skipped
    assert ours.updates.average is not None
    assert ours.updates.average.updates == ours.progress.schedule_step == len(steps) - skipped
    taken = 0
    for step in steps:
        assert step.lr == ours.updates.schedule.at(taken)
        taken += not step.skipped


def test_auto_precision_takes_what_the_device_computes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert choose_precision("auto", cpu) == "bf16"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert choose_precision("auto", cpu) == "fp32"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    assert choose_precision("auto", cuda) == "bf16"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    assert choose_precision("auto", cuda) == "fp16"
    assert choose_precision("fp16", cpu) == "fp16"


def test_a_device_that_is_not_here_is_named_with_those_that_are() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    for wanted in ("cuda:7", "mps"):
        with pytest.raises(UserError, match=rf"train.device: '{wanted}' is not here.* there is .*cpu"):
            choose_device(wanted)


def test_threads() -> None:
    before = torch.get_num_threads()
    try:
        assert set_threads(1) == torch.get_num_threads() == 1
        assert set_threads("auto") == torch.get_num_threads() >= 1
    finally:
        torch.set_num_threads(before)


# Batch norm and small sets


@pytest.mark.parametrize("num", [2, 5, 33, 65])
def test_sets_smaller_than_the_batch_and_last_pictures_left_alone_train(num: int) -> None:
    ours = session(small("resnet"), digits(0, num), VAL, batch_size=32, accumulate=4)
    steps, _ = records(ours)
    assert sum(step.num_images for step in steps) == 2 * num
    assert all(step.num_images > 1 for step in steps)


@pytest.mark.parametrize(
    ("num", "settings", "message"),
    [
        (1, {"batch_size": 32}, "1 training picture is too few for batch norm .train.batch_size: 32"),
        (9, {"batch_size": 1}, "train.batch_size: 1 is too small"),
        (9, {"batch_size": 8, "accumulate": 8}, "train.accumulate: 8 leaves single pictures .*at most 4"),
        (0, {}, "no training pictures"),
    ],
)
def test_what_batch_norm_cannot_train_on_is_said_in_a_line(num: int, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        session(small("resnet"), digits(0, num), VAL, **settings)


def test_no_batch_norm_trains_on_single_pictures() -> None:
    steps, _ = records(session(small("mlp"), digits(0, 3), VAL, batch_size=1, epochs=1))
    assert [step.num_images for step in steps] == [1, 1, 1]


def test_packed_sets_read_only_maps_train_without_a_word(tmp_path: Any) -> None:
    maps = []
    for name, array in (("images", TRAIN.images), ("labels", TRAIN.labels)):
        np.save(tmp_path / f"{name}.npy", array)
        maps.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    mapped = Digits(*maps)
    runs = [session(small(), split, split, epochs=1, augmentation=Augmentation(flip=True)) for split in (mapped, TRAIN)]
    losses = [records(run)[1][0].val_loss for run in runs]
    assert losses[0] == losses[1]


# Average, best and last


def test_average_is_what_the_formula_says_and_is_what_counts() -> None:
    ours = session(small("resnet"), TRAIN, VAL, ema_decay=0.8, epochs=1)
    key, mean = "head.weight", ours.network.state_dict()["head.weight"].clone()
    statistics = ours.network.state_dict()["stem.1.running_var"].clone()
    for update, record in enumerate(ours.run()):
        if isinstance(record, StepRecord):
            decay = min(0.8, (1 + update) / (10 + update))
            mean = decay * mean + (1 - decay) * ours.network.state_dict()[key]
            statistics = decay * statistics + (1 - decay) * ours.network.state_dict()["stem.1.running_var"]
    weights = ours.result().weights
    torch.testing.assert_close(weights[key], mean)
    torch.testing.assert_close(weights["stem.1.running_var"], statistics)
    assert int(weights["stem.1.num_batches_tracked"]) == 10
    assert not torch.equal(weights[key], ours.network.state_dict()[key])


def test_best_weights_are_kept_when_asked() -> None:
    # a rate this high makes accuracy jump, so that the best epoch is seldom the last
    settings: dict[str, Any] = {"lr": 0.6, "epochs": 8, "batch_size": 32, "monitor": "val_loss"}
    best, last = (session(small(), TRAIN, VAL, keep=keep, **settings) for keep in ("best", "last"))
    _, epochs = records(best)
    records(last)
    losses = [record.val_loss for record in epochs]
    winner = int(np.argmin(losses))
    assert winner < 7
    outcome = best.result()
    assert outcome.best_epoch == outcome.chosen_epoch == winner + 1
    assert outcome.val_loss == pytest.approx(losses[winner], rel=1e-5)
    assert last.result().chosen_epoch == 8
    assert last.result().best_epoch == winner + 1
    assert last.result().val_loss == pytest.approx(losses[-1], rel=1e-5)
    assert [record.is_best for record in epochs] == [
        loss == min(losses[: place + 1]) for place, loss in enumerate(losses)
    ]


def test_early_stop_counts_epochs_without_a_better_monitor() -> None:
    ours = session(small(), TRAIN, VAL, lr=1e-9, epochs=50, early_stop=3, monitor="val_accuracy")
    _, epochs = records(ours)
    assert len(epochs) == 4  # nothing is learned, so the first stays the best
    outcome = ours.result()
    assert outcome.stopped_early
    assert outcome.epochs == 4


def judged(monitor: str, scores: list[tuple[float, float]], **settings: Any) -> tuple[Progress, list[bool]]:
    progress = Progress()
    chosen = recipe(monitor=monitor, **settings)
    best = []
    for accuracy, loss in scores:
        progress.epoch += 1
        best.append(progress.judge(accuracy, loss, chosen))
    return progress, best


def test_equal_accuracy_with_a_lower_loss_is_better_but_does_not_count_for_patience() -> None:
    progress, best = judged("val_accuracy", [(0.9, 0.5), (0.9, 0.4), (0.9, 0.6), (0.8, 0.1)])
    assert best == [True, True, False, False]
    assert (progress.best_epoch, progress.best_accuracy, progress.best_loss) == (2, 0.9, 0.4)
    assert progress.stale == 3


def test_scores_that_are_not_finite_are_never_best() -> None:
    _, best = judged("val_loss", [(0.1, math.nan), (0.1, 2.0), (0.1, math.inf), (0.1, math.nan)])
    assert best == [False, True, False, False]


def test_plateau_reduces_the_rate_after_its_patience() -> None:
    scores = [(0.5, 1.0)] * (1 + 2 * PLATEAU_PATIENCE)
    progress, _ = judged("val_loss", scores, schedule="plateau")
    assert progress.reductions == 2
    ours = session(
        small(), TRAIN, VAL, lr=1e-9, schedule="plateau", epochs=PLATEAU_PATIENCE + 2, monitor="val_accuracy"
    )
    _, epochs = records(ours)
    assert epochs[0].lr == 1e-9
    assert epochs[-1].lr == pytest.approx(1e-10)


# A loss that is not finite


def test_divergence_stops_the_loop_names_the_step_and_keeps_the_best_weights() -> None:
    ours = session(small(), TRAIN, VAL, epochs=3)
    seen: list[StepRecord | EpochRecord] = []
    with pytest.raises(Diverged) as caught:
        for record in ours.run():
            seen.append(record)
            if isinstance(record, EpochRecord):
                with torch.no_grad():
                    ours.network.get_parameter("head.bias").fill_(math.nan)
    assert caught.value.step == 11  # ten steps an epoch
    last = seen[-1]
    assert isinstance(last, StepRecord)
    assert last.step == 11
    assert math.isnan(last.loss)
    outcome = ours.result()
    assert outcome.chosen_epoch == outcome.best_epoch == 1
    assert all(bool(torch.isfinite(weight).all()) for weight in outcome.weights.values())


def test_divergence_before_an_epoch_ended_has_no_result() -> None:
    ours = session(small(), TRAIN, VAL, lr=1e30)
    with pytest.raises(Diverged):
        records(ours)
    with pytest.raises(Diverged):
        ours.result()
    resumed = session(small(), TRAIN, VAL, lr=1e30)
    resumed.load_state_dict(ours.state_dict())
    with pytest.raises(Diverged):
        next(resumed.run())


# The temperature


def logits_of(temperature: float, num: int = 4000) -> tuple[torch.Tensor, np.ndarray[Any, np.dtype[np.int64]]]:
    """Logits that are `temperature` times too sure of labels drawn from their true probabilities."""
    rng = np.random.default_rng(0)
    true = rng.normal(size=(num, 5)) * 2
    labels = np.array([rng.choice(5, p=np.exp(row) / np.exp(row).sum()) for row in true])
    return torch.from_numpy(true * temperature).float(), labels


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature_is_found(temperature: float) -> None:
    logits, labels = logits_of(temperature)
    fitted = fit_temperature(logits, labels)
    assert fitted == pytest.approx(temperature, rel=0.06)
    targets = torch.from_numpy(labels)
    losses = [
        float(functional.cross_entropy(logits.double() / t, targets)) for t in (fitted, fitted * 1.1, fitted / 1.1)
    ]
    assert losses[0] < min(losses[1:])


def test_temperature_stays_sensible_where_every_picture_is_right() -> None:
    labels = np.arange(100) % 10
    logits = torch.nn.functional.one_hot(torch.from_numpy(labels), 10).float() * 5
    fitted = fit_temperature(logits, labels)
    confidence = float(torch.softmax(logits[0] / fitted, 0).max())
    assert confidence == pytest.approx(1 - 1 / 102, abs=1e-3)  # never surer than the number of pictures allows
    assert TEMPERATURES[0] <= fit_temperature(logits * 1e6, labels) <= TEMPERATURES[1]
    assert fit_temperature(logits * math.nan, labels) == 1.0
    assert fit_temperature(logits * 0, labels) > 0


# Layout


def test_channels_last_is_for_convolutions_and_changes_nothing_beyond_rounding() -> None:
    assert session(small("resnet"), TRAIN, VAL).channels_last
    assert not session(small("mlp"), TRAIN, VAL).channels_last
    losses = [records(session(small("resnet"), TRAIN, VAL, channels_last=on))[1][-1].train_loss for on in (True, False)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_recipe_has_the_fields_of_the_train_section() -> None:
    from darkroom.params import Train
    from darkroom.params.augment import Augment

    extra = {"threads", "devices", "debug", "checkpoint_every", "checkpoint_keep", "finished_gb"}
    assert set(vars(recipe())) == set(Train.model_fields) - extra
    assert set(vars(Augmentation())) == set(Augment.model_fields)
    assert replace(recipe(), epochs=3).epochs == 3

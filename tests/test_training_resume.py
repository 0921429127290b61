"""A training stopped at any record and gone on with in a new session ends bit for bit as if it had not been."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
import torch

from darkroom.training import Augmentation, EpochRecord, Session, StepRecord, start_network
from sessions import digits, recipe, records, same_weights, session, small

TRAIN, VAL = digits(0, 150), digits(150, 250)
AUGMENTATION = Augmentation(crop_padding=1, flip=True, mixup=0.2)
STOPS = (1, 3, 4, 6)
"""records after which the run is stopped; an epoch is three steps and its own record"""


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """The state as a file gives it back."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded


def told(record: StepRecord | EpochRecord) -> tuple[Any, ...]:
    """All of a record but the time it took."""
    if isinstance(record, StepRecord):
        return record.step, record.epoch, record.lr, record.num_images, record.skipped, record.loss, record.grad_norm
    return (
        record.epoch, record.step, record.train_loss, record.val_loss, record.val_accuracy, record.lr,
        record.skipped_steps, record.is_best,
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("schedule", ["cosine", "one_cycle", "plateau", "constant"])
def test_resumed_is_uninterrupted(precision: str, optimizer: str, schedule: str) -> None:
    settings: dict[str, Any] = {
        "precision": precision, "optimizer": optimizer, "schedule": schedule, "epochs": 3, "lr": 0.02,
        "warmup_epochs": 0.5, "accumulate": 2, "ema_decay": 0.9, "clip_norm": 0.5, "keep": "best",
    }  # fmt: skip
    spec = small("resnet", dropout=0.3)

    def start() -> Session:
        return session(spec, TRAIN, VAL, augmentation=AUGMENTATION, **settings)

    whole = start()
    all_records = [told(record) for record in whole.run()]
    assert len(all_records) == 3 * 4
    expected, final = whole.result(), whole.state_dict()
    for stop in STOPS:
        first = start()
        heard = [told(record) for record in itertools.islice(first.run(), stop)]
        second = start()
        second.load_state_dict(stored(first.state_dict()))
        heard += [told(record) for record in second.run()]
        assert heard == all_records
        assert same_weights(second.result().weights, expected.weights)
        assert same_weights(second.state_dict()["network"], final["network"])
        assert same_weights(second.state_dict()["average"]["weights"], final["average"]["weights"])
        for one, other in zip(
            second.state_dict()["optimizer"]["state"].values(), final["optimizer"]["state"].values(), strict=True
        ):
            assert same_weights(one, other)


def test_state_is_a_copy_that_the_run_does_not_reach() -> None:
    ours = session(small(), TRAIN, VAL)
    run = ours.run()
    next(run)
    state = ours.state_dict()
    before = state["network"]["head.weight"].clone()
    list(run)
    assert torch.equal(state["network"]["head.weight"], before)
    assert state["progress"]["steps"] == 1


def test_early_stop_and_patience_survive() -> None:
    settings: dict[str, Any] = {"lr": 1e-9, "epochs": 20, "early_stop": 4, "monitor": "val_accuracy"}
    first = session(small(), TRAIN, VAL, **settings)
    list(itertools.islice(first.run(), 2 * 4 + 1))
    second = session(small(), TRAIN, VAL, **settings)
    second.load_state_dict(stored(first.state_dict()))
    _, epochs = records(second)
    assert [record.epoch for record in epochs] == [3, 4, 5]
    assert second.result().stopped_early


def test_a_finished_session_yields_nothing_more_and_has_its_result() -> None:
    first = session(small(), TRAIN, VAL)
    records(first)
    second = session(small(), TRAIN, VAL)
    second.load_state_dict(stored(first.state_dict()))
    assert list(second.run()) == []
    assert second.finished
    assert same_weights(second.result().weights, first.result().weights)


def test_frozen_backbone_resumes_on_both_sides_of_its_opening() -> None:
    def start() -> Session:
        network = start_network(small("resnet"), seed=0, freeze=True).network
        chosen = recipe(epochs=4, unfreeze_epoch=2)
        return Session(
            network, TRAIN, VAL, recipe=chosen, augmentation=AUGMENTATION, num_classes=10, mean=[0.3], std=[0.35]
        )

    whole = start()
    records(whole)
    for stop in (2, 8, 10, 13):
        first = start()
        list(itertools.islice(first.run(), stop))
        second = start()
        second.load_state_dict(stored(first.state_dict()))
        records(second)
        assert same_weights(second.result().weights, whole.result().weights)

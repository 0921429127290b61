"""Losses and gradients that are no numbers, layers that die, steps that do not fit in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from darkroom.errors import UserError
from darkroom.training import Diverged, EpochRecord, Session
from darkroom.training.batches import Batch, Cut
from darkroom.training.guards import GradientWatch, Norms, group_of
from sessions import digits, records, same_weights, session, small

TRAIN, VAL = digits(0, 150), digits(150, 250)


def poison(ours: Session, *steps: int) -> None:
    """The pictures of these steps (in all, from 1; three an epoch) come as NaN."""
    load = ours.batches.load

    def poisoned(cut: Cut, rows: slice) -> Batch:
        batch = load(cut, rows)
        if ours.progress.steps + 1 in steps:
            batch.images.fill_(float("nan"))
        return batch

    ours.batches.load = poisoned  # type: ignore[method-assign]


def test_a_loss_that_is_not_finite_stops_with_step_and_layer_and_the_best_weights_stay() -> None:
    ours = session(small("resnet"), TRAIN, VAL, epochs=3, keep="last")
    poison(ours, 5)
    with pytest.raises(Diverged, match=r"not finite at step 5: the output of stem\.0 ") as error:
        records(ours)
    assert error.value.step == 5
    outcome = ours.result()
    assert outcome.best_epoch == outcome.chosen_epoch == 1
    assert all(torch.isfinite(weight).all() for weight in outcome.weights.values())


def test_a_gradient_that_is_not_finite_is_named_where_the_loss_is() -> None:
    ours = session(small("mlp"), TRAIN, VAL)
    ours.network.get_submodule("head").register_full_backward_hook(
        lambda _module, inputs, _outputs: (inputs[0] * float("inf"),)
    )
    with pytest.raises(Diverged, match=r"not finite at step 1: the gradient of hidden\.bias "):
        records(ours)


def test_weights_that_are_not_finite_are_named() -> None:
    ours = session(small("mlp"), TRAIN, VAL)
    with torch.no_grad():
        ours.network.get_parameter("head.weight")[0, 0] = float("nan")
    with pytest.raises(Diverged, match=r"the weights head\.weight "):
        records(ours)


def test_skip_leaves_the_step_out_and_nothing_of_it_stays() -> None:
    ours = session(small("resnet"), TRAIN, VAL, on_nonfinite="skip", ema_decay=0.9, schedule="cosine")
    poison(ours, 3, 5)
    steps, epochs = records(ours)
    assert [record.step for record in steps if record.skipped] == [3, 5]
    assert [record.notes for record in steps if record.notes] == [
        ("step 3: the output of stem.0 is not finite: left out (1 of train.nonfinite_limit: 3)",),
        ("step 5: the output of stem.0 is not finite: left out (2 of train.nonfinite_limit: 3)",),
    ]
    assert ours.progress.schedule_step == 6 - 2
    outcome = ours.result()
    assert (outcome.nonfinite_steps, outcome.skipped_steps) == (2, 2)
    assert all(torch.isfinite(weight).all() for weight in outcome.weights.values()), "batch norm's statistics too"
    assert all(record.train_loss < 10 for record in epochs)


def test_skip_stops_beyond_its_limit() -> None:
    ours = session(small("resnet"), TRAIN, VAL, on_nonfinite="skip", nonfinite_limit=1)
    poison(ours, 2, 4)
    with pytest.raises(Diverged) as error:
        records(ours)
    assert error.value.step == 4


def test_rewind_takes_the_last_good_epoch_and_half_the_learning_rate() -> None:
    ours = session(small("resnet"), TRAIN, VAL, on_nonfinite="rewind", epochs=3, lr=0.04)
    poison(ours, 5)
    seen: dict[int, dict[str, Tensor]] = {}
    lrs = []
    for record in ours.run():
        seen[record.step] = {key: value.clone() for key, value in ours.network.state_dict().items()}
        lrs.append(record.lr)
    assert same_weights(seen[5], seen[3]), "the weights of the end of epoch 1"
    assert not same_weights(seen[6], seen[5])
    assert lrs == [0.04] * 5 + [0.04] + [0.02] * 6, "three steps and an epoch's record, three times"
    assert ours.progress.halvings == 1


def test_a_rewound_training_resumes_exactly() -> None:
    def start() -> Session:
        ours = session(small("resnet"), TRAIN, VAL, on_nonfinite="rewind", epochs=3)
        poison(ours, 5)
        return ours

    whole, first, second = start(), start(), start()
    records(whole)
    for _, _record in zip(range(5), first.run(), strict=False):
        pass  # four steps and an epoch: the next is the bad one
    second.load_state_dict(first.state_dict())
    records(second)
    assert same_weights(second.result().weights, whole.result().weights)


def test_groups_are_the_blocks_of_a_network() -> None:
    names = ["stem.0.weight", "stages.1.0.conv1.weight", "head.bias", "layer1.0.bn1.weight", "features.3.weight"]
    assert [group_of(name) for name in names] == ["stem.0", "stages.1", "head", "layer1.0", "features.3"]


def test_gradient_norms_of_an_epoch_are_the_steps_root_mean_square() -> None:
    ours = session(small("resnet"), TRAIN, VAL, epochs=1, lr=1e-12)
    sums: dict[str, float] = {}
    for record in ours.run():
        if isinstance(record, EpochRecord):
            break
        for name, weight in ours.network.named_parameters():
            assert weight.grad is not None
            sums[group_of(name)] = sums.get(group_of(name), 0.0) + float(weight.grad.square().sum())
    assert isinstance(record, EpochRecord)
    assert record.grad_norms.keys() == {"stem.0", "stem.1", "stages.0", "stages.1", "head"}
    for group, norm in record.grad_norms.items():
        assert norm == pytest.approx((sums[group] / 3) ** 0.5, rel=1e-4)
    assert record.notes == ()


def watched(network: nn.Module, *, each: list[float], epochs: int = 1) -> list[str]:
    watch = GradientWatch(network, torch.device("cpu"))
    notes: list[str] = []
    for _ in range(epochs):
        watch.add(Norms(torch.tensor(each), torch.tensor(1.0)))
        notes += watch.end_epoch()[1]
    return notes


def test_dead_vanishing_and_exploding_layers_are_named_once() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    (line,) = watched(network, each=[0.0, 0.0, 1.0, 1.0, 1.0, 1.0], epochs=3)
    assert line.startswith("dead: the gradient of 0.weight was 0 in every step of an epoch")
    (line,) = watched(network, each=[1e-9, 0.0, 1.0, 1.0, 1.0, 1.0], epochs=3)
    assert line.startswith("vanishing: the gradient of 0 is below 1e-07 of the weights")
    (line,) = watched(network, each=[1.0, 1.0, 1.0, 1.0, 1e6, 1.0], epochs=3)
    assert line.startswith("exploding: the gradient of 2 is above 10000 of the weights")
    assert watched(network, each=[1.0] * 6) == []


def test_a_frozen_backbone_is_not_called_dead() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    network[0].requires_grad_(requires_grad=False)
    assert watched(network, each=[0.0, 0.0, 1.0, 1.0]) == []


def limit_memory(ours: Session, most: int) -> None:
    """A machine on which no more than `most` pictures fit."""

    def refuse(_module: nn.Module, inputs: tuple[Tensor]) -> None:
        if ours.network.training and len(inputs[0]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB\nand a page of advice")

    ours.network.register_forward_pre_hook(refuse)


def test_split_finds_the_micro_batch_that_fits_and_gives_the_same_losses() -> None:
    settings: dict[str, Any] = {"on_oom": "split", "batch_size": 64, "epochs": 2}
    plain, ours = (
        session(small("simple_cnn"), TRAIN, VAL, **settings),
        session(small("simple_cnn"), TRAIN, VAL, **settings),
    )
    limit_memory(ours, 16)
    expected, _ = records(plain)
    steps, _ = records(ours)
    assert [record.notes for record in steps][:2] == [
        (
            "out of memory: train.accumulate is 2 from here on (train.on_oom: split)",
            "out of memory: train.accumulate is 4 from here on (train.on_oom: split)",
        ),
        (),
    ]
    for one, other in zip(expected, steps, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-5)
    assert ours.result().accumulate == 4
    resumed = session(small("simple_cnn"), TRAIN, VAL, **settings)
    resumed.load_state_dict(ours.state_dict())
    assert resumed.progress.accumulate == 4


def test_out_of_memory_names_the_micro_batch_and_what_to_set() -> None:
    ours = session(small("simple_cnn"), TRAIN, VAL, accumulate=2)
    limit_memory(ours, 16)
    with pytest.raises(UserError) as error:
        records(ours)
    assert str(error.value) == (
        "out of memory with 32 pictures in a micro-batch (train.batch_size: 64, train.accumulate: 2): train.accumulate: 4 "
        "needs half and changes no result, train.on_oom: split does so by itself, train.grad_checkpoint: true needs less "
        "still (CUDA out of memory. Tried to allocate 20.00 MiB)"
    )


def test_split_gives_up_where_a_single_picture_does_not_fit() -> None:
    ours = session(small("resnet"), TRAIN, VAL, on_oom="split")
    limit_memory(ours, 1)
    with pytest.raises(UserError, match="out of memory with 2 pictures"):
        records(ours)

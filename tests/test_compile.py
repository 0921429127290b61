"""torch.compile: the same losses and plain keys; `auto` tries it on a copy and says why."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from darkroom.errors import UserError
from darkroom.models import build_network
from darkroom.training import compiling
from darkroom.training.compiling import choose_compile
from sessions import digits, records, same_weights, session, small

TRAIN, VAL = digits(0, 150), digits(150, 250)


def test_compiled_agrees_with_eager_keeps_plain_keys_and_stays_chosen() -> None:
    eager, compiled = (session(small("resnet"), TRAIN, VAL, compile=how, ema_decay=0.9) for how in ("off", "on"))
    told = []
    for each in (eager, compiled):
        assert each.passes.settle(each.recipe) == ""
        told.append([step.loss for step in records(each)[0]])
    assert told[1] == pytest.approx(told[0], rel=1e-3)
    assert compiled.result().weights.keys() == eager.result().weights.keys() == compiled.network.state_dict().keys()
    assert (eager.result().compiled, compiled.result().compiled) == (False, True)
    resumed = session(small("resnet"), TRAIN, VAL, compile="auto")
    resumed.load_state_dict(compiled.state_dict())
    assert resumed.passes.compiled, "the choice is the checkpoint's, not a new timing's"


def test_auto_does_not_try_what_cannot_pay() -> None:
    ours = session(small("mlp"), TRAIN, VAL, compile="auto")
    assert ours.passes.settle(ours.recipe).startswith(
        "train.compile: auto takes off (all steps take 0 s, a trial may take"
    )
    assert not ours.passes.compiled


class Slow(nn.Module):
    """Eager is slow here, as Python is; compiled code has no Python in it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            time.sleep(0.02)
        logits: torch.Tensor = self.head(images.flatten(1))
        return logits


def chosen(network: nn.Module, seconds: float, **changes: Any) -> compiling.Choice:
    images = torch.rand(8, 1, 4, 4)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    state = torch.get_rng_state()
    choice = choose_compile(network, images, precision="fp32", steps=10**6, seconds=seconds, **changes)
    assert same_weights(before, dict(network.state_dict())), "the trial is on a copy"
    assert all(weight.grad is None for weight in network.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    return choice


def test_auto_takes_compiled_code_where_it_is_faster() -> None:
    choice = chosen(Slow(), 120)
    assert choice.compiled, choice.why
    assert choice.why.startswith("a step takes ")


def test_auto_is_bounded_and_says_so() -> None:
    started = time.monotonic()
    choice = chosen(Slow(), 0.2)
    assert (choice.compiled, choice.why) == (False, "compiled: not started within 0 s")
    assert time.monotonic() - started < 10


def test_auto_survives_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    choice = chosen(build_network(small("mlp", image_size=4)), 120)
    assert not choice.compiled
    assert choice.why.startswith("compiled: ")


def test_on_says_in_a_line_what_a_compiler_that_fails_says_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = session(small("mlp"), TRAIN, VAL, compile="on")
    ours.passes.settle(ours.recipe)

    def fail(*_: Any, **__: Any) -> None:
        raise torch._inductor.exc.InductorError(RuntimeError("no g++ here"), None)

    monkeypatch.setattr(ours.passes, "model", fail)
    with pytest.raises(UserError, match=r"train\.compile: compiled code does not start here: .*no g\+\+ here"):
        records(ours)

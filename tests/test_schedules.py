"""Learning rates against torch's own schedulers."""

from __future__ import annotations

import math

import pytest
import torch

from darkroom.training.schedules import PLATEAU_FACTOR, Schedule
from sessions import recipe


def schedule(kind: str, *, warmup: float = 0.0, epochs: int = 10, lr: float = 0.4, steps: int = 20) -> Schedule:
    return Schedule.of(recipe(schedule=kind, warmup_epochs=warmup, epochs=epochs, lr=lr), steps)


def test_cosine_is_torchs() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    ours = schedule("cosine")
    for step in range(200):
        assert ours.at(step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_one_cycle_is_torchs() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.4, total_steps=200, pct_start=0.3, cycle_momentum=False
    )
    ours = schedule("one_cycle", warmup=3)
    for step in range(200):
        assert ours.at(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        if step < 199:
            theirs.step()


@pytest.mark.parametrize("kind", ["cosine", "constant", "plateau"])
def test_warm_up_is_linear_and_may_be_a_fraction_of_an_epoch(kind: str) -> None:
    ours = schedule(kind, warmup=0.5)
    assert [ours.at(step) for step in range(10)] == pytest.approx([0.4 * (step + 1) / 11 for step in range(10)])
    assert ours.at(10) == pytest.approx(0.4)


def test_cosine_falls_to_almost_nothing_at_the_last_step() -> None:
    ours = schedule("cosine", warmup=2)
    rates = [ours.at(step) for step in range(200)]
    assert max(rates) == 0.4
    assert rates[40:] == sorted(rates[40:], reverse=True)
    assert 0 < rates[-1] < 1e-4


def test_plateau_reduces_and_constant_stays() -> None:
    assert schedule("constant").at(199) == 0.4
    assert schedule("plateau").at(100, reductions=2) == pytest.approx(0.4 * PLATEAU_FACTOR**2)


@pytest.mark.parametrize("kind", ["cosine", "one_cycle", "constant", "plateau"])
@pytest.mark.parametrize("warmup", [0.0, 0.01, 1.0, 10.0])
def test_every_step_has_a_positive_finite_rate(kind: str, warmup: float) -> None:
    ours = schedule(kind, warmup=warmup)
    assert all(0 < ours.at(step) <= 0.4 + 1e-12 and math.isfinite(ours.at(step)) for step in range(200))

"""The learning rate as a function of the optimizer step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from darkroom.training.recipe import Recipe

START_DIVISOR = 25.0
"""one_cycle starts at lr / 25 …"""
END_DIVISOR = 1e4
"""… and ends at that / 10,000, as torch's OneCycleLR does"""
PLATEAU_FACTOR = 0.1
PLATEAU_PATIENCE = 5
"""epochs without a better monitor before `plateau` multiplies the learning rate by PLATEAU_FACTOR"""


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then cosine to zero, constant, or constant with reductions; or one cycle."""

    kind: str
    lr: float
    """the highest"""
    warmup_steps: int
    total_steps: int

    @classmethod
    def of(cls, recipe: Recipe, steps_per_epoch: int) -> Schedule:
        return cls(
            kind=recipe.schedule,
            lr=recipe.lr,
            warmup_steps=round(recipe.warmup_epochs * steps_per_epoch),
            total_steps=recipe.epochs * steps_per_epoch,
        )

    def at(self, step: int, reductions: int = 0) -> float:
        """Learning rate of step `step` (from 0). `reductions`: times that the plateau was met."""
        if self.kind == "one_cycle":
            return self._one_cycle(step)
        if step < self.warmup_steps:
            return self.lr * (step + 1) / (self.warmup_steps + 1) * PLATEAU_FACTOR**reductions
        if self.kind == "cosine":
            return _cosine(self.lr, 0.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        return self.lr * PLATEAU_FACTOR**reductions

    def _one_cycle(self, step: int) -> float:
        """Up and down along half cosines (Smith and Topin 2017, https://arxiv.org/abs/1708.07120); momentum stays."""
        start = self.lr / START_DIVISOR
        top = max(self.warmup_steps - 1, 0)
        if step < top:
            return _cosine(start, self.lr, step / top)
        return _cosine(self.lr, start / END_DIVISOR, (step - top) / max(self.total_steps - 1 - top, 1))


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * min(share, 1.0))) / 2

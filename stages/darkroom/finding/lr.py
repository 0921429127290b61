"""Learning-rate range test: the loss while the learning rate grows from hardly anything to far too much."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from darkroom.errors import UserError
from darkroom.files import write_text, written_whole
from darkroom.fitting import Plan
from darkroom.training import ALONE, Diverged, StepRecord

LOWEST, HIGHEST = 1e-6, 10.0
SMOOTHING = 0.95
"""decay a step of the loss's average"""
TOO_FAR = 4.0
"""times the least loss, beyond which the test ends"""
FEWEST = 20
"""steps that make a curve"""


@dataclass(frozen=True)
class Ramp:
    """A learning rate that grows by the same factor every step, in place of a schedule."""

    steps: int

    def at(self, step: int, reductions: int = 0) -> float:
        del reductions
        return float(LOWEST * (HIGHEST / LOWEST) ** (step / (self.steps - 1)))


@dataclass(frozen=True)
class Curve:
    """What the test saw."""

    lr: list[float]
    loss: list[float]
    """of the step, as trained"""
    smooth: list[float]

    @property
    def suggestion(self) -> float:
        """Where the smoothed loss falls fastest over the logarithm of the learning rate, up to its minimum (Smith 2017,
        https://arxiv.org/abs/1506.01186; the point as in fastai's lr_find)."""
        least = int(np.argmin(self.smooth))
        slope = np.gradient(np.array(self.smooth), np.log(np.array(self.lr)))
        first = FEWEST // 2  # the average has to settle
        return float(self.lr[first + int(np.argmin(slope[first : max(least, first + 1)]))])

    def table(self) -> str:
        rows = zip(self.lr, self.loss, self.smooth, strict=True)
        return "\n".join(["lr,loss,smoothed_loss", *(f"{lr},{loss},{smooth}" for lr, loss, smooth in rows)]) + "\n"


def range_test(plan: Plan, steps: int, tell: Callable[[int, float, float], None] = lambda *_: None) -> Curve:
    """Trains `plan` for at most `steps` steps on the ramp; `tell` hears of step, learning rate and loss.

    Ends where the loss is TOO_FAR above its least, or no number. Raises UserError where that is before a curve is there.
    """
    session = plan.session(plan.train.threads, ALONE)
    # as many epochs as it takes, and nothing that ends or changes a training
    session.recipe = replace(session.recipe, epochs=10**6, early_stop=0, unfreeze_epoch=0, on_nonfinite="stop")
    session.updates.schedule = Ramp(steps)  # type: ignore[assignment]  # it has the one method that is called
    lrs: list[float] = []
    losses: list[float] = []
    smooth: list[float] = []
    average = 0.0
    try:
        for record in session.run():
            if not isinstance(record, StepRecord) or not math.isfinite(record.loss):
                continue
            average = SMOOTHING * average + (1 - SMOOTHING) * record.loss
            lrs.append(record.lr)
            losses.append(record.loss)
            smooth.append(average / (1 - SMOOTHING ** len(lrs)))
            tell(len(lrs), record.lr, record.loss)
            if len(lrs) == steps or (len(lrs) > FEWEST and smooth[-1] > TOO_FAR * min(smooth)):
                break
    except Diverged:
        pass
    if len(lrs) <= FEWEST:
        raise UserError(f"the loss was no number after {len(lrs)} steps at lr {LOWEST:g} and above: nothing to suggest")
    return Curve(lrs, losses, smooth)


def draw(curve: Curve, folder: Path) -> None:
    """Writes lr.png and lr.csv."""
    write_text(folder / "lr.csv", curve.table())
    with mpl.rc_context({"figure.dpi": 120, "backend": "Agg"}):
        figure, axes = plt.subplots(figsize=(7, 4))
        axes.plot(curve.lr, curve.loss, color="0.8", linewidth=1, label="loss of a step")
        axes.plot(curve.lr, curve.smooth, label="smoothed")
        axes.axvline(curve.suggestion, color="tab:red", linestyle="--", label=f"suggested: {curve.suggestion:.2g}")
        axes.set(xscale="log", xlabel="train.lr", ylabel="train loss", ylim=(None, 1.1 * max(curve.smooth)))
        axes.legend()
        figure.tight_layout()
        with written_whole(folder / "lr.png") as path:
            figure.savefig(path, format="png")
        plt.close(figure)

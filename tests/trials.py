"""Trainings that take no time, for the tests of the sweep: real processes, study and runs, made-up scores."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a worker of the light kind starts in no time
    from darkroom.packed import PackedSet
    from darkroom.params import Params
    from darkroom.sweeping.worker import Line, Task
    from darkroom.tracking.store import Store


@dataclass(frozen=True)
class Made:
    """Stands in for the train stage. Best at train.lr 0.1; 0.9 is an error, 0.6 is NaN after the first epoch."""

    orders: Path
    """a folder: a file `kill-…` there kills the worker that finds it after an epoch; `epoch-1` … say what was reached"""
    seconds: float = 0.0
    """of an epoch"""

    def __call__(self, params: Params, *, packed: PackedSet, store: Store, out: Path, checkpoints: Path,
                 parent: str, name: str, on_epoch: Callable[[Any], None]) -> dict[str, Any]:  # fmt: skip
        from darkroom.params import flatten

        values = flatten({"model": params.model.model_dump(), "train": params.train.model_dump()})
        score = math.nan
        with store.start("train", values, parent=parent, name=name) as run:
            for epoch in range(1, params.train.epochs + 1):
                score = made_epoch(self, params.train.lr, epoch)
                on_epoch(SimpleNamespace(epoch=epoch, val_accuracy=score, val_loss=-score))
        return {"val_accuracy": score, "val_loss": -score, "mlflow_run_id": run.run_id}


class Sized(Made):
    """Knows its size too: the better by accuracy, the larger."""

    def __call__(self, params: Params, **options: Any) -> dict[str, Any]:
        return super().__call__(params, **options) | {"num_parameters": params.model.width * 100, "seconds": 1.0}


@dataclass(frozen=True)
class Lucky(Made):
    """A train.lr below 0.08 is lucky with train.seed 0, and no good with another."""

    def __call__(self, params: Params, **options: Any) -> dict[str, Any]:
        numbers = super().__call__(params, **options)
        luck = 0.5 if params.train.lr < 0.08 and params.train.seed == 0 else 0.0
        return numbers | {"val_accuracy": numbers["val_accuracy"] + luck + params.train.seed / 1000}


@dataclass(frozen=True)
class Light:
    """An opener whose trials have no runs: what is tested is the processes."""

    orders: Path
    seconds: float = 0.0
    epochs: int = 3

    def __call__(self) -> Callable[[Task, Line], dict[str, float]]:
        return self.train

    def train(self, task: Task, line: Line) -> dict[str, float]:
        line.started(f"run-of-{os.getpid()}")
        score = 0.0
        for epoch in range(1, self.epochs + 1):
            score = made_epoch(self, task.values["train.lr"], epoch)
            line.report(epoch, score)
        return {"val_accuracy": score}


class Early(Made):
    """Kills its worker before there is a run, where train.lr is 0.2."""

    def __call__(self, params: Params, **options: Any) -> dict[str, Any]:
        if params.train.lr == 0.2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(params, **options)


class Weak(Light):
    """A worker that dies while it starts, as long as there are files `start-…` in the folder."""

    def __call__(self) -> Callable[[Task, Line], dict[str, float]]:
        for order in self.orders.glob("start-*"):
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__()


class Broken(Light):
    """A worker that cannot start."""

    def __call__(self) -> Callable[[Task, Line], dict[str, float]]:
        from darkroom.errors import UserError

        raise UserError("no film in the camera")


def made_epoch(made: Made | Light, lr: float, epoch: int) -> float:
    """The score after an epoch. Where an order to die lies, one worker takes it and dies."""
    time.sleep(made.seconds)
    (made.orders / f"epoch-{epoch}").touch()
    if lr == 0.9:
        raise RuntimeError("out of paper")
    for order in made.orders.glob("kill-*"):
        try:
            order.unlink()
        except FileNotFoundError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)
    return math.nan if lr == 0.6 else math.exp(-abs(math.log10(lr) + 1)) * (1 - 0.5**epoch)

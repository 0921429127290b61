"""A worker's side: a process that opens the data once, then trains what it is sent.

Nothing heavy is imported here: threads are set before numpy and torch load, which read them once. Two programs that each
start as many threads as there are cores slow each other down tenfold.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, Literal

from darkroom.door import Terminated
from darkroom.errors import UserError

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PARTING_SECONDS = 20
"""How long a worker whose coordinator is gone has to save and close what is open."""


class PrunedError(Exception):
    """The trial is hopeless: raised by `Line.report`, through the loop that trains."""


@dataclass(frozen=True)
class Task:
    """One trial as a worker gets it."""

    number: int
    """of the trial in Optuna's study"""
    values: dict[str, Any]
    """{"train.lr": 0.1, ...}: the point, and what the study holds fixed"""
    run_id: str | None
    """MLflow run of an attempt before, to go on with"""
    place: int
    """among the study's trials, the same for all attempts"""
    again: bool
    """whether there were attempts before"""


@dataclass(frozen=True)
class Ready:
    """The worker has opened what it needs."""


@dataclass(frozen=True)
class Started:
    run_id: str


@dataclass(frozen=True)
class Report:
    step: int
    """reports of the trial, this one included: after an epoch, a part of one, or a fold"""
    value: float


@dataclass(frozen=True)
class Ended:
    """How a trial, or the opening of a worker, ended."""

    state: Literal["complete", "pruned", "failed", "stopped", "unopened"]
    scores: Mapping[str, float] = field(default_factory=dict)
    """val_accuracy and val_loss of a complete trial"""
    error: str = ""


Message = Ready | Started | Report | Ended


@dataclass(frozen=True)
class Line:
    """What a trial says to the coordinator."""

    connection: Connection

    def started(self, run_id: str) -> None:
        self.connection.send(Started(run_id))

    def report(self, step: int, value: float) -> None:
        """Tells the metric so far. Raises PrunedError where the trial is to stop, UserError where it diverged."""
        if not math.isfinite(value):
            raise UserError(f"diverged: the metric is {value} at report {step}")
        try:
            self.connection.send(Report(step, value))
            hopeless = self.connection.recv()
        except (EOFError, OSError):  # the coordinator was killed
            raise Terminated from None
        if hopeless:
            raise PrunedError


Trainer = Callable[[Task, Line], Mapping[str, float]]
"""Trains one trial and gives its scores. What it raises is how the trial ends; PrunedError must come out again."""
Opener = Callable[[], Trainer]
"""Called once in each worker, which pickles it: a function of a module, or a dataclass with __call__."""


def work(connection: Connection, opener: Opener, threads: int) -> None:
    """The main function of a worker's process."""
    os.environ |= dict.fromkeys(THREADS, str(threads))
    signal.signal(signal.SIGTERM, _terminate)
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # a terminal and `kill` signal whole groups; what a worker does then is the coordinator's to say
    threading.Thread(target=_stop_with_coordinator, daemon=True).start()
    with contextlib.suppress(Terminated, EOFError, OSError):
        _serve(connection, opener)


def _serve(connection: Connection, opener: Opener) -> None:
    try:
        trainer = opener()
    except Exception as error:  # said by the coordinator, which stops: every worker would fail alike
        connection.send(Ended("unopened", error=_line(error)))
        return
    connection.send(Ready())
    ended = Ended("complete")
    while ended.state != "stopped" and (task := connection.recv()) is not None:
        ended = _attempt(trainer, task, Line(connection))
        connection.send(ended)


def _attempt(trainer: Trainer, task: Task, line: Line) -> Ended:
    try:
        scores = trainer(task, line)
    except PrunedError:
        return Ended("pruned")
    except (Terminated, KeyboardInterrupt):
        return Ended("stopped")
    except Exception as error:  # one failing trial does not end the sweep
        return Ended("failed", error=_line(error))
    if not all(map(math.isfinite, scores.values())):
        return Ended("failed", error=f"diverged: its scores are {dict(scores)}")
    return Ended("complete", scores)


def _line(error: Exception) -> str:
    text = next(iter(str(error).strip().splitlines()), "")
    return text if isinstance(error, UserError) else traceback.format_exception_only(error)[-1].strip().splitlines()[0]


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


def _stop_with_coordinator() -> None:
    """Ends this process in order when the coordinator is gone, killed outright for one."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(PARTING_SECONDS)
    os._exit(1)

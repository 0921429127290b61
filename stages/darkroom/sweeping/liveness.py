"""Which coordinators of a study are at work: those of this machine by their process, others by their beats."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

import psutil
from optuna.study import Study
from optuna.trial import FrozenTrial

from darkroom.tracking import machine

ALIVE = "darkroom.alive."
"""start of the study's attributes that coordinators count up while they work"""
BEAT_SECONDS = 10.0
GONE_SECONDS = 60.0
"""A coordinator of another machine whose count stood still so long is gone: killed, or its machine off."""


@cache
def own_name() -> str:
    """This process as a coordinator: "host pid started"."""
    return f"{machine.host()} {os.getpid()} {psutil.Process().create_time():.0f}"


@dataclass
class Roll:
    """Counts this process's beats and watches the others'. Clocks of different machines are not compared."""

    study: Study
    _seen: dict[str, tuple[Any, float]] = field(default_factory=dict)
    """by coordinator: its last beat, and when it was first seen here"""
    _beats: int = 0
    _last: float = -BEAT_SECONDS

    def beat(self) -> None:
        """Writes a beat, where the last is long enough ago."""
        if time.monotonic() - self._last >= BEAT_SECONDS:
            self._last, self._beats = time.monotonic(), self._beats + 1
            self.study.set_user_attr(f"{ALIVE}{own_name()}", self._beats)

    def is_gone(self, coordinator: str) -> bool:
        """Whether that one works no longer. Of another machine that takes GONE_SECONDS of watching."""
        if coordinator == own_name():
            return False
        host, pid, started = coordinator.rsplit(" ", 2)
        if host == machine.host():
            return not _runs(int(pid), started)
        beat = self.study.user_attrs.get(f"{ALIVE}{coordinator}")
        known, since = self._seen.get(coordinator, (None, 0.0))
        if coordinator not in self._seen or beat != known:
            self._seen[coordinator] = (beat, time.monotonic())
            return False
        return time.monotonic() - since >= GONE_SECONDS


def age(trial: FrozenTrial) -> float:
    """Seconds since the trial was asked for, by the clock of the machine that did."""
    assert trial.datetime_start is not None
    return (datetime.now() - trial.datetime_start).total_seconds()  # noqa: DTZ005 - as Optuna writes it


def _runs(pid: int, started: str) -> bool:
    """One that was killed and that nobody has buried runs no longer: in a container it stays for ever."""
    try:
        process = psutil.Process(pid)
        return f"{process.create_time():.0f}" == started and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

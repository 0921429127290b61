"""The loop around a session: records go to the store, checkpoints to the disk, progress to the screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from darkroom.door import Terminated, orderly_stop, say
from darkroom.fitting.debugging import Debugging
from darkroom.fitting.parts import Parts
from darkroom.fitting.progress import Progress
from darkroom.fitting.trained import Trained
from darkroom.training import Checkpoints, Diverged, EpochRecord, Session, StepRecord

UNREAD_STEPS = 32
"""Steps whose losses are read from the device together: each reading waits for it."""


class Series(Protocol):
    """Where points go: the tracking room's step series."""

    def add(self, step: int, numbers: dict[str, float]) -> None: ...
    def position(self) -> int: ...
    def cut(self, position: int) -> None: ...


@dataclass(frozen=True)
class Fitting:
    """How a session is run: what is kept, where it is recorded, and how often."""

    checkpoints: Checkpoints
    series: Series
    run_id: str
    checkpoint_every: float | str
    """seconds, or "500 steps" """
    log_every: int
    """steps between points of the step series"""
    on_epoch: Callable[[EpochRecord], None]
    parts: Parts
    show_progress: bool
    debugging: Debugging
    goes_on: bool
    """whether a later training with more epochs may go on from this one's end"""

    def fit(self, session: Session, stored: dict[str, Any] | None) -> Trained:
        """Trains to the end, from the checkpoint `stored` where there is one, and keeps the result as finished.

        SIGTERM and Ctrl-C save a checkpoint at once and then end the process. Raises Diverged, and what `on_epoch` and `parts` raise.
        """
        epochs = [EpochRecord(**each) for each in stored["epochs"]] if stored else []
        begin(session, stored)
        self.series.cut(stored["series"] if stored else 0)
        with (
            Progress(session, shown=self.show_progress) as progress,
            self.debugging.watching(session) as look,
            orderly_stop() as stop,
        ):
            unread: list[StepRecord] = []
            due = Due(self.checkpoint_every, session.progress.steps)
            for record in session.run():
                look(record)
                for note in record.notes:
                    say(note)
                if isinstance(record, EpochRecord):
                    self._read(unread, progress)
                    epochs.append(record)
                    self._add_epoch(record)
                    progress.epoch(record)
                    self.on_epoch(record)
                else:
                    unread.append(record)
                    self.parts.look(session, record)
                if len(unread) == UNREAD_STEPS:
                    self._read(unread, progress)
                session.wants_stop = stop.signal is not None
                if session.stops or due.now(session.progress.steps):
                    self._read(unread, progress)
                    self._save(session, epochs)
                if session.stops:
                    stop.obey()
        trained = Trained(session.result(), epochs, self.run_id)
        state = {"state": self._state(session, epochs)} if self.goes_on else {}
        self.checkpoints.finish(trained.plain() | state)
        return trained

    def _read(self, unread: list[StepRecord], progress: Progress) -> None:
        """Takes the steps' losses from the device into the series."""
        for record in unread:
            if record.step % self.log_every == 0 or record.step == 1:
                numbers = {"train_loss": record.loss, "lr": record.lr, "grad_norm": record.grad_norm}
                self.series.add(record.step, numbers)
        if unread:
            progress.steps(unread)
        unread.clear()

    def _add_epoch(self, record: EpochRecord) -> None:
        numbers = {
            "epoch_train_loss": record.train_loss,
            "val_loss": record.val_loss,
            "val_accuracy": record.val_accuracy,
            "epoch_images_per_s": record.images_per_s,
            "skipped_steps": record.skipped_steps,
        }
        self.series.add(
            record.epoch, numbers | {f"grad_norm/{group}": norm for group, norm in record.grad_norms.items()}
        )

    def _save(self, session: Session, epochs: list[EpochRecord]) -> None:
        self.checkpoints.save(self._state(session, epochs), session.progress.steps)

    def _state(self, session: Session, epochs: list[EpochRecord]) -> dict[str, Any]:
        return {
            "session": session.state_dict(),
            "epochs": [asdict(record) for record in epochs],
            "series": self.series.position(),
            "run_id": self.run_id,
            "threads": torch.get_num_threads(),
        }


@dataclass
class Due:
    """Whether the next checkpoint is due."""

    every: float | str
    """seconds, or "500 steps" """
    steps: int
    """at the last one"""
    time: float = 0.0

    def __post_init__(self) -> None:
        self.time = time.monotonic()

    def now(self, steps: int) -> bool:
        """Whether it is, after `steps` steps; it counts as done then."""
        if isinstance(self.every, str):
            due = steps - self.steps >= int(self.every.split()[0])
        else:
            due = time.monotonic() - self.time >= self.every
        if due:
            self.steps, self.time = steps, time.monotonic()
        return due


def begin(session: Session, stored: dict[str, Any] | None) -> None:
    """Puts the session where the leader's `stored` state left it, or at its beginning; all processes call it."""
    if session.note:
        say(session.note)
    if stored:
        session.load_state_dict(stored["session"])
        say(f"going on in epoch {session.progress.epoch + 1}, after step {session.progress.steps}")
    elif choice := session.passes.settle(session.recipe):
        say(choice)


def follow(session: Session, stored: dict[str, Any] | None) -> None:
    """The part of a process that does not lead: the same steps, and nothing recorded.

    Ends with the leader: at SIGTERM, too. What stops the leader is said there.
    """
    begin(session, stored)
    with orderly_stop() as stop:
        try:
            for _ in session.run():
                session.wants_stop = stop.signal is not None
                if session.stops:
                    raise Terminated
        except Diverged:
            raise SystemExit(1) from None
    session.result()

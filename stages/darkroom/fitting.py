"""A training with its records on the way to the store, its checkpoints on disk and its progress on the screen."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

import torch
from tqdm import tqdm

from darkroom.door import orderly_stop, say
from darkroom.training import Checkpoints, EpochRecord, Outcome, Session, StepRecord

UNREAD_STEPS = 32
"""Steps whose losses are read from the device together: each reading waits for it."""
LINES = 20
"""At most so many epochs are told where there is no terminal to draw a bar on."""


class Series(Protocol):
    """Where points go: the tracking room's step series."""

    def add(self, step: int, numbers: dict[str, float]) -> None: ...
    def position(self) -> int: ...
    def cut(self, position: int) -> None: ...


@dataclass(frozen=True)
class Trained:
    """What a finished training leaves."""

    outcome: Outcome
    epochs: list[EpochRecord]
    run_id: str
    """of the run that trained it"""

    def plain(self) -> dict[str, Any]:
        """As a checkpoint holds it."""
        return {
            "outcome": vars(self.outcome),
            "epochs": [asdict(record) for record in self.epochs],
            "run_id": self.run_id,
        }

    @classmethod
    def of(cls, values: dict[str, Any]) -> Trained:
        """What `plain` gave."""
        return cls(Outcome(**values["outcome"]), [EpochRecord(**each) for each in values["epochs"]], values["run_id"])


@dataclass(frozen=True)
class Fitting:
    """How a session is run: what is kept, where it is recorded, and how often."""

    checkpoints: Checkpoints
    series: Series
    run_id: str
    checkpoint_every: float
    """seconds"""
    log_every: int
    """steps between points of the step series"""
    on_epoch: Callable[[EpochRecord], None]
    show_progress: bool

    def fit(self, session: Session, stored: dict[str, Any] | None) -> Trained:
        """Trains to the end, from the checkpoint `stored` where there is one, and keeps the result as finished.

        SIGTERM and Ctrl-C save a checkpoint at once and then end the process. Raises Diverged, and what `on_epoch` raises.
        """
        epochs = [EpochRecord(**each) for each in stored["epochs"]] if stored else []
        if stored:
            session.load_state_dict(stored["session"])
            say(f"going on in epoch {session.progress.epoch + 1}, after step {session.progress.steps}")
        self.series.cut(stored["series"] if stored else 0)
        with Progress(session, shown=self.show_progress) as progress, orderly_stop() as stop:
            unread: list[StepRecord] = []
            saved = time.monotonic()
            for record in session.run():
                if isinstance(record, EpochRecord):
                    self._read(unread, progress)
                    epochs.append(record)
                    self._add_epoch(record)
                    progress.epoch(record)
                    self.on_epoch(record)
                else:
                    unread.append(record)
                if len(unread) == UNREAD_STEPS:
                    self._read(unread, progress)
                if stop.signal or time.monotonic() - saved >= self.checkpoint_every:
                    self._read(unread, progress)
                    self._save(session, epochs)
                    saved = time.monotonic()
                if stop.signal:
                    stop.obey()
        trained = Trained(session.result(), epochs, self.run_id)
        self.checkpoints.finish(trained.plain())
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
            "images_per_s": record.images_per_s,
            "skipped_steps": record.skipped_steps,
        }
        self.series.add(record.epoch, numbers)

    def _save(self, session: Session, epochs: list[EpochRecord]) -> None:
        state = {
            "session": session.state_dict(),
            "epochs": [asdict(record) for record in epochs],
            "series": self.series.position(),
            "run_id": self.run_id,
            "threads": torch.get_num_threads(),
        }
        self.checkpoints.save(state, session.progress.steps)


class Progress:
    """A bar on a terminal; elsewhere a line an epoch, at most some twenty."""

    def __init__(self, session: Session, *, shown: bool) -> None:
        self._epochs = session.recipe.epochs
        self._lines = shown and not sys.stderr.isatty()
        self._bar = tqdm(
            total=session.batches.order.steps * self._epochs,
            initial=session.progress.steps,
            unit="step",
            disable=not shown or self._lines,
            dynamic_ncols=True,
        )
        self._speed, self._accuracy = 0.0, 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def steps(self, records: list[StepRecord]) -> None:
        self._bar.set_description(f"epoch {records[-1].epoch}/{self._epochs}", refresh=False)
        shown = {"loss": f"{records[-1].loss:.4f}"} if not self._bar.disable else {}
        if self._speed:
            shown |= {"val_accuracy": f"{self._accuracy:.4f}", "images/s": f"{self._speed:.0f}"}
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(len(records))

    def epoch(self, record: EpochRecord) -> None:
        self._speed, self._accuracy = record.images_per_s, record.val_accuracy
        if self._lines and (record.epoch % max(1, self._epochs // LINES) == 0 or record.epoch == self._epochs):
            left = (self._epochs - record.epoch) * record.seconds
            say(
                f"epoch {record.epoch}/{self._epochs}: train loss {record.train_loss:.4f}, validation loss "
                f"{record.val_loss:.4f}, accuracy {record.val_accuracy:.4f}, {record.images_per_s:.0f} images/s, "
                f"{left:.0f} s left"
            )

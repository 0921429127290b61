"""The loop around a session: records go to the store, checkpoints to the disk, progress to the screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from darkroom.door import orderly_stop, say
from darkroom.fitting.progress import Progress
from darkroom.fitting.trained import Trained
from darkroom.training import Checkpoints, EpochRecord, Session, StepRecord

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
            "epoch_images_per_s": record.images_per_s,
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

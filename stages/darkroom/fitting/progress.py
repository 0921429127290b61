"""How far a training is, for the person who waits."""

from __future__ import annotations

import sys
from typing import Self

from tqdm import tqdm

from darkroom.door import say
from darkroom.training import EpochRecord, Session, StepRecord

LINES = 20
"""At most so many epochs are told where there is no terminal to draw a bar on."""


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

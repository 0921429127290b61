"""Scores within an epoch, for who wants to know before its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from darkroom.training import PartRecord, Session, StepRecord


@dataclass(frozen=True)
class Parts:
    """How many parts an epoch has, and who hears of each but the last, which is the epoch's own record.

    A part ends with the step that passes its share of the epoch; an epoch of fewer steps than parts leaves some out.
    """

    number: int = 1
    tell: Callable[[PartRecord], None] = lambda _: None

    def look(self, session: Session, record: StepRecord) -> None:
        """After a step. Raises what `tell` raises."""
        done, steps = session.progress.step, session.batches.order.steps
        part = done * self.number // steps
        if done < steps and part > (done - 1) * self.number // steps:
            self.tell(PartRecord(record.epoch, part, *session.look_ahead()))

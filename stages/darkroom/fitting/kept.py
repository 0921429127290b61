"""What is kept of a training in `.checkpoints`: where to go on, what is finished, and what had to start over."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from darkroom.door import say
from darkroom.files import write_text
from darkroom.fitting.building import Plan
from darkroom.fitting.trained import Trained
from darkroom.training import Checkpoints
from darkroom.training.checkpoints import FINISHED

FAMILY = "family"
"""File with the fingerprint that trainings share which differ in their epochs alone."""


@dataclass(frozen=True)
class Kept:
    """A training's folder, as it was found."""

    checkpoints: Checkpoints
    done: Trained | None
    """a finished training that is what was asked for"""
    stored: dict[str, Any] | None
    """a state to go on from"""


def find_kept(folder: Path, plan: Plan) -> Kept:
    """Looks into the training's folder; hold its lock. Forgets what is there where DARKROOM_FRESH is set."""
    kept = Checkpoints(folder, say, keep=plan.train.checkpoint_keep)
    if os.environ.get("DARKROOM_FRESH"):
        say("DARKROOM_FRESH is set: training anew, whatever is stored")
        kept.clear()
    finished = kept.finished()
    done = Trained.of(finished) if finished else None
    stored = finished.get("state") if finished else kept.latest()
    asked, trained = plan.train.epochs, _epochs(done, stored)
    if trained > asked:
        say(f"trained for {trained} epochs before, train.epochs asks for {asked}: starting over")
        kept.clear()
        done = stored = None
    elif done and done.outcome.epochs < asked and not done.outcome.stopped_early and plan.open_ended:
        done = None
    family = folder.name if plan.open_ended else plan.fingerprint(with_epochs=False)
    if done is None and stored is None:
        _say_why_over(folder, plan, family)
    write_text(folder / FAMILY, family)
    return Kept(kept, done, None if done else stored)


def make_room(checkpoints: Path, gigabytes: float, own: Path) -> None:
    """Removes finished trainings, the oldest first, until those that are left take `gigabytes` at most; never `own`."""
    finished = sorted(checkpoints.glob(f"*/{FINISHED}"), key=lambda path: path.stat().st_mtime, reverse=True)
    left = gigabytes * 1e9
    for path in finished:
        left -= path.stat().st_size
        if left < 0 and path.parent != own:
            Checkpoints(path.parent, say).clear()


def _epochs(done: Trained | None, stored: dict[str, Any] | None) -> int:
    if done:
        return done.outcome.epochs
    return int(stored["session"]["progress"]["epoch"]) if stored else 0


def _say_why_over(folder: Path, plan: Plan, family: str) -> None:
    if plan.open_ended:
        return
    for path in folder.parent.glob(f"*/{FAMILY}"):
        if path.parent != folder and path.read_text() == family and any(path.parent.glob("*.pt")):
            say(
                f"the same with another train.epochs is in {path.parent}: the course of train.schedule: {plan.train.schedule} "
                "depends on it, so this training starts over (constant and plateau go on)"
            )
            return

"""Runs of trials and of their folds: tagged with what they belong to, and gone on with by the next attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from darkroom.params import Sweep
from darkroom.tracking.store import Store

if TYPE_CHECKING:
    from darkroom.sweeping.trial import Trial
    from darkroom.tracking.runs import StageRun

STATE = "darkroom.trial_state"
"""running, complete, pruned, failed or interrupted"""
STUDY = "darkroom.study"
FOLD = "darkroom.fold"
PLACE = "darkroom.place"
"""the trial's number among those that count, which all its attempts share"""


@dataclass(frozen=True)
class TrialStore(Store):
    """The store for one trial: its run goes on with that of a killed attempt, and is known to the coordinator."""

    trial: Trial

    def start(
        self,
        stage: str,
        values: Mapping[str, Any],
        *,
        resume: str | None = None,
        parent: str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> StageRun:
        task = self.trial.task
        earlier = resume or task.run_id
        if earlier is None and task.again and parent is not None:
            earlier = left_behind(self, parent, self.trial.tags())
        known = {**(tags or {}), **self.trial.tags()}
        run = super().start(stage, values, resume=earlier, parent=parent, name=name, tags=known)
        if earlier is not None:
            run.tags(known)  # a run that is gone on with has those of the attempt before
        self.trial.run = run
        self.trial.line.started(run.run_id)
        return run


@dataclass(frozen=True)
class FoldStore(Store):
    """The store for one fold of a trial: its run goes on with that of a killed attempt."""

    fold: int
    """from 1"""
    earlier: str | None

    def start(self, stage: str, values: Mapping[str, Any], *, resume: str | None = None, **options: Any) -> StageRun:
        return super().start(stage, values, resume=resume or self.earlier, tags={FOLD: str(self.fold)}, **options)


def tags_of_trial(sweep: Sweep, number: int, place: int, state: str) -> dict[str, str]:
    return {STUDY: sweep.study, "darkroom.trial": str(number), PLACE: str(place), STATE: state}


def left_behind(store: Store, parent: str, tags: Mapping[str, str]) -> str | None:
    """The run of an attempt at the trial with these `tags` that was killed before the study knew of it."""
    same = (PLACE, STUDY)
    for run in store.children(parent):
        if all(run.data.tags.get(name) == tags[name] for name in same):
            return str(run.info.run_id)
    return None

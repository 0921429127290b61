"""One trial in a worker: the train stage's own function, its own run below the sweep's, and how both end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from darkroom.door import Terminated
from darkroom.packed import PackedSet, open_packed
from darkroom.params import Params, Sweep, with_values
from darkroom.sweeping.objective import DIRECTIONS, best_of
from darkroom.sweeping.worker import Line, PrunedError, Task
from darkroom.tracking import open_store
from darkroom.tracking.store import Store

if TYPE_CHECKING:
    from darkroom.tracking.lineage import Lineage
    from darkroom.tracking.runs import StageRun
    from darkroom.training import EpochRecord

STATE = "darkroom.trial_state"
"""running, complete, pruned, failed or interrupted"""


class Train(Protocol):
    """The train stage as the sweep needs it."""

    def __call__(
        self,
        params: Params,
        *,
        packed: PackedSet,
        store: Store,
        out: Path,
        checkpoints: Path,
        parent: str,
        name: str,
        on_epoch: Callable[[EpochRecord], None],
    ) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class TrialOpener:
    """What a worker needs to open once; its call gives the trainer."""

    train: Train
    params: Params
    packed: Path
    root: Path
    parent: str
    """run id of the sweep"""
    lineage: Lineage
    """gathered by the coordinator, once a sweep"""

    def __call__(self) -> Trainer:
        store = open_store(self.params.tracking, self.root, self.lineage)
        return Trainer(self, open_packed(self.packed), store)


@dataclass(frozen=True)
class Trainer:
    """Trains trials one after another, with the data and the store open."""

    opener: TrialOpener
    packed: PackedSet
    store: Store

    def __call__(self, task: Task, line: Line) -> dict[str, float]:
        """val_accuracy and val_loss of the weights that would become the model."""
        trial = Trial(task, line, self.opener.params.sweep)
        store = TrialStore(**vars(self.store), trial=trial)
        try:
            scores = self._train(trial, store)
        except PrunedError:
            raise
        except (Terminated, KeyboardInterrupt):
            trial.mark("interrupted")
            raise
        except Exception as error:
            if trial.run is None:  # a point that params.yaml does not allow; it has its run all the same
                with (
                    suppress(type(error)),
                    store.start("train", task.values, parent=self.opener.parent, name=trial.name),
                ):
                    raise
            trial.mark("failed")
            raise
        trial.mark("complete")
        return scores

    def _train(self, trial: Trial, store: Store) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="darkroom-trial-") as out:
            numbers = self.opener.train(
                with_values(self.opener.params, trial.task.values),
                packed=self.packed,
                store=store,
                out=Path(out),
                checkpoints=self.opener.root / ".checkpoints",
                parent=self.opener.parent,
                name=trial.name,
                on_epoch=trial.report,
            )
        return {metric: float(numbers[metric]) for metric in DIRECTIONS}


@dataclass
class Trial:
    """What a trial knows of itself while it trains."""

    task: Task
    line: Line
    sweep: Sweep
    run: StageRun | None = None
    best: float | None = None
    """value of the best epoch so far"""

    @property
    def name(self) -> str:
        return f"{self.sweep.study} {self.task.number}"

    def tags(self) -> dict[str, str]:
        return {"darkroom.study": self.sweep.study, "darkroom.trial": str(self.task.number), STATE: "running"}

    def report(self, record: EpochRecord) -> None:
        """Called by the training after each epoch. Raises PrunedError, which ends the run as finished and tagged pruned."""
        assert self.run is not None
        value: float = getattr(record, self.sweep.metric)
        self.best = value if self.best is None else best_of(self.sweep.metric, [value, self.best])
        try:
            self.line.report(record.epoch, value)
        except PrunedError:
            self.run.metrics({f"best_{self.sweep.metric}": self.best})
            self.run.ends("FINISHED")
            self.mark("pruned")
            raise

    def mark(self, state: str) -> None:
        if self.run is not None:
            self.run.tags({STATE: state})


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
        earlier = resume or self.trial.task.run_id
        known = {**(tags or {}), **self.trial.tags()}
        run = super().start(stage, values, resume=earlier, parent=parent, name=name, tags=known)
        if earlier is not None:
            run.tags(known)  # a run that is gone on with has those of the attempt before
        self.trial.run = run
        self.trial.line.started(run.run_id)
        return run

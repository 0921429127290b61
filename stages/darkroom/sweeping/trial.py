"""One trial in a worker: the train stage's own function, its own run below the sweep's, and how both end."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from darkroom.door import Terminated
from darkroom.folds import fold_sets
from darkroom.packed import PackedSet, open_packed
from darkroom.params import Params, Sweep, with_values
from darkroom.sweeping.objective import OTHER, best_of
from darkroom.sweeping.trial_runs import FOLD, STATE, FoldStore, TrialStore, tags_of_trial
from darkroom.sweeping.worker import Line, PrunedError, Task
from darkroom.tracking import open_store
from darkroom.tracking.store import Store

if TYPE_CHECKING:
    from darkroom.tracking.lineage import Lineage
    from darkroom.tracking.runs import StageRun
    from darkroom.training import EpochRecord, PartRecord

FOLDS = ".folds"
"""the folder of folds"""


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
        **options: Any,
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
        packed, num_folds = open_packed(self.packed), self.params.sweep.folds
        return Trainer(self, packed, store, fold_sets(packed, num_folds, self.root / FOLDS) if num_folds else [])


@dataclass(frozen=True)
class Trainer:
    """Trains trials one after another, with the data and the store open."""

    opener: TrialOpener
    packed: PackedSet
    store: Store
    folds: Sequence[PackedSet] = ()
    """what a trial is cross-validated on, instead of the splits of `packed`"""

    def __call__(self, task: Task, line: Line) -> dict[str, float]:
        """val_accuracy, val_loss and what else the sweep improves, of the weights that would become the model."""
        trial = Trial(task, line, self.opener.params.sweep)
        store = TrialStore(**vars(self.store), trial=trial)
        try:
            scores = self._cross_validate(trial, store) if self.folds else self._train(trial, store)
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
        options: dict[str, Any] = {}
        if (reports := self.opener.params.sweep.reports) > 1:
            from darkroom.fitting import Parts

            options["parts"] = Parts(reports, trial.report_part)
        parent, name = self.opener.parent, trial.name
        return self._scores(trial, store, self.packed, parent, name=name, on_epoch=trial.report_epoch, **options)

    def _cross_validate(self, trial: Trial, store: Store) -> dict[str, float]:
        """The mean over all folds, each a training with a run of its own below the trial's.

        A fold that an attempt before had finished is taken from its run, another one goes on in it.
        """
        found: list[dict[str, float]] = []
        with store.start("trial", trial.task.values, parent=self.opener.parent, name=trial.name) as run:
            before = {each.data.tags.get(FOLD): each for each in self.store.children(run.run_id)}
            for number, packed in enumerate(self.folds, 1):
                there, name = before.get(str(number)), f"{trial.name} fold {number}"
                if there is not None and there.info.status == "FINISHED":
                    found.append({metric: there.data.metrics[metric] for metric in trial.metrics})
                else:
                    below = FoldStore(**vars(self.store), fold=number, earlier=there.info.run_id if there else None)
                    found.append(self._scores(trial, below, packed, run.run_id, name=name, on_epoch=lambda _: None))
                trial.report_fold(number, found[-1][self.opener.params.sweep.first])
            means = {metric: statistics.mean(each[metric] for each in found) for metric in trial.metrics}
            first = self.opener.params.sweep.first
            run.metrics({**means, f"{first}_spread": statistics.stdev(each[first] for each in found)})
        return means

    def _scores(self, trial: Trial, store: Store, packed: PackedSet, parent: str, **options: Any) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="darkroom-trial-") as out:
            numbers = self.opener.train(
                with_values(self.opener.params, trial.task.values),
                packed=packed,
                store=store,
                out=Path(out),
                checkpoints=self.opener.root / ".checkpoints",
                parent=parent,
                **options,
            )
        return {metric: float(numbers[metric]) for metric in trial.metrics}


@dataclass
class Trial:
    """What a trial knows of itself while it trains."""

    task: Task
    line: Line
    sweep: Sweep
    run: StageRun | None = None
    values: list[float] = field(default_factory=list)
    """reported so far"""

    @property
    def name(self) -> str:
        return f"{self.sweep.study} {self.task.number}"

    @property
    def metrics(self) -> set[str]:
        """What is known of it at its end."""
        return {*OTHER, *self.sweep.metrics}

    def tags(self) -> dict[str, str]:
        return tags_of_trial(self.sweep, self.task.number, self.task.place, "running")

    def report_epoch(self, record: EpochRecord) -> None:
        """Called by the training after each epoch."""
        self._report(record.epoch * self.sweep.reports, getattr(record, self.sweep.first))

    def report_part(self, record: PartRecord) -> None:
        """Called by the training within an epoch."""
        step = (record.epoch - 1) * self.sweep.reports + record.part
        self._report(step, getattr(record, self.sweep.first))

    def report_fold(self, number: int, value: float) -> None:
        self._report(number, value)

    def _report(self, step: int, value: float) -> None:
        """Raises PrunedError, which ends the run as finished and tagged pruned."""
        assert self.run is not None
        first = self.sweep.first
        self.values.append(value)
        try:
            self.line.report(step, value)
        except PrunedError:
            folds = {first: statistics.mean(self.values)}
            self.run.metrics(folds if self.sweep.folds else {f"best_{first}": best_of(first, self.values)})
            self.run.ends("FINISHED")
            self.mark("pruned")
            raise

    def mark(self, state: str) -> None:
        if self.run is not None:
            self.run.tags({STATE: state})

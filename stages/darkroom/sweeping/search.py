"""One call of the sweep: the parent run, the workers below it, and what is recorded at the end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from optuna.study import Study

from darkroom.door import say
from darkroom.files import write_text
from darkroom.packed import PackedSet
from darkroom.params import Params, Sweep
from darkroom.sweeping.attempts import MOST_KILLS
from darkroom.sweeping.confirming import Confirmed, best_trials, confirmed, name_of, point_of, repeats, table_of
from darkroom.sweeping.coordinator import Coordinator
from darkroom.sweeping.ledger import Ledger
from darkroom.sweeping.pictures import draw
from darkroom.sweeping.pool import Pool, divide, physical_cores
from darkroom.sweeping.progress import Progress
from darkroom.sweeping.sampling import at_random, make_pruner
from darkroom.sweeping.space import Point
from darkroom.sweeping.standing import counts, num_by_state, winner
from darkroom.sweeping.study import PARENT, Terms, is_recorded, is_shared, load, shown, storage_url, train_values
from darkroom.sweeping.trial import Train, TrialOpener
from darkroom.sweeping.trial_runs import left_behind, tags_of_trial
from darkroom.tracking import open_store
from darkroom.tracking.fetching import keep_training
from darkroom.tracking.runs import StageRun
from darkroom.tracking.store import Store

MEETING_SECONDS = 0.5
"""How long the first coordinator of a study waits for another that began in the same moment."""


@dataclass(frozen=True)
class Search:
    """What all of a study's trainings share."""

    ledger: Ledger
    terms: Terms
    params: Params
    packed: PackedSet
    root: Path
    train: Train
    _opened: dict[str, Study] = field(default_factory=dict)
    """studies of repeats, by name: each opening is a new connection"""

    def is_trained(self) -> bool:
        """Whether the study and its repeats have all that was asked for."""
        return not self.ledger.is_open() and ((again := self._again()) is None or not again.is_open())

    def is_done(self) -> bool:
        """Whether its run has the outcome as well: then the study is read, and not added to."""
        return self.is_trained() and is_recorded(self.ledger.study)

    def ranking(self) -> list[Confirmed]:
        """The best first. Raises UserError where no trial is complete."""
        winner(self.ledger.study, self.params.sweep)
        return confirmed(self.ledger, self._again(), best_trials(self.ledger))

    def run(self) -> str:
        """Trains what is missing of the study and of its repeats; where the runs are to be seen.

        Raises what `Coordinator.run` raises, and UserError where no trial is complete.
        """
        store = open_store(self.params.tracking, self.root)
        with _parent(self.ledger.study, store, self.params.sweep) as run:
            counts = _counts(self.packed)
            name, source = self.packed.meta.name, str(self.packed.folder)
            run.dataset(name=name, sha256=self.packed.meta.sha256, source=source, counts=counts)
            if self.is_trained():
                done = self.ledger.num_done()
                say(f"study {self.params.sweep.study}: all {done} trials done; what they came to is recorded now")
            if self.ledger.is_open():
                self._train(self.ledger, store, run.run_id, lambda point: point)
            if (again := self._again()) is not None and again.is_open():
                numbers = ", ".join(str(trial.number) for trial in best_trials(self.ledger))
                say(f"training trials {numbers} again, each with {self.params.sweep.confirm.seeds} fresh seeds")
                self._train(again, store, run.run_id, partial(point_of, self.ledger))
            found = self.ranking()
            _record(self.ledger, run, found)
            study = self.ledger.study
            study.set_user_attr(PARENT, study.user_attrs[PARENT] | {"recorded": self.is_trained()})
            if is_shared(self.params.sweep.storage):
                _keep(store, str(found[0].trial.user_attrs.get("mlflow_run_id")))
        return run.farewell()

    def _again(self) -> Ledger | None:
        """The repeats; None where there are none to be trained, or not yet: the study was cut short by sweep.timeout."""
        trials = best_trials(self.ledger)
        if self.ledger.is_open() or not trials:
            return None
        name = name_of(self.params.sweep, trials)
        if name not in self._opened:
            self._opened[name] = load(storage_url(self.params, self.root), name, self.terms.directions)
        return repeats(self.ledger, self._opened[name], trials, self.params.train.seed)

    def _train(self, ledger: Ledger, store: Store, parent: str, point: Callable[[Point], Point]) -> None:
        params = self.params.model_copy(update={"sweep": ledger.sweep})
        ledger.study.pruner = make_pruner(ledger.sweep, params.train)
        num_workers, threads = divide(ledger.sweep.workers, ledger.sweep.trials - ledger.num_done())
        _announce(ledger, store, params, num_workers, threads)
        base = train_values(params) | self.terms.otherwise

        def values(found: Point) -> dict[str, Any]:
            return base | point(found)

        opener = TrialOpener(self.train, params, self.packed.folder.resolve(), self.root, parent, store.lineage)
        pool, progress = Pool(opener, threads), Progress(ledger)
        try:
            Coordinator(ledger, pool, values, progress, params.sweep.timeout).run(num_workers)
        finally:
            store.mark_vanished()  # the runs of workers that were killed
            _mirror(ledger, store, parent, values)


def _mirror(ledger: Ledger, store: Store, parent: str, values: Callable[[Point], dict[str, Any]]) -> None:
    """Trials that killed their workers too often failed, but nobody was left to say so in their run, or to open one."""
    for trial in ledger.trials():
        attributes = trial.user_attrs
        if not (counts(trial) and "error" in attributes and attributes.get("kills", 0) == MOST_KILLS - 1):
            continue
        tags = tags_of_trial(ledger.sweep, trial.number, attributes["place"], "failed")
        run_id = attributes.get("mlflow_run_id") or left_behind(store, parent, tags)
        if run_id is None:
            with store.start("train", values(ledger.space.decode(trial.params)), parent=parent, tags=tags) as run:
                run_id = run.run_id
        for name, text in {**tags, "darkroom.error": attributes["error"]}.items():
            store.client.set_tag(run_id, name, text)
        store.client.set_terminated(run_id, "FAILED")


def _announce(ledger: Ledger, store: Store, params: Params, num_workers: int, threads: int) -> None:
    sweep = params.sweep
    done = ledger.num_done()
    threads = threads if params.train.threads == "auto" else params.train.threads
    say(
        f"study {sweep.study}: {done} of {sweep.trials} trials done; "
        f"{num_workers} {'worker starts' if num_workers == 1 else 'workers start, each'} with {threads} {'thread' if threads == 1 else 'threads'}"
    )
    if is_shared(sweep.storage) and store.address.file:
        say(
            "runs of this machine's trials go into its own mlflow.db: MLFLOW_TRACKING_URI of a server shows all in one place"
        )
    if keys := at_random(sweep, ledger.space):
        say(
            f"sampler {sweep.sampler} knows no `when`{' and no choices' if sweep.sampler == 'cmaes' else ''}: it draws {', '.join(keys)} at random"
        )
    if params.train.threads != "auto" and params.train.threads * num_workers > physical_cores():
        say(
            f"train.threads: {params.train.threads} for each of {num_workers} workers is more than the {physical_cores()} "
            "cores here, which slows all of them down; auto divides the cores"
        )


def _parent(study: Study, store: Store, sweep: Sweep) -> StageRun:
    """The study's run, gone on with. Its parameters are those of the first day: MLflow lets none change."""
    kept: dict[str, Any] = study.user_attrs.get(PARENT, {})
    values = kept.get("values") or _values(sweep)
    run = _start(store, sweep, values, kept.get("run_id"))
    study.set_user_attr(PARENT, {"run_id": run.run_id, "values": values})
    if not kept and is_shared(sweep.storage):
        time.sleep(MEETING_SECONDS)
        chosen = study.user_attrs[PARENT]
        if chosen["run_id"] != run.run_id:  # of two that began at once the later one's run stays
            store.client.delete_run(run.run_id)
            run = _start(store, sweep, chosen["values"], chosen["run_id"])
    return run


def _start(store: Store, sweep: Sweep, values: Mapping[str, Any], run_id: str | None) -> StageRun:
    tags = {"darkroom.study": sweep.study}
    return store.start("sweep", values, resume=run_id, name=f"sweep {sweep.study}", tags=tags)


def _keep(store: Store, run_id: str) -> None:
    """The winner's finished training goes into its run, if it is on this machine: another one may want to apply it."""
    run = store.find(run_id)
    if run is not None and (digest := run.data.tags.get("darkroom.fingerprint")):
        keep_training(store, run_id, store.root / ".checkpoints" / digest)


def _values(sweep: Sweep) -> dict[str, Any]:
    """The section as parameters of the run, less where it runs; a dimension is one, the storage goes without its password."""
    section = sweep.model_dump(exclude={"space", "storage", "launcher", "jobs", "slurm"})
    space = {
        key: dimension.model_dump(exclude_defaults=True, exclude_none=True) for key, dimension in sweep.space.items()
    }
    return {
        **{f"sweep.{name}": value for name, value in section.items()},
        **{f"sweep.space.{key}": value for key, value in space.items()},
        "sweep.storage": shown(sweep.storage) if sweep.storage else "",
    }


def _counts(packed: PackedSet) -> dict[str, int]:
    """Pictures of the two splits that a sweep reads."""
    return {split: sum(packed.meta.counts[split]) for split in ("train", "val")}


def _record(ledger: Ledger, run: StageRun, found: list[Confirmed]) -> None:
    """What the study came to, on the parent: scores, the winner's values, pictures and the tables of trials."""
    study, sweep = ledger.study, ledger.sweep
    numbers: dict[str, float] = {f"num_{state}": number for state, number in num_by_state(study).items()}
    if len(sweep.metrics) == 1:
        steps = sum(trial.last_step or 0 for trial in ledger.trials())
        numbers |= {"num_folds": steps} if sweep.folds else {"num_epochs": steps / sweep.reports}
    run.metrics(numbers)
    first = found[0]
    point = {f"darkroom.best.{key}": str(value) for key, value in ledger.space.decode(first.trial.params).items()}
    run_id = str(first.trial.user_attrs.get("mlflow_run_id"))
    run.metrics({f"best_{metric}": value for metric, value in zip(sweep.metrics, first.trial.values, strict=True)})
    run.tags({"darkroom.best_trial": str(first.trial.number), "darkroom.best_run": run_id, **point})
    if first.values:
        run.metrics({f"confirmed_{sweep.first}": first.mean, f"confirmed_{sweep.first}_spread": first.spread})
    with tempfile.TemporaryDirectory(prefix="darkroom-sweep-") as folder:
        draw(study, ledger.space, sweep, Path(folder))
        if first.values:
            write_text(Path(folder) / "confirmed.csv", table_of(found))
        run.artifacts(Path(folder), "study")

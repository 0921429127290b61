"""One call of the sweep: the parent run, the workers below it, and what is recorded at the end."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from optuna.study import Study

from darkroom.door import say
from darkroom.packed import PackedSet
from darkroom.params import Params, Sweep
from darkroom.sweeping.coordinator import Coordinator
from darkroom.sweeping.ledger import MOST_KILLS, Ledger
from darkroom.sweeping.pictures import draw
from darkroom.sweeping.pool import Pool, divide, physical_cores
from darkroom.sweeping.progress import Progress
from darkroom.sweeping.sampling import make_pruner
from darkroom.sweeping.space import Point
from darkroom.sweeping.standing import best, counts, num_by_state, winner
from darkroom.sweeping.study import Terms, shown, train_values
from darkroom.sweeping.trial import STATE, Train, TrialOpener
from darkroom.tracking import open_store
from darkroom.tracking.runs import StageRun
from darkroom.tracking.store import Store

PARENT = "darkroom.parent"
"""The study's attribute that names its run, and the values that it was started with."""


def search(ledger: Ledger, terms: Terms, params: Params, *, packed: PackedSet, root: Path, train: Train) -> str:
    """Trains what is missing of the study; where its runs are to be seen.

    Raises what `Coordinator.run` raises, and UserError where no trial is complete.
    """
    store = open_store(params.tracking, root)
    ledger.study.pruner = make_pruner(params.sweep, params.train)
    num_workers, threads = divide(params.sweep.workers, params.sweep.trials - ledger.num_done())
    _announce(ledger, params, num_workers, threads)
    base = train_values(params) | terms.otherwise

    def values(point: Point) -> dict[str, Any]:
        return base | point

    with _parent(ledger.study, store, params.sweep) as run:
        run.dataset(name=packed.meta.name, sha256=packed.meta.sha256, source=str(packed.folder), counts=_counts(packed))
        opener = TrialOpener(train, params, packed.folder.resolve(), root, run.run_id, store.lineage)
        try:
            Coordinator(ledger, Pool(opener, threads), values, Progress(ledger)).run(num_workers)
        finally:
            store.mark_vanished()  # the runs of workers that were killed
            _mirror(ledger, store)
        _record(ledger, run)
        winner(ledger.study, params.sweep.metric)
    return run.farewell()


def _mirror(ledger: Ledger, store: Store) -> None:
    """Trials that killed their workers too often failed, but nobody was left to say so in their run."""
    for trial in ledger.trials():
        attributes = trial.user_attrs
        run_id = attributes.get("mlflow_run_id")
        if run_id and counts(trial) and "error" in attributes and attributes.get("kills", 0) == MOST_KILLS - 1:
            store.client.set_tag(run_id, STATE, "failed")
            store.client.set_tag(run_id, "darkroom.error", attributes["error"])
            store.client.set_terminated(run_id, "FAILED")


def _announce(ledger: Ledger, params: Params, num_workers: int, threads: int) -> None:
    sweep = params.sweep
    done = ledger.num_done()
    threads = threads if params.train.threads == "auto" else params.train.threads
    say(
        f"study {sweep.study}: {done} of {sweep.trials} trials done; "
        f"{num_workers} {'worker starts' if num_workers == 1 else 'workers start, each'} with {threads} {'thread' if threads == 1 else 'threads'}"
    )
    if sweep.sampler == "qmc" and ledger.space.conditional:
        say(f"sampler qmc knows no `when`: it draws {', '.join(ledger.space.conditional)} at random")
    if params.train.threads != "auto" and params.train.threads * num_workers > physical_cores():
        say(
            f"train.threads: {params.train.threads} for each of {num_workers} workers is more than the {physical_cores()} "
            "cores here, which slows all of them down; auto divides the cores"
        )


def _parent(study: Study, store: Store, sweep: Sweep) -> StageRun:
    """The study's run, gone on with. Its parameters are those of the first day: MLflow lets none change."""
    kept: dict[str, Any] = study.user_attrs.get(PARENT, {})
    values = kept.get("values") or _values(sweep)
    tags = {"darkroom.study": sweep.study}
    run = store.start("sweep", values, resume=kept.get("run_id"), name=f"sweep {sweep.study}", tags=tags)
    study.set_user_attr(PARENT, {"run_id": run.run_id, "values": values})
    return run


def _values(sweep: Sweep) -> dict[str, Any]:
    """The section as parameters of the run; a dimension is one, the storage goes without its password."""
    section = sweep.model_dump(exclude={"space", "storage"})
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


def _record(ledger: Ledger, run: StageRun) -> None:
    """What the study came to, on the parent: scores, the best trial's values, pictures and the table of trials."""
    study, metric = ledger.study, ledger.sweep.metric
    numbers = {f"num_{state}": number for state, number in num_by_state(study).items()}
    run.metrics(numbers | {"num_epochs": sum(trial.last_step or 0 for trial in ledger.trials())})
    found = best(study, metric)
    if found is not None and found.value is not None:
        point = {f"darkroom.best.{key}": str(value) for key, value in ledger.space.decode(found.params).items()}
        run_id = str(found.user_attrs.get("mlflow_run_id"))
        run.metrics({f"best_{metric}": found.value})
        run.tags({"darkroom.best_trial": str(found.number), "darkroom.best_run": run_id, **point})
    with tempfile.TemporaryDirectory(prefix="darkroom-sweep-") as folder:
        draw(study, ledger.space, metric, Path(folder))
        run.artifacts(Path(folder), "study")

"""Trains the network on the packed training split; goes on where an interrupted training stopped.

Reads   data/packed, models/init
Writes  models/model.pt, metrics/train.json, plots/training
Keys    augment, model, train
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.door import enter, root, say
from darkroom.errors import UserError
from darkroom.params import Params, read_params

if TYPE_CHECKING:
    from darkroom.fitting import Kept, Parts, Plan, Trained
    from darkroom.models import SavedModel
    from darkroom.packed import PackedSet
    from darkroom.params import Augment, Model, Train
    from darkroom.tracking.runs import StageRun
    from darkroom.tracking.store import Store
    from darkroom.training import EpochRecord, World

KEYS: tuple[str, ...] = ("augment", "model", "train")
INIT = Path("models/init")


def main() -> None:
    params = read_params()
    from darkroom.fitting.launching import launch, processes_wanted

    if (processes := processes_wanted(params.train.devices)) > 1:
        launch(Path(__file__), processes)
        return
    from darkroom.training import choose_device, join
    from darkroom.training.world import own_device

    with join(choose_device(own_device(params.train.device))) as world:
        if world.leads:
            _lead(params, world)
        else:
            _follow(params, world)


def _lead(params: Params, world: World) -> None:
    from darkroom.packed import open_packed
    from darkroom.tracking import open_store

    packed = open_packed(Path("data/packed"), "train", "val")
    store = open_store(params.tracking, root())
    checkpoints = root() / ".checkpoints"
    numbers = train_with(
        params, packed=packed, store=store, out=Path(), checkpoints=checkpoints, show_progress=True, world=world
    )
    say(
        f"validation: accuracy {numbers['val_accuracy']:.4f}, loss {numbers['val_loss']:.4f} after "
        f"{numbers['epochs']} epochs; {numbers['images_per_s']:.0f} images/s in {numbers['precision']}"
    )
    say("wrote models/model.pt, metrics/train.json, plots/training; next: dvc repro evaluate")
    say(store.farewell(numbers["mlflow_run_id"]))


def _follow(params: Params, world: World) -> None:
    """What a process does that trains with the leader: it learns from it whether and where to begin."""
    from darkroom.fitting import Plan, follow
    from darkroom.packed import open_packed

    plan = Plan(open_packed(Path("data/packed"), "train", "val"), params.augment, params.model, params.train)
    told: dict[str, Any] = world.share({})
    if not told["done"]:
        follow(plan.session(told["threads"], world), told["stored"])


def train(
    packed: PackedSet,
    *,
    augment: Augment,
    model: Model,
    train: Train,
    store: Store,
    out: Path,
    checkpoints: Path,
    init: SavedModel | None = None,
    parent: str | None = None,
    name: str | None = None,
    on_epoch: Callable[[EpochRecord], None] = lambda _: None,
    parts: Parts | None = None,
    show_progress: bool = False,
    world: World | None = None,
) -> dict[str, Any]:
    """Trains, records the run in `store`, writes the stage's files below `out`, and gives what metrics/train.json holds.

    Checkpoints lie in `checkpoints`/<fingerprint>: an interrupted training of the same fingerprint is gone on with in
    its own run, a finished one is used as it is, in a new run that carries its series. `init` holds the weights to
    start from; `parent` and `name` are the run's. `on_epoch` sees every epoch, `parts` looks within
    them; what they raise ends training and run.
    `world` is that of several processes, of which this one leads.
    Raises UserError where device, network and pictures do not fit, and where the loss diverges.
    """
    from darkroom.files import lock
    from darkroom.fitting import Parts, Plan, find_kept, make_room
    from darkroom.tracking.fetching import fetch_training
    from darkroom.training import ALONE

    plan = Plan(packed, augment, model, train, init)
    digest = plan.fingerprint()
    folder = checkpoints / digest
    with lock(folder / "lock", waiting=lambda holder: say(f"{holder} trains exactly this: waiting for it")):
        threads = None if parent else fetch_training(store, digest, folder)
        kept = find_kept(folder, plan)
        resume = kept.stored["run_id"] if kept.stored else None
        with store.start("train", plan.values(), resume=resume, parent=parent, name=name) as run:
            run.tags({"darkroom.fingerprint": digest, "data.sha256": packed.meta.sha256})
            _record_data(run, packed)
            if kept.done:
                (world or ALONE).share({"done": True})
                run.series(folder / "series.jsonl")
                trained = kept.done
                _tell_reuse(trained, run, on_epoch)
            else:
                every = store.tracking.log_every
                trained = _fit(
                    plan, kept, run, every, on_epoch, parts or Parts(), show_progress, world or ALONE, threads
                )
            make_room(checkpoints, train.finished_gb, folder)
            return _write(trained, plan, run, out, digest)


def train_with(params: Params, *, packed: PackedSet, store: Store, **options: Any) -> dict[str, Any]:
    """`train` by all of `params`: the stage itself, a sweep's trial, the same settings with another seed."""
    init = starting_model(params.model, store)
    return train(
        packed, augment=params.augment, model=params.model, train=params.train, store=store, init=init, **options
    )


def plan_with(params: Params, *, packed: PackedSet, store: Store) -> Plan:
    """The training that `train_with` would do."""
    from darkroom.fitting import Plan

    return Plan(packed, params.augment, params.model, params.train, starting_model(params.model, store))


def starting_model(model: Model, store: Store) -> SavedModel | None:
    """The earlier model that `model.init` names. Raises UserError where there is none, or where DVC would not see it."""
    if not model.init:
        return None
    from darkroom.models import load_model
    from darkroom.tracking.fetching import fetch_model, is_model_uri

    if is_model_uri(model.init):
        fetched = fetch_model(store, model.init)
        say(f"starting from {fetched.description}")
        return load_model(fetched.path, f"the training of {model.init} again")
    path = Path(model.init)
    if INIT not in path.parents:
        raise UserError(f"model.init: {model.init!r} lies outside {INIT}, where DVC watches it: copy it there")
    if not path.exists():
        copied = f" (an experiment in a temporary copy sees only what git or DVC tracks: dvc add {path})"
        raise UserError(f"model.init: {path} is missing{copied if (root() / path).exists() else ''}")
    return load_model(path, "another file's training, or name a models/model.pt")


def _record_data(run: StageRun, packed: PackedSet) -> None:
    counts = {split: sum(each) for split, each in packed.meta.counts.items()}
    run.dataset(name=packed.meta.name, sha256=packed.meta.sha256, source=str(packed.folder), counts=counts)
    run.metrics({f"data_num_{split}": count for split, count in counts.items()})


def _tell_reuse(trained: Trained, run: StageRun, on_epoch: Callable[[EpochRecord], None]) -> None:
    say(f"trained before, in run {trained.run_id}: its weights are used (DARKROOM_FRESH=1 trains anew)")
    run.tags({"darkroom.reuses": trained.run_id})
    for record in trained.epochs:
        on_epoch(record)


def _fit(
    plan: Plan,
    kept: Kept,
    run: StageRun,
    log_every: int,
    on_epoch: Callable[[EpochRecord], None],
    parts: Parts,
    show_progress: bool,
    world: World,
    recorded: int | None,
) -> Trained:
    from darkroom.fitting import Debugging, Fitting
    from darkroom.training import Diverged

    threads = plan.train.threads
    if threads == "auto" and world.size == 1:
        threads = kept.stored["threads"] if kept.stored else recorded or "auto"
    world.share({"done": False, "threads": threads, "stored": kept.stored})
    fitting = Fitting(
        kept.checkpoints,
        run.series(kept.checkpoints.folder / "series.jsonl"),
        run.run_id,
        plan.train.checkpoint_every,
        log_every,
        on_epoch,
        parts,
        show_progress,
        Debugging(tuple(plan.train.debug), run.artifact),
        goes_on=plan.open_ended,
    )
    try:
        return fitting.fit(plan.session(threads, world), kept.stored)
    except Diverged as error:
        run.diverged(error.step)
        raise UserError(f"train.lr: {plan.train.lr}: {error}") from None


def _write(trained: Trained, plan: Plan, run: StageRun, out: Path, digest: str) -> dict[str, Any]:
    """The stage's files, and their content in the run."""
    from darkroom.files import write_json, write_text
    from darkroom.models import save_model

    saved = trained.saved_model(plan.spec(), plan.packed.meta, run.run_id)
    known = {"model_sha256": saved.model_sha256, "fingerprint": digest, "mlflow_run_id": run.run_id}
    numbers = {**trained.numbers(), **known}
    save_model(out / "models/model.pt", saved)
    write_json(out / "metrics/train.json", numbers)
    write_text(out / "plots/training/epochs.csv", trained.table())
    run.tags(
        {
            "model.sha256": saved.model_sha256,
            **{f"darkroom.{key}": str(value) for key, value in saved.made_with.items()},
        }
    )
    run.model(saved.model_sha256)
    run.reproduced_by(plan.settled(trained.outcome))
    shown = {key: value for key, value in numbers.items() if isinstance(value, int | float)}
    shown.pop("best_val_accuracy")  # stands at its step alone
    run.metrics(shown)
    run.metrics({"best_val_accuracy": trained.outcome.best_val_accuracy}, step=trained.outcome.best_epoch)
    run.artifact(out / "models/model.pt", "model")
    run.artifact(out / "metrics/train.json", "metrics")
    run.artifacts(out / "plots/training", "plots/training")
    return numbers


if __name__ == "__main__":
    enter(main)

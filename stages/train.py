"""Trains the network on the packed training split; goes on where an interrupted training stopped.

Reads   data/packed, models/init
Writes  models/model.pt, metrics/train.json, plots/training
Keys    augment, model, train
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.door import enter, root, say
from darkroom.errors import UserError
from darkroom.params import flatten, read_params

if TYPE_CHECKING:
    from darkroom.fitting import Fitting, Trained
    from darkroom.models import NetworkSpec, SavedModel
    from darkroom.packed import Meta, PackedSet
    from darkroom.params import Augment, Model, Train
    from darkroom.tracking.runs import StageRun
    from darkroom.tracking.store import Store
    from darkroom.training import EpochRecord, Session

KEYS: tuple[str, ...] = ("augment", "model", "train")
INIT = Path("models/init")
SHAPELESS = {"accumulate", "device", "threads", "checkpoint_every"}
"""Keys of `train` that shape no result: a checkpoint of other values serves as well."""


def main() -> None:
    params = read_params()
    from darkroom.packed import open_packed
    from darkroom.tracking import open_store

    packed = open_packed(Path("data/packed"))
    store = open_store(params.tracking, root())
    numbers = train(
        packed,
        augment=params.augment,
        model=params.model,
        train=params.train,
        store=store,
        out=Path(),
        checkpoints=root() / ".checkpoints",
        init=starting_model(params.model, store),
        show_progress=True,
    )
    say(
        f"validation: accuracy {numbers['val_accuracy']:.4f}, loss {numbers['val_loss']:.4f} after "
        f"{numbers['epochs']} epochs; {numbers['images_per_s']:.0f} images/s in {numbers['precision']}"
    )
    say("wrote models/model.pt, metrics/train.json, plots/training; next: dvc repro evaluate")
    say(store.farewell(numbers["mlflow_run_id"]))


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
    show_progress: bool = False,
) -> dict[str, Any]:
    """Trains, records the run in `store`, writes the stage's files below `out`, and gives what metrics/train.json holds.

    Checkpoints lie in `checkpoints`/<fingerprint>: an interrupted training of the same fingerprint is gone on with in
    its own run, a finished one is used as it is, in a new run that carries its series. `init` holds the weights to
    start from; `parent` and `name` are the run's. `on_epoch` sees every epoch; what it raises ends training and run.
    Raises UserError where device, network and pictures do not fit, and where the loss diverges.
    """
    from darkroom.files import lock
    from darkroom.fitting import Fitting, Trained
    from darkroom.training import Checkpoints

    digest = fingerprint(packed.meta.sha256, augment, model, train, init)
    folder = checkpoints / digest
    with lock(folder / "lock", waiting=lambda holder: say(f"{holder} trains exactly this: waiting for it")):
        kept = Checkpoints(folder, say)
        if os.environ.get("DARKROOM_FRESH"):
            say("DARKROOM_FRESH is set: training anew, whatever is stored")
            kept.clear()
        done = kept.finished()
        stored = None if done else kept.latest()
        resume = stored["run_id"] if stored else None
        with store.start("train", _values(augment, model, train), resume=resume, parent=parent, name=name) as run:
            run.tags({"darkroom.fingerprint": digest, "data.sha256": packed.meta.sha256})
            _record_data(run, packed)
            series = run.series(folder / "series.jsonl")
            if done:
                trained = Trained.of(done)
                _tell_reuse(trained, run, on_epoch)
            else:
                threads = stored["threads"] if stored and train.threads == "auto" else train.threads
                session = _session(packed, augment, model, train, init, threads)
                fitting = Fitting(
                    kept, series, run.run_id, train.checkpoint_every, store.tracking.log_every, on_epoch, show_progress
                )
                trained = _fit(fitting, session, stored, run, train.lr)
            return _write(trained, packed.meta, model, run, out, digest)


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


def fingerprint(data_sha256: str, augment: Augment, model: Model, train: Train, init: SavedModel | None) -> str:
    """A hash of all that shapes a training's result: settings, data, starting weights and code."""
    import json

    from darkroom.files import sha256_bytes, sha256_code
    from darkroom.training import choose_device, choose_precision

    here = Path(__file__).resolve().parent / "darkroom"
    shaping = {
        "augment": augment.model_dump(),
        "model": model.model_dump(exclude={"init"}),
        "train": train.model_dump(exclude=SHAPELESS)
        | {"precision": choose_precision(train.precision, choose_device(train.device))},
        "init": init.model_sha256 if init else None,
        "data": data_sha256,
        "code": sha256_code(here / "training", here / "models"),
    }
    return sha256_bytes(json.dumps(shaping, sort_keys=True).encode())[:32]


def _values(augment: Augment, model: Model, train: Train) -> dict[str, Any]:
    return flatten({"augment": augment.model_dump(), "model": model.model_dump(), "train": train.model_dump()})


def _spec(model: Model, meta: Meta) -> NetworkSpec:
    from darkroom.models import network_spec

    return network_spec(
        model.name,
        width=model.width,
        blocks=model.blocks,
        dropout=model.dropout,
        channels=meta.channels,
        image_size=meta.image_size,
        num_classes=len(meta.classes),
    )


def _session(
    packed: PackedSet, augment: Augment, model: Model, train: Train, init: SavedModel | None, threads: Any
) -> Session:
    from darkroom.models import check_image_size
    from darkroom.training import Augmentation, Recipe, Session, set_threads, start_network

    spec = _spec(model, packed.meta)
    check_image_size(spec)
    set_threads(threads)
    start = start_network(
        spec, seed=train.seed, pretrained=model.pretrained, init=init, freeze=model.freeze == "backbone"
    )
    for note in start.notes:
        say(note)
    return Session(
        start.network,
        packed.split("train"),
        packed.split("val"),
        recipe=Recipe(**train.model_dump(include={field.name for field in fields(Recipe)})),
        augmentation=Augmentation(**augment.model_dump()),
        num_classes=spec.num_classes,
        mean=packed.meta.mean,
        std=packed.meta.std,
    )


def _record_data(run: StageRun, packed: PackedSet) -> None:
    counts = {split: sum(each) for split, each in packed.meta.counts.items()}
    run.dataset(name=packed.meta.name, sha256=packed.meta.sha256, source=str(packed.folder), counts=counts)
    run.metrics({f"data_num_{split}": count for split, count in counts.items()})


def _tell_reuse(trained: Trained, run: StageRun, on_epoch: Callable[[EpochRecord], None]) -> None:
    say(f"trained before, in run {trained.run_id}: its weights are used (DARKROOM_FRESH=1 trains anew)")
    run.tags({"darkroom.reuses": trained.run_id})
    for record in trained.epochs:
        on_epoch(record)


def _fit(fitting: Fitting, session: Session, stored: dict[str, Any] | None, run: StageRun, lr: float) -> Trained:
    from darkroom.training import Diverged

    try:
        return fitting.fit(session, stored)
    except Diverged as error:
        run.diverged(error.step)
        raise UserError(f"train.lr: {lr}: {error}") from None


def _write(trained: Trained, meta: Meta, model: Model, run: StageRun, out: Path, digest: str) -> dict[str, Any]:
    """The stage's files, and their content in the run."""
    from darkroom.files import write_json, write_text
    from darkroom.models import save_model

    saved = trained.saved_model(_spec(model, meta), meta, run.run_id)
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
    run.metrics({key: value for key, value in numbers.items() if isinstance(value, int | float)})
    run.metrics({"best_val_accuracy": trained.outcome.best_val_accuracy}, step=trained.outcome.best_epoch)
    run.artifact(out / "models/model.pt", "model")
    run.artifact(out / "metrics/train.json", "metrics")
    run.artifacts(out / "plots/training", "plots/training")
    return numbers


if __name__ == "__main__":
    enter(main)

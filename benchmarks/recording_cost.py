"""What recording costs: the train stage's own function with its MLflow store, and with one that keeps nothing.

    python benchmarks/recording_cost.py [--quick] [--rounds 2] [--epochs 6]

Trains a ResNet on Fashion-MNIST (about 5 minutes on 2 cores). Recorded: every step's loss, learning rate and gradient norm,
every epoch's scores, parameters, data, environment, files and system metrics, into SQLite. In turns; the medians count.
Promised: at most 1 % of training time.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, cast

from comparing import DEBIAN, REPOSITORY, arguments, in_turns, medians, show
from darkroom.packed import PackedSet, open_packed
from darkroom.params import Params, Tracking, read_params, with_values
from darkroom.tracking import open_store
from darkroom.tracking.store import Store
from download import download
from prepare import prepare
from train import train

PERCENT = 1.0


class NoStore:
    """In place of a store, its run and its series: takes everything and keeps nothing."""

    run_id = "0" * 32

    def __init__(self, tracking: Tracking) -> None:
        self.tracking = tracking

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def position(self) -> int:
        return 0

    def search(self, _condition: str) -> list[object]:
        return []

    def __getattr__(self, _name: str) -> Callable[..., Self]:
        return lambda *_, **__: self


def packed_fashion(folder: Path, params: Params) -> PackedSet:
    os.chdir(folder)
    download(Path("data/raw"), name="fashion_mnist", source="", folder=DEBIAN, root=folder)
    values = params.data.model_dump(exclude={"name", "source", "folder"})
    prepare(
        Path("data/raw"), Path("data/packed"), metrics=Path("data.json"), plots=Path("plots"),
        **{**values, "on_duplicate": "allow"},
    )  # fmt: skip
    return open_packed(Path("data/packed"))


def seconds(packed: PackedSet, params: Params, store: Store) -> float:
    """Of one training from nothing, with the files that it writes."""
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        started = time.perf_counter()
        train(
            packed, augment=params.augment, model=params.model, train=params.train, store=store, out=Path(name, "out"),
            checkpoints=Path(name, "checkpoints"),
        )  # fmt: skip
        return time.perf_counter() - started


def chosen(epochs: int) -> Params:
    changes: dict[str, Any] = {
        "data.name": "fashion_mnist", "data.on_duplicate": "allow", "train.epochs": epochs, "train.batch_size": 128,
        "train.warmup_epochs": 0.0,
    }  # fmt: skip
    return with_values(read_params(REPOSITORY / "params.yaml"), changes)


def main() -> None:
    wanted = arguments(__doc__, rounds=2, epochs=6)
    if wanted.quick:
        wanted.rounds, wanted.epochs = 1, 1
    params = chosen(wanted.epochs)
    with tempfile.TemporaryDirectory() as name:
        packed = packed_fashion(Path(name), params)
        stores = {
            "nothing recorded": cast("Store", NoStore(params.tracking)),
            "all recorded": open_store(params.tracking, Path(name)),
        }
        rivals = {label: lambda store=store: seconds(packed, params, store) for label, store in stores.items()}
        taken = medians(in_turns(rivals, wanted.rounds))
        os.chdir(REPOSITORY)
    show(["training", "seconds"], [[label, f"{value:.1f}"] for label, value in taken.items()])
    cost = 100 * (taken["all recorded"] / taken["nothing recorded"] - 1)
    print(f"\nrecording costs {cost:+.1f} % (promised: at most {PERCENT} %)")


if __name__ == "__main__":
    main()

"""Training the same ResNet with the same batch and epochs: darkroom, the plain loop of the books, Lightning's Trainer.

    python benchmarks/training_speed.py [--quick] [--rounds 5] [--epochs 3] [--images 10000]

All train a ResNet of four one-block stages, width 16, on Fashion-MNIST with batches of 128, padded crop and flip, SGD with
Nesterov momentum and a cosine schedule, from the same weights; a round is a seed. darkroom is the train stage's own function,
with its run recorded and checkpoints kept, as it comes and with train.compile: on. The others come as the books have them
(NCHW float32, two workers), with the flags that were fastest in a short trial (channels_last; bf16 or float32; no worker or
one), and with these and torch.compile. Images/s are those of training from the second epoch on: in the first, kernels are
chosen, workers start and code is compiled. Measured in turns; the medians count. Lightning is no dependency: without it its
rows are left out.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

from comparing import MEAN, REPOSITORY, STD, Labelled, arguments, fashion, medians, show
from darkroom.models import build_network
from darkroom.packed import SPLITS, Meta, PackedSet, SplitName, write_meta
from darkroom.params import read_params, with_values
from darkroom.tracking import open_store
from rivals import BATCH, DECAY, LR, MOMENTUM, SPEC, Flags, Task, counted, lightning, plain_loop
from train import train as train_stage

AT_LEAST, AT_LEAST_BEST = 2.2, 1.3
"""times the images/s of either as the books have it, and of the faster of both at its best flags"""
TRIAL_STEPS = 25


def packed(task: Task, folder: Path) -> PackedSet:
    """The task's pictures as prepare would write them; validation takes a thousand of the test pictures."""
    parts: dict[SplitName, Labelled] = {"train": task.train, "val": task.test.first(1000), "test": task.test}
    for name, part in parts.items():
        np.save(folder / f"{name}.images.npy", part.images)
        np.save(folder / f"{name}.labels.npy", part.labels)
    counts: dict[str, list[int]] = {name: np.bincount(parts[name].labels, minlength=10).tolist() for name in SPLITS}
    meta = Meta("fashion_mnist", [str(n) for n in range(10)], 28, 1, "crop", [MEAN], [STD], counts, "0" * 64, {})
    write_meta(folder, meta)
    return PackedSet(folder, meta)


def darkroom(task: Task, compile: str = "off") -> tuple[float, float]:  # noqa: A002 - the parameter's name
    """Images/s and test accuracy of the train stage, recorded and with checkpoints."""
    values = {
        "model.name": "resnet", "model.width": SPEC.width, "model.blocks": list(SPEC.blocks), "train.epochs": task.epochs,
        "train.batch_size": BATCH, "train.optimizer": "sgd", "train.lr": LR, "train.momentum": MOMENTUM,
        "train.weight_decay": DECAY, "train.schedule": "cosine", "train.warmup_epochs": 0, "train.label_smoothing": 0.0,
        "train.clip_norm": 0.0, "train.ema_decay": 0.0, "train.seed": task.seed, "train.compile": compile,
        "augment.crop_padding": 4, "augment.flip": True,
    }  # fmt: skip
    params = with_values(read_params(REPOSITORY / "params.yaml"), values)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        (folder / "packed").mkdir()
        train_stage(
            packed(task, folder / "packed"), augment=params.augment, model=params.model, train=params.train,
            store=open_store(params.tracking, folder), out=folder, checkpoints=folder / "checkpoints",
        )  # fmt: skip
        network = build_network(SPEC)
        network.load_state_dict(torch.load(folder / "models/model.pt", weights_only=True)["weights"])
        epochs = list(csv.DictReader((folder / "plots/training/epochs.csv").read_text().splitlines()))
    return counted([1 / float(epoch["images_per_s"]) for epoch in epochs]), task.accuracy(network)


def best_flags(task: Task) -> Flags:
    """The fastest of four, in the plain loop; Lightning's Trainer has the same costs there."""
    tried = {
        flags: plain_loop(task, flags, most=TRIAL_STEPS)[0]
        for flags in (Flags(workers, channels_last=True, bf16=bf16) for workers, bf16 in product((0, 1), (False, True)))
    }
    print("\n".join(f"  trial of {flags}: {speed:,.0f} images/s" for flags, speed in tried.items()))
    return max(tried, key=lambda flags: tried[flags])


def measured(task: Task, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Each rival's images/s and test accuracy, a pair a round."""
    best = best_flags(task)
    compiled = replace(best, compile=True)
    rivals: dict[str, Callable[[Task], tuple[float, float]]] = {
        "darkroom": darkroom,
        "darkroom, train.compile: on": lambda task: darkroom(task, "on"),
        "plain loop": lambda task: plain_loop(task, Flags()),
        f"plain loop, {best}": lambda task: plain_loop(task, best),
        f"plain loop, {compiled}": lambda task: plain_loop(task, compiled),
    }
    if importlib.util.find_spec("lightning"):
        rivals |= {
            "Lightning": lambda task: lightning(task, Flags()),
            f"Lightning, {best}": lambda task: lightning(task, best),
        }
    else:
        print("Lightning is not installed, its rows are left out: pip install lightning")
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in rivals}
    for seed in range(rounds):
        for name, rival in rivals.items():
            torch.manual_seed(seed)
            speed, accuracy = rival(replace(task, seed=seed))
            results[name].append((speed, accuracy))
            print(f"  {name}: {speed:,.0f} images/s, accuracy {accuracy:.4f}", flush=True)
    return results


def main() -> None:
    wanted = arguments(__doc__, rounds=5, epochs=3, images=10_000)
    if wanted.quick:
        wanted.images, wanted.rounds, wanted.epochs = 5_000, 1, 1
    train, test = fashion("train").first(wanted.images), fashion("t10k")
    results = measured(Task(train, test, wanted.epochs, 0), wanted.rounds)
    speeds = medians({name: [speed for speed, _ in pairs] for name, pairs in results.items()})
    rows = [
        [
            name,
            f"{speed:,.0f}",
            f"{speeds['darkroom'] / speed:.2f}",
            f"{np.mean([accuracy for _, accuracy in results[name]]):.4f}",
        ]
        for name, speed in speeds.items()
    ]
    show(
        ["training loop", "images/s", "darkroom is faster by", f"mean test accuracy after {wanted.epochs} epochs"], rows
    )
    print(
        f"\npromised where the CPU computes in bf16: {AT_LEAST} times the images/s of the others as they come, "
        f"{AT_LEAST_BEST} times the faster of both at its best flags"
    )


if __name__ == "__main__":
    main()

"""Training the same ResNet with the same batch and epochs: darkroom, the plain loop of the books, Lightning's Trainer.

    python benchmarks/training_speed.py [--quick] [--rounds 5] [--epochs 3] [--images 20000]

All train a ResNet of four one-block stages, width 16, on Fashion-MNIST with batches of 128, padded crop and flip, SGD with
Nesterov momentum and a cosine schedule, from the same weights; a round is a seed. darkroom is the train stage's own function,
with its run recorded and checkpoints kept. The others come twice: as the books have them (NCHW float32, two workers), and with
the flags that were fastest in a short trial (channels_last; bf16 or float32; no worker or one). Images/s are those of
training, validation not counted. Measured in turns; the medians count. Lightning is no dependency: without it its rows are
left out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from comparing import MEAN, REPOSITORY, STD, Labelled, arguments, fashion, medians, show
from darkroom.models import build_network
from darkroom.models.spec import NetworkSpec
from darkroom.packed import SPLITS, Meta, PackedSet, SplitName, write_meta
from darkroom.params import read_params, with_values
from darkroom.tracking import open_store
from darkroom.training import start_network
from loader import PilPictures
from train import train as train_stage

BATCH, LR, MOMENTUM, DECAY = 128, 0.1, 0.9, 5e-4
SPEC = NetworkSpec("resnet", width=16, blocks=(1, 1, 1, 1), dropout=0.0, channels=1, image_size=28, num_classes=10)
AT_LEAST, AT_LEAST_BEST = 2.2, 1.3
"""times the images/s of either as the books have it, and of the faster of both at its best flags"""
TRIAL_STEPS = 25


@dataclass(frozen=True)
class Flags:
    """What a user may set in the loops that are compared with."""

    workers: int = 2
    channels_last: bool = False
    bf16: bool = False

    def layout(self, network: nn.Module) -> nn.Module:
        return network.to(memory_format=torch.channels_last) if self.channels_last else network

    def __str__(self) -> str:
        return f"{'bf16' if self.bf16 else 'float32'}, {'channels_last' if self.channels_last else 'NCHW'}, {self.workers} workers"


@dataclass(frozen=True)
class Task:
    train: Labelled
    test: Labelled
    epochs: int
    seed: int

    def network(self) -> nn.Module:
        """With the weights that all begin with."""
        return start_network(SPEC, seed=self.seed).network

    def batches(self, flags: Flags) -> DataLoader[tuple[Tensor, int]]:
        return DataLoader(
            PilPictures(self.train), batch_size=BATCH, shuffle=True, num_workers=flags.workers,
            persistent_workers=flags.workers > 0,
        )  # fmt: skip

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Normalised float32 N×1×28×28 and labels."""
        for start in range(0, len(self.test.labels), 1000):
            images = torch.from_numpy(self.test.images[start : start + 1000].copy()).permute(0, 3, 1, 2)
            yield (images.float() / 255 - MEAN) / STD, torch.from_numpy(self.test.labels[start : start + 1000])

    def accuracy(self, network: nn.Module) -> float:
        network.eval()
        with torch.no_grad():
            right = sum(int((network(images).argmax(1) == labels).sum()) for images, labels in self.test_batches())
        return right / len(self.test.labels)

    @property
    def steps(self) -> int:
        return self.epochs * -(-len(self.train.labels) // BATCH)


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


def darkroom(task: Task) -> tuple[float, float]:
    """Images/s and test accuracy of the train stage, recorded and with checkpoints."""
    values = {
        "model.name": "resnet", "model.width": SPEC.width, "model.blocks": list(SPEC.blocks), "train.epochs": task.epochs,
        "train.batch_size": BATCH, "train.optimizer": "sgd", "train.lr": LR, "train.momentum": MOMENTUM,
        "train.weight_decay": DECAY, "train.schedule": "cosine", "train.warmup_epochs": 0, "train.label_smoothing": 0.0,
        "train.clip_norm": 0.0, "train.ema_decay": 0.0, "train.seed": task.seed, "augment.crop_padding": 4,
        "augment.flip": True,
    }  # fmt: skip
    params = with_values(read_params(REPOSITORY / "params.yaml"), values)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        (folder / "packed").mkdir()
        numbers = train_stage(
            packed(task, folder / "packed"), augment=params.augment, model=params.model, train=params.train,
            store=open_store(params.tracking, folder), out=folder, checkpoints=folder / "checkpoints",
        )  # fmt: skip
        network = build_network(SPEC)
        network.load_state_dict(torch.load(folder / "models/model.pt", weights_only=True)["weights"])
    return float(numbers["images_per_s"]), task.accuracy(network)


def sgd(network: nn.Module, steps: int) -> tuple[torch.optim.SGD, torch.optim.lr_scheduler.CosineAnnealingLR]:
    optimizer = torch.optim.SGD(network.parameters(), LR, MOMENTUM, weight_decay=DECAY, nesterov=True)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def plain_loop(task: Task, flags: Flags, most: int | None = None) -> tuple[float, float]:
    """Images/s and test accuracy of the loop that the essays show; of `most` steps where given."""
    network = flags.layout(task.network())
    optimizer, schedule = sgd(network, task.steps)
    batches: Iterable[tuple[Tensor, Tensor]] = task.batches(flags)
    network.train()
    taken = 0
    started = time.perf_counter()
    for images, labels in (batch for _ in range(task.epochs) for batch in batches):
        optimizer.zero_grad()
        laid = images.to(memory_format=torch.channels_last) if flags.channels_last else images
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=flags.bf16):
            loss = cross_entropy(network(laid), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        schedule.step()
        taken += len(labels)
        if most and taken >= most * BATCH:
            break
    seconds = time.perf_counter() - started
    return taken / seconds, task.accuracy(network)


def lightning(task: Task, flags: Flags) -> tuple[float, float]:
    """Images/s and test accuracy of Lightning's Trainer; what it writes beside training is off."""
    import lightning as L  # noqa: N812 - its own short name

    class Module(L.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]  # not installed where types are checked
        def __init__(self) -> None:
            super().__init__()
            self.network = flags.layout(task.network())

        def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
            images, labels = batch
            laid = images.to(memory_format=torch.channels_last) if flags.channels_last else images
            return cross_entropy(self.network(laid), labels)

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer, schedule = sgd(self.network, task.steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = Module()
    trainer = L.Trainer(
        max_epochs=task.epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, precision="bf16-mixed" if flags.bf16 else "32-true",
    )  # fmt: skip
    started = time.perf_counter()
    trainer.fit(module, task.batches(flags))
    seconds = time.perf_counter() - started
    return task.epochs * len(task.train.labels) / seconds, task.accuracy(module.network)


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
    rivals: dict[str, Callable[[Task], tuple[float, float]]] = {
        "darkroom": darkroom,
        "plain loop": lambda task: plain_loop(task, Flags()),
        f"plain loop, {best}": lambda task: plain_loop(task, best),
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
    wanted = arguments(__doc__, rounds=5, epochs=3, images=20_000)
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

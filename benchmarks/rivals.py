"""The training loops that darkroom is measured beside: the plain one of the books, and Lightning's Trainer.

All train the same network on Fashion-MNIST with padded crop and flip, SGD with Nesterov momentum and a cosine schedule.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from comparing import MEAN, STD, Labelled
from darkroom.models.spec import NetworkSpec
from darkroom.training import start_network
from loader import PilPictures

BATCH, LR, MOMENTUM, DECAY = 128, 0.1, 0.9, 5e-4
SPEC = NetworkSpec("resnet", width=16, blocks=(1, 1, 1, 1), dropout=0.0, channels=1, image_size=28, num_classes=10)


@dataclass(frozen=True)
class Flags:
    """What a user may set in the loops that are compared with."""

    workers: int = 2
    channels_last: bool = False
    bf16: bool = False
    compile: bool = False

    def dressed(self, network: nn.Module) -> nn.Module:
        if self.channels_last:
            network = network.to(memory_format=torch.channels_last)
        if self.compile:
            network.compile()
        return network

    def __str__(self) -> str:
        layout = "channels_last" if self.channels_last else "NCHW"
        return f"{'bf16' if self.bf16 else 'float32'}, {layout}, {self.workers} workers{', compiled' if self.compile else ''}"


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


def counted(seconds: list[float]) -> float:
    """Images/s from the seconds an image took in each epoch, the first left out where there are more."""
    return 1 / mean(seconds[1:] or seconds)


def sgd(network: nn.Module, steps: int) -> tuple[torch.optim.SGD, torch.optim.lr_scheduler.CosineAnnealingLR]:
    optimizer = torch.optim.SGD(network.parameters(), LR, MOMENTUM, weight_decay=DECAY, nesterov=True)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def plain_loop(task: Task, flags: Flags, most: int | None = None) -> tuple[float, float]:
    """Images/s and test accuracy of the loop that the essays show; of `most` steps where given."""
    network = flags.dressed(task.network())
    optimizer, schedule = sgd(network, task.steps)
    batches = task.batches(flags)
    network.train()
    seconds = []
    for _ in range(task.epochs if most is None else 1):
        started, taken = time.perf_counter(), 0
        for images, labels in islice(batches, most):
            optimizer.zero_grad()
            laid = images.to(memory_format=torch.channels_last) if flags.channels_last else images
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=flags.bf16):
                loss = cross_entropy(network(laid), labels)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            schedule.step()
            taken += len(labels)
        seconds.append((time.perf_counter() - started) / taken)
    return counted(seconds), task.accuracy(network)


def lightning(task: Task, flags: Flags) -> tuple[float, float]:
    """Images/s and test accuracy of Lightning's Trainer; what it writes beside training is off."""
    import lightning as L  # noqa: N812 - its own short name

    class Module(L.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]  # not installed where types are checked
        def __init__(self) -> None:
            super().__init__()
            self.network = flags.dressed(task.network())

        def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
            images, labels = batch
            laid = images.to(memory_format=torch.channels_last) if flags.channels_last else images
            return cross_entropy(self.network(laid), labels)

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer, schedule = sgd(self.network, task.steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Clock(L.Callback):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            self.seconds: list[float] = []

        def on_train_epoch_start(self, *_: object) -> None:
            self.started = time.perf_counter()

        def on_train_epoch_end(self, *_: object) -> None:
            self.seconds.append((time.perf_counter() - self.started) / len(task.train.labels))

    module, clock = Module(), Clock()
    trainer = L.Trainer(
        max_epochs=task.epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, precision="bf16-mixed" if flags.bf16 else "32-true", callbacks=[clock],
    )  # fmt: skip
    trainer.fit(module, task.batches(flags))
    return counted(clock.seconds), task.accuracy(module.network)

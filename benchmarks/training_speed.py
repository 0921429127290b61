"""Training the same ResNet with the same batch and epochs: darkroom, the plain loop of the books, Lightning's Trainer.

    python benchmarks/training_speed.py [--quick] [--rounds 3] [--epochs 2] [--images 20000]

All three train 3×3-stem ResNet (width 32, blocks 1 1 1) on Fashion-MNIST with batches of 128, padded
crop and flip, SGD with Nesterov momentum and a cosine schedule, from the same weights. The plain loop is NCHW float32 with
a DataLoader of two workers; Lightning's Trainer has no flag that speeds it up. Images/s are those of training, validation
not counted. Measured in turns; the medians count. Lightning is no dependency: without it its row is left out.
"""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from comparing import MEAN, STD, Labelled, arguments, fashion, medians, show
from darkroom.models import build_network
from darkroom.models.spec import NetworkSpec
from darkroom.training import Augmentation, EpochRecord, Recipe, Session
from data_path import PilPictures

BATCH, LR, MOMENTUM, DECAY = 128, 0.1, 0.9, 5e-4
SPEC = NetworkSpec("resnet", width=32, blocks=(1, 1, 1), dropout=0.0, channels=1, image_size=28, num_classes=10)
AT_LEAST = 2
"""times the images/s of either"""


@dataclass(frozen=True)
class Task:
    train: Labelled
    test: Labelled
    epochs: int
    network: nn.Module
    """with the weights that all begin with"""

    def batches(self) -> DataLoader[tuple[Tensor, int]]:
        return DataLoader(
            PilPictures(self.train), batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True
        )

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


@dataclass
class Result:
    """Of one rival, a number a round."""

    speeds: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


def darkroom(task: Task) -> tuple[float, float]:
    """Images/s and test accuracy of a Session with its defaults."""
    recipe = Recipe(
        epochs=task.epochs, batch_size=BATCH, lr=LR, momentum=MOMENTUM, weight_decay=DECAY, schedule="cosine"
    )
    network = copy.deepcopy(task.network)
    session = Session(
        network, task.train, task.test.first(1000), recipe=recipe, augmentation=Augmentation(crop_padding=4, flip=True),
        num_classes=10, mean=[MEAN], std=[STD],
    )  # fmt: skip
    speeds = [record.images_per_s for record in session.run() if isinstance(record, EpochRecord)]
    return sum(speeds) / len(speeds), task.accuracy(network)


def sgd(network: nn.Module, steps: int) -> tuple[torch.optim.SGD, torch.optim.lr_scheduler.CosineAnnealingLR]:
    optimizer = torch.optim.SGD(network.parameters(), LR, MOMENTUM, weight_decay=DECAY, nesterov=True)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)


def plain_loop(task: Task) -> tuple[float, float]:
    """Images/s and test accuracy of the loop that the essays show."""
    network = copy.deepcopy(task.network)
    optimizer, schedule = sgd(network, task.steps)
    batches: Iterable[tuple[Tensor, Tensor]] = task.batches()
    network.train()
    started = time.perf_counter()
    for _ in range(task.epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            loss = cross_entropy(network(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            schedule.step()
    seconds = time.perf_counter() - started
    return task.epochs * len(task.train.labels) / seconds, task.accuracy(network)


def lightning(task: Task) -> tuple[float, float]:
    """Images/s and test accuracy of Lightning's Trainer; what it writes beside training is off."""
    import lightning as L  # noqa: N812 - its own short name

    class Module(L.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]  # not installed where types are checked
        def __init__(self) -> None:
            super().__init__()
            self.network = copy.deepcopy(task.network)

        def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
            images, labels = batch
            return cross_entropy(self.network(images), labels)

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer, schedule = sgd(self.network, task.steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = Module()
    trainer = L.Trainer(
        max_epochs=task.epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    started = time.perf_counter()
    trainer.fit(module, task.batches())
    seconds = time.perf_counter() - started
    return task.epochs * len(task.train.labels) / seconds, task.accuracy(module.network)


def measured(task: Task, rounds: int) -> dict[str, Result]:
    rivals: dict[str, Callable[[Task], tuple[float, float]]] = {"darkroom": darkroom, "plain loop": plain_loop}
    if importlib.util.find_spec("lightning"):
        rivals["Lightning"] = lightning
    else:
        print("Lightning is not installed, its row is left out: pip install lightning")
    results = {name: Result() for name in rivals}
    for _ in range(rounds):
        for name, rival in rivals.items():
            torch.manual_seed(0)
            speed, accuracy = rival(task)
            results[name].speeds.append(speed)
            results[name].accuracies.append(accuracy)
            print(f"  {name}: {speed:,.0f} images/s, accuracy {accuracy:.4f}")
    return results


def main() -> None:
    wanted = arguments(__doc__, rounds=3, epochs=2, images=20_000)
    torch.manual_seed(0)
    if wanted.quick:
        wanted.images, wanted.rounds, wanted.epochs = 5_000, 1, 1
    train, test = fashion("train").first(wanted.images), fashion("t10k")
    results = measured(Task(train, test, wanted.epochs, build_network(SPEC)), wanted.rounds)
    speeds = medians({name: result.speeds for name, result in results.items()})
    accuracies = medians({name: result.accuracies for name, result in results.items()})
    rows = [
        [name, f"{speed:,.0f}", f"{speeds['darkroom'] / speed:.2f}", f"{accuracies[name]:.4f}"]
        for name, speed in speeds.items()
    ]
    show(["training loop", "images/s", "darkroom is faster by", f"test accuracy after {wanted.epochs} epochs"], rows)
    print(f"\npromised: at least {AT_LEAST} times the images/s of the others, at equal accuracy")


if __name__ == "__main__":
    main()

"""The packed path beside the DataLoader of the books: the same crop and flip on Fashion-MNIST, images a second.

    python benchmarks/data_path.py [--quick] [--rounds 3]

Ours: batches cut from the memory map, augmented as tensors, in one process. Theirs: torchvision's RandomCrop(28,
padding=4), RandomHorizontalFlip, ToTensor, Normalize on PIL pictures in a DataLoader with 0, 2, 4 and 8 workers that
persist (their start is not counted). Both give normalised float32 batches of 512. Measured in turns; the medians count.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from comparing import MEAN, STD, Labelled, arguments, fashion, in_turns, medians, show
from darkroom.training.augment import Normalizer
from darkroom.training.batches import Batches
from darkroom.training.order import Order
from darkroom.training.recipe import Augmentation

BATCH = 512
WORKERS = (0, 2, 4, 8)
ESSAYS = {0: 12.5, 2: 6.9, 4: 4.8, 8: 4.5}
"""Seconds an epoch that the essays report: 50,000 CIFAR-10 pictures, batches of 512, by number of workers"""
AT_LEAST = 20
"""times the images/s of two workers"""


class PilPictures(Dataset[tuple[torch.Tensor, int]]):
    """A picture at a time, as tutorials write it."""

    def __init__(self, pictures: Labelled) -> None:
        from torchvision import transforms

        self.pictures = pictures
        self.transform: Callable[[Any], torch.Tensor] = transforms.Compose([
            transforms.RandomCrop(28, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
            transforms.Normalize((MEAN,), (STD,)),
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self.pictures.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = Image.fromarray(self.pictures.images[index, :, :, 0])
        return self.transform(picture), int(self.pictures.labels[index])


def loader(pictures: Labelled, workers: int) -> DataLoader[tuple[torch.Tensor, int]]:
    return DataLoader(
        PilPictures(pictures), batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )


def packed_path(pictures: Labelled) -> Callable[[], float]:
    """Images/s of an epoch of ours; each call is another epoch."""
    cpu = torch.device("cpu")
    batches = Batches(
        pictures, Order(len(pictures.labels), BATCH, seed=0), Augmentation(crop_padding=4, flip=True),
        Normalizer([MEAN], [STD], 28, cpu), cpu, channels_last=True,
    )  # fmt: skip
    epochs = iter(range(1_000_000))

    def measure() -> float:
        epoch = next(epochs)
        started, num = time.perf_counter(), 0
        for step in range(batches.order.steps):
            cut = batches.cut(epoch, step)
            num += len(batches.load(cut, slice(None)).images)
        return num / (time.perf_counter() - started)

    return measure


def data_loader(pictures: Labelled, workers: int) -> Callable[[], float]:
    """Images/s of an epoch of the DataLoader's, whose workers are there already."""
    batches = loader(pictures, workers)
    for _ in batches:
        break

    def measure() -> float:
        started = time.perf_counter()
        num = sum(len(images) for images, _ in batches)
        return num / (time.perf_counter() - started)

    return measure


def main() -> None:
    wanted = arguments(__doc__, rounds=3)
    warnings.filterwarnings(
        "ignore", message="This DataLoader will create"
    )  # more workers than cores: as in the essays
    pictures = fashion("train").first(6_000 if wanted.quick else 60_000)
    ours = packed_path(pictures)
    ours()  # the map's pages are read once
    rivals = {"packed, one process": ours} | {f"DataLoader, {n} workers": data_loader(pictures, n) for n in WORKERS}
    speeds = medians(in_turns(rivals, 1 if wanted.quick else wanted.rounds))
    rows = [
        [name, f"{speed:,.0f}", f"{50_000 / speed:.2f}", str(ESSAYS.get(n, "")) if n is not None else ""]
        for (name, speed), n in zip(speeds.items(), [None, *WORKERS], strict=True)
    ]
    show(["data path", "images/s", "seconds for 50,000", "the essays' seconds (CIFAR-10)"], rows)
    ratio = speeds["packed, one process"] / speeds["DataLoader, 2 workers"]
    print(f"\npacked / DataLoader with 2 workers: {ratio:.1f} (promised: at least {AT_LEAST})")


if __name__ == "__main__":
    main()

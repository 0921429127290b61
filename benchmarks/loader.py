"""Seconds an epoch takes to load: the table of the essays (0, 2, 4, 8 workers), with our row.

    python benchmarks/loader.py [--quick] [--rounds 3] [--images 50000]

CIFAR-size pictures (32×32×3) in batches of 512, padded crop and flip, normalised, nothing trained: what a DataLoader with
torchvision's transforms on PIL pictures delivers with so many workers, and what darkroom's batches deliver in one process.
Measured in turns; the medians count.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from comparing import arguments, in_turns, medians, show
from darkroom.training import Augmentation
from darkroom.training.augment import Normalizer
from darkroom.training.batches import Batches
from darkroom.training.order import Order

BATCH = 512
WORKERS = (0, 2, 4, 8)
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]


@dataclass(frozen=True)
class Pictures:
    """Random pixels: what a picture shows costs nothing here."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class PilDataset(Dataset[tuple[torch.Tensor, int]]):
    """The Dataset of the essays: a PIL picture at a time through torchvision's transforms."""

    def __init__(self, pictures: Pictures) -> None:
        from torchvision import transforms

        self.pictures = pictures
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.pictures.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        return self.transform(Image.fromarray(self.pictures.images[index])), int(self.pictures.labels[index])


def with_workers(pictures: Pictures, workers: int) -> float:
    """Seconds of an epoch after the workers have started."""
    loader = DataLoader(
        PilDataset(pictures), batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    if workers:
        next(iter(loader))
    started = time.perf_counter()
    for images, _ in loader:
        images.sum()
    return time.perf_counter() - started


def ours(pictures: Pictures) -> float:
    """Seconds of an epoch of darkroom's batches."""
    device = torch.device("cpu")
    batches = Batches(
        pictures, Order(len(pictures.labels), BATCH, 0), Augmentation(crop_padding=4, flip=True),
        Normalizer(MEAN, STD, 32, device), device, channels_last=True,
    )  # fmt: skip
    started = time.perf_counter()
    for step in range(batches.order.steps):
        cut = batches.cut(0, step)
        batches.load(cut, slice(0, len(cut))).images.sum()
    return time.perf_counter() - started


def main() -> None:
    wanted = arguments(__doc__, rounds=3, images=50_000)
    if wanted.quick:
        wanted.rounds, wanted.images = 1, 2_000
    rng = np.random.default_rng(0)
    pictures = Pictures(
        rng.integers(0, 256, (wanted.images, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, wanted.images)
    )
    rivals = {f"DataLoader, {num} workers": lambda num=num: with_workers(pictures, num) for num in WORKERS}
    taken = medians(in_turns({**rivals, "darkroom, one process": lambda: ours(pictures)}, wanted.rounds))
    best = min(seconds for name, seconds in taken.items() if name.startswith("DataLoader"))
    rows = [[name, f"{seconds:.2f}", f"{wanted.images / seconds:,.0f}"] for name, seconds in taken.items()]
    show(["loader", "seconds an epoch", "images/s"], rows)
    print(f"\ndarkroom is {best / taken['darkroom, one process']:.1f} times as fast as the best DataLoader")


if __name__ == "__main__":
    main()

"""The packed path beside the DataLoader of the books: the same crop and flip, images a second.

    python benchmarks/loader.py [--quick] [--rounds 3] [--fashion 0]

50,000 CIFAR-size pictures (32×32×3), or with --fashion 1 Fashion-MNIST's 60,000. Ours: batches cut from the memory map, augmented
as tensors, in one process. Theirs: torchvision's RandomCrop(padding=4), RandomHorizontalFlip, ToTensor, Normalize on PIL
pictures in a DataLoader with 0, 2, 4 and 8 workers that persist (their start is not counted). Both give normalised float32
batches of 512. Measured in turns; the medians count.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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
"""times the images/s of two workers, on Fashion-MNIST"""


class PilPictures(Dataset[tuple[torch.Tensor, int]]):
    """A picture at a time, as tutorials write it."""

    def __init__(self, pictures: Labelled) -> None:
        from torchvision import transforms

        _, size, _, channels = pictures.images.shape
        self.pictures = pictures
        self.transform: Callable[[Any], torch.Tensor] = transforms.Compose([
            transforms.RandomCrop(size, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
            transforms.Normalize([MEAN] * channels, [STD] * channels),
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self.pictures.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = Image.fromarray(self.pictures.images[index].squeeze())
        return self.transform(picture), int(self.pictures.labels[index])


def random_pictures(num: int) -> Labelled:
    """32×32×3, as a memory map: what a picture shows costs nothing here."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "images.npy")
        np.save(path, rng.integers(0, 256, (num, 32, 32, 3), dtype=np.uint8))
        return Labelled(np.load(path, mmap_mode="r"), rng.integers(0, 10, num))


def packed_path(pictures: Labelled) -> Callable[[], float]:
    """Images/s of an epoch of ours; each call is another epoch."""
    cpu = torch.device("cpu")
    _, size, _, channels = pictures.images.shape
    batches = Batches(
        pictures, Order(len(pictures.labels), BATCH, seed=0), Augmentation(crop_padding=4, flip=True),
        Normalizer([MEAN] * channels, [STD] * channels, size, cpu), cpu, channels_last=True,
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
    batches = DataLoader(
        PilPictures(pictures), batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    for _ in batches:
        break

    def measure() -> float:
        started = time.perf_counter()
        num = sum(len(images) for images, _ in batches)
        return num / (time.perf_counter() - started)

    return measure


def main() -> None:
    wanted = arguments(__doc__, rounds=3, fashion=0)
    # more workers than cores: as in the essays
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    pictures = fashion("train") if wanted.fashion else random_pictures(50_000)
    pictures = pictures.first(6_000) if wanted.quick else pictures
    ours = packed_path(pictures)
    ours()  # the map's pages are read once
    rivals = {"darkroom, one process": ours} | {f"DataLoader, {n} workers": data_loader(pictures, n) for n in WORKERS}
    speeds = medians(in_turns(rivals, 1 if wanted.quick else wanted.rounds))
    rows = [
        [name, f"{speed:,.0f}", f"{50_000 / speed:.2f}", str(ESSAYS.get(n, "")) if n is not None else ""]
        for (name, speed), n in zip(speeds.items(), [None, *WORKERS], strict=True)
    ]
    show(["data path", "images/s", "seconds for 50,000", "the essays' seconds (CIFAR-10)"], rows)
    ratio = speeds["darkroom, one process"] / speeds["DataLoader, 2 workers"]
    print(f"\ndarkroom / DataLoader with 2 workers: {ratio:.1f} (promised with --fashion 1: at least {AT_LEAST})")


if __name__ == "__main__":
    main()

"""The sets that are known by name: how each is read, and what its classes are called. One line a set in KNOWN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from darkroom.data.cifar import read_batch, read_names
from darkroom.data.formats import Labelled, read_digits, read_idx_pair, read_svhn
from darkroom.packed import SplitName

DIGITS = [str(digit) for digit in range(10)]
CLOTHES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]


@dataclass(frozen=True)
class KnownSet:
    read: Callable[[Path], dict[SplitName, Labelled]]
    """data/raw -> the set's own splits"""
    classes: Callable[[Path], list[str]]
    """data/raw -> class names in the order of the labels"""


def _digits(raw: Path) -> dict[SplitName, Labelled]:
    return {"train": read_digits(raw / "digits.csv")}


def _idx(raw: Path) -> dict[SplitName, Labelled]:
    return {
        "train": read_idx_pair(raw / "train-images-idx3-ubyte", raw / "train-labels-idx1-ubyte"),
        "test": read_idx_pair(raw / "t10k-images-idx3-ubyte", raw / "t10k-labels-idx1-ubyte"),
    }


def _cifar10(raw: Path) -> dict[SplitName, Labelled]:
    batches = [read_batch(raw / f"data_batch_{i}", b"labels") for i in range(1, 6)]
    return {
        "train": (np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])),
        "test": read_batch(raw / "test_batch", b"labels"),
    }


def _cifar100(raw: Path) -> dict[SplitName, Labelled]:
    return {"train": read_batch(raw / "train", b"fine_labels"), "test": read_batch(raw / "test", b"fine_labels")}


def _svhn(raw: Path) -> dict[SplitName, Labelled]:
    return {"train": read_svhn(raw / "train_32x32.mat"), "test": read_svhn(raw / "test_32x32.mat")}


KNOWN: dict[str, KnownSet] = {
    "digits": KnownSet(_digits, lambda _: DIGITS),
    "mnist": KnownSet(_idx, lambda _: DIGITS),
    "fashion_mnist": KnownSet(_idx, lambda _: CLOTHES),
    "cifar10": KnownSet(_cifar10, lambda raw: read_names(raw / "batches.meta", b"label_names")),
    "cifar100": KnownSet(_cifar100, lambda raw: read_names(raw / "meta", b"fine_label_names")),
    "svhn": KnownSet(_svhn, lambda _: DIGITS),
}

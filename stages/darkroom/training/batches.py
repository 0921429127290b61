"""Batches cut from the packed array: taken as uint8, sent as uint8, augmented and normalised on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from darkroom.training.augment import Normalizer, augmented, mixed
from darkroom.training.draws import Draw, draw
from darkroom.training.order import Order
from darkroom.training.randomness import Purpose, generator
from darkroom.training.recipe import Augmentation
from darkroom.training.shelf import Shelf


class Pictures(Protocol):
    """A split of the packed set."""

    @property
    def images(self) -> NDArray[np.uint8]:
        """N×H×W×C, a memory map or an array"""

    @property
    def labels(self) -> NDArray[np.int64]:
        """N"""


@dataclass(frozen=True)
class Cut:
    """A whole step, before any picture is read."""

    indices: NDArray[np.int64]
    """places in the training split"""
    labels: NDArray[np.int64]
    draw: Draw

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Batch:
    """A micro-batch on the device."""

    images: Tensor
    """float32 N×C×H×W, normalised"""
    labels: Tensor
    """int64 N"""
    other_labels: Tensor | None = None
    """int64 N: of the pictures mixed in"""
    share: Tensor | None = None
    """float32 N: of the picture's own label"""


class Batches:
    """The training split as steps. Every batch is a function of (seed, epoch, step) alone."""

    def __init__(
        self,
        pictures: Pictures,
        order: Order,
        augmentation: Augmentation,
        normalize: Normalizer,
        device: torch.device,
        *,
        channels_last: bool,
    ) -> None:
        self.pictures = pictures
        self.order = order
        self.augmentation = augmentation
        self.normalize = normalize
        self.device = device
        self.channels_last = channels_last
        self.shelf = Shelf(pictures.images, device)
        self._permutation: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, np.int64))

    def cut(self, epoch: int, step: int) -> Cut:
        """The step's pictures and random numbers; `epoch` and `step` (in the epoch) count from 0."""
        if self._permutation[0] != epoch:
            self._permutation = epoch, self.order.permutation(epoch)
        indices = self._permutation[1][self.order.rows(step)]
        if step + 1 < self.order.steps:
            self.shelf.read_ahead(self._permutation[1][self.order.rows(step + 1)])
        rng = generator(self.order.seed, Purpose.AUGMENT, epoch, step)
        drawn = draw(self.augmentation, rng, len(indices), self.pictures.images.shape[1])
        return Cut(indices, self.pictures.labels[indices], drawn)

    def load(self, cut: Cut, rows: slice) -> Batch:
        """Some rows of a step, on the device."""
        own = np.arange(len(cut))[rows]
        pictures = self._augmented(cut, own)
        labels = self.shelf.send(cut.labels[own])
        if cut.draw.partner is None or cut.draw.share is None:
            return Batch(self._laid_out(pictures), labels)
        partners = cut.draw.partner[own]
        whole = len(own) == len(cut)
        others = pictures[self.shelf.send(partners)] if whole else self._augmented(cut, partners)
        pictures = mixed(pictures, others, cut.draw.rows(own))
        return Batch(
            self._laid_out(pictures),
            labels,
            self.shelf.send(cut.labels[partners]),
            self.shelf.send(cut.draw.share[own]),
        )

    def _augmented(self, cut: Cut, rows: NDArray[np.int64]) -> Tensor:
        images = self.shelf.take(cut.indices[rows])
        return augmented(images, cut.draw.rows(rows), self.augmentation.crop_padding, self.normalize)

    def _laid_out(self, pictures: Tensor) -> Tensor:
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return pictures.contiguous(memory_format=layout)

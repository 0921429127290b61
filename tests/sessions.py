"""Real digits, small networks and sessions for the tests of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor

from darkroom.models import NetworkSpec, network_spec
from darkroom.training import Augmentation, EpochRecord, Recipe, Session, StepRecord, start_network


@dataclass(frozen=True)
class Digits:
    """A split as the packed set has it."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def digits(start: int, stop: int, *, size: int = 8) -> Digits:
    """Some of scikit-learn's digits, N×size×size×1, 0..255."""
    bunch = load_digits()
    images = np.rint(bunch.images[start:stop] * (255 / 16)).astype(np.uint8)[..., None]
    return Digits(images.repeat(size // 8, 1).repeat(size // 8, 2), bunch.target[start:stop].astype(np.int64))


def small(name: str = "simple_cnn", *, dropout: float = 0.0, **changes: Any) -> NetworkSpec:
    """A network of a few thousand weights for 8×8 grey digits."""
    settings: dict[str, Any] = {
        "width": 32 if name == "mlp" else 4, "blocks": [1, 1] if name in ("vgg", "resnet") else "auto",
        "dropout": dropout, "channels": 1, "image_size": 8, "num_classes": 10,
    }  # fmt: skip
    return network_spec(name, **{**settings, **changes})


def recipe(**changes: Any) -> Recipe:
    return Recipe(**{"epochs": 2, "batch_size": 64, "lr": 0.05, "precision": "fp32", "device": "cpu", **changes})


def session(
    spec: NetworkSpec, train: Digits, val: Digits, *, augmentation: Augmentation | None = None, **changes: Any
) -> Session:
    """A session on a fresh network of `spec`; `changes` are the recipe's."""
    chosen = recipe(**changes)
    return Session(
        start_network(spec, seed=chosen.seed).network,
        train,
        val,
        recipe=chosen,
        augmentation=augmentation or Augmentation(),
        num_classes=10,
        mean=[0.3],
        std=[0.35],
    )


def records(session: Session) -> tuple[list[StepRecord], list[EpochRecord]]:
    """All that is left of a session's run."""
    steps: list[StepRecord] = []
    epochs: list[EpochRecord] = []
    for record in session.run():
        if isinstance(record, StepRecord):
            steps.append(record)
        else:
            epochs.append(record)
    return steps, epochs


def same_weights(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)

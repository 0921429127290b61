"""Random numbers that are a function of a position, so that a position is all that a resume needs."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """Streams that must not repeat each other."""

    ORDER = 1
    AUGMENT = 2
    NETWORK = 3
    WEIGHTS = 4


def generator(seed: int, purpose: Purpose, epoch: int = 0, step: int = 0) -> np.random.Generator:
    """NumPy's generator for one position."""
    return np.random.default_rng(_sequence(seed, purpose, epoch, step, 0, 0))


def torch_seed(seed: int, purpose: Purpose, epoch: int = 0, step: int = 0, micro: int = 0, rank: int = 0) -> int:
    """A seed for torch's global generator (dropout, stochastic depth, initial weights) at one position."""
    return int(_sequence(seed, purpose, epoch, step, micro, rank).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_torch(seed: int, device: torch.device) -> None:
    """Seeds the global generators of the CPU and of `device`.

    Not torch.manual_seed: it seeds every accelerator there could be, and each one not yet in use remembers every call.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def _sequence(seed: int, purpose: Purpose, *position: int) -> np.random.SeedSequence:
    # the seed comes last: it may span two words, and the words before it must keep their places
    return np.random.SeedSequence((int(purpose), *position, seed))

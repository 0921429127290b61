"""Which pictures make up which step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darkroom.training.randomness import Purpose, generator


@dataclass(frozen=True)
class Order:
    """The steps of an epoch: a permutation that is a function of (seed, epoch), cut into batches.

    The last batch is short. A last batch of one picture joins the batch before: batch norm cannot train on one.
    """

    num_images: int
    batch_size: int
    seed: int

    @property
    def steps(self) -> int:
        """Optimizer steps in an epoch."""
        full, rest = divmod(self.num_images, self.batch_size)
        joins = rest == 1 and full > 0
        return full + (rest > 0) - joins

    def permutation(self, epoch: int) -> NDArray[np.int64]:
        return generator(self.seed, Purpose.ORDER, epoch).permutation(self.num_images)

    def rows(self, step: int) -> slice:
        """The step's place in the epoch's permutation."""
        start = step * self.batch_size
        return slice(start, self.num_images if step == self.steps - 1 else start + self.batch_size)


def split_evenly(size: int, parts: int) -> list[slice]:
    """`size` rows in `parts` consecutive slices whose lengths differ by one at most: 64 in 3 is 22, 21, 21."""
    length, longer = divmod(size, parts)
    stops = np.cumsum([length + (part < longer) for part in range(parts)]).tolist()
    return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]

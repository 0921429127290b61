"""The largest micro-batch that fits in memory: tried on a GPU, computed on a CPU, which would swap before it refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import psutil
import torch
from torch import Tensor

from darkroom.errors import UserError
from darkroom.fitting import Plan
from darkroom.training import ALONE, Session
from darkroom.training.batches import Cut

SHARE = 0.8
"""of the free memory that is counted on: the rest is for what cannot be counted"""
LARGEST = 2**16


@dataclass(frozen=True)
class Fit:
    """What fits."""

    pictures: int
    """in one micro-batch"""
    how: str

    def accumulate(self, batch_size: int) -> int:
        """The least `train.accumulate` with which a batch fits."""
        return -(-batch_size // self.pictures)


def largest_micro_batch(plan: Plan) -> Fit:
    """Raises UserError where not even the smallest fits."""
    session = plan.session(plan.train.threads, ALONE)
    return tried(session) if session.device.type == "cuda" else computed(session)


def tried(session: Session) -> Fit:
    """Doubles until a step runs out of memory, then halves the gap to an eighth of the size."""
    smallest = session.passes.smallest
    fits, fails = 0, LARGEST + 1
    size = smallest
    while size < fails and size <= LARGEST:
        if step_fits(session, size):
            fits, size = size, 2 * size
        else:
            fails = size
    while fits and fails - fits > max(fits // 8, 1) and fails <= LARGEST:
        size = (fits + fails) // 2
        fits, fails = (size, fails) if step_fits(session, size) else (fits, size)
    if not fits:
        raise _nothing_fits(smallest)
    return Fit(fits, "whole steps, tried")


def step_fits(session: Session, size: int) -> bool:
    """Whether a whole step of `size` pictures in one micro-batch fits, optimizer and average included."""
    try:
        session.updates.begin(0, 0, 1.0)
        session.passes.run(_cut(session, size), 0, 0, 1, session.updates.backward)
        session.updates.finish(session.updates.norms())
    except torch.OutOfMemoryError:
        return False
    finally:
        session.updates.drop_gradient()
        if session.device.type == "cuda":
            torch.cuda.empty_cache()
    return True


def computed(session: Session) -> Fit:
    """From what two pictures more keep for the backward pass."""
    smallest = session.passes.smallest
    few, more = (_bytes_kept(session, size) for size in (2 * smallest, 4 * smallest))
    a_picture = max((more - few) / (2 * smallest), 1)
    weights = sum(value.nbytes for value in session.network.state_dict().values())
    free = SHARE * psutil.virtual_memory().available - 4 * weights  # gradient, optimizer's two, average
    fits = min(int(free / (2 * a_picture)), LARGEST)  # and as much again for what the backward pass makes
    if fits < smallest:
        raise _nothing_fits(smallest)
    return Fit(fits, f"computed: {a_picture / 1e6:.2f} MB a picture, {free / 1e9:.1f} GB free")


def _nothing_fits(smallest: int) -> UserError:
    return UserError(f"not even {smallest} pictures fit in memory: a smaller model.width or data.image_size")


def _bytes_kept(session: Session, size: int) -> int:
    kept = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        session.passes.run(_cut(session, size), 0, 0, 1, lambda _: None)
    return kept


def _cut(session: Session, size: int) -> Cut:
    """A step of `size` pictures; small sets give theirs more than once."""
    batches = session.batches
    order = replace(batches.order, batch_size=min(size, batches.order.num_images))
    batches.order, before = order, batches.order
    try:
        cut = batches.cut(0, 0)
    finally:
        batches.order = before
    rows = np.arange(size) % len(cut)
    return Cut(cut.indices[rows], cut.labels[rows], cut.draw.rows(rows))

"""The processes that train one network together, each on its share of every step.

Started by torch's elastic launcher (`torchrun`, or `train.devices` above 1), which tells each its place in environment
variables (https://docs.pytorch.org/docs/stable/elastic/run.html). Alone, nothing here does anything.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import (  # type: ignore[attr-defined]  # exported, not typed
    PrefixStore,
    Store,
    rendezvous,
)

from darkroom.errors import UserError

Value = TypeVar("Value")
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class World:
    """Where this process stands among those that train together. Every method is called by all of them, or by none."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that records, saves and speaks."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def average(self, tensors: Iterable[Tensor]) -> None:
        """The mean over all processes, in place."""
        if self.size > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor)
                tensor.div_(self.size)

    def share(self, value: Value) -> Value:
        """The leader's value, whatever the others bring."""
        if self.size == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values)
        return values[0]

    def gather(self, value: Value) -> list[Value]:
        """Every process's value, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[Value | None] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values  # type: ignore[return-value]  # every place was filled

    @contextmanager
    def together(self) -> Iterator[None]:
        """Says in a line what torch says in a page when another process is gone. Raises UserError."""
        try:
            yield
        except RuntimeError as error:
            if self.size > 1 and any(word in str(error) for word in ("gloo", "Gloo", "NCCL")):
                raise UserError("a process that trains with this one is gone, see above for what it said") from error
            raise


ALONE = World()


def launched() -> bool:
    """Whether torch's launcher started this process as one of several, or as one that may be joined by others."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def local_processes() -> int:
    """How many of the processes that train together are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def own_device(wanted: str) -> str:
    """The device of this process: of several on a machine with GPUs, each takes its own."""
    if launched() and wanted in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{os.environ['LOCAL_RANK']}"
    return wanted


@contextmanager
def join(device: torch.device) -> Iterator[World]:
    """Meets the other processes: NCCL between GPUs, Gloo elsewhere; objects always travel by Gloo."""
    if not launched():
        yield ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, size = next(rendezvous("env://"))
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore(_agree(store, rank, size), store), rank=rank, world_size=size,
    )  # fmt: skip
    yield World(rank, size)
    distributed.destroy_process_group()  # after an error the others may be gone: they would be waited for


def _agree(store: Store, rank: int, size: int) -> str:
    """A name for this meeting that all who are here now know, and nobody of an earlier one.

    After a restart the launcher's store may still hold the addresses of processes that are gone, and who reads them before
    they are written anew waits in vain. So each says hello under a name of its own, and only a living leader answers.
    """
    own = uuid.uuid4().hex
    if rank > 0:
        store.set(f"hello/{store.add('hellos', 1)}", own)
        meeting: str = store.get(f"answer/{own}").decode()
        store.add(f"ready/{meeting}", 1)
        return meeting
    answered: set[int] = set()
    while store.add(f"ready/{own}", 0) < size - 1:
        for number in set(range(1, store.add("hellos", 0) + 1)) - answered:
            if store.check([f"hello/{number}"]):
                store.set(f"answer/{store.get(f'hello/{number}').decode()}", own)
                answered.add(number)
        time.sleep(POLL_SECONDS)
    return own

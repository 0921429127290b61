"""Which cores a training's threads run on."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

TOPOLOGY = Path("/sys/devices/system/cpu")


@contextmanager
def own_cores(device: torch.device) -> Iterator[None]:
    """Holds each OpenMP thread on a core of its own, where a training on the CPU has as many as there are cores.

    These threads spin while they wait for each other. With another program on one of two cores, the system kept moving
    them, and a step took 25 times as long; it takes 2.1 times as long where they stay (benchmarks/busy_core.py), and
    the program has half of that core. Fewer threads than cores are left alone: trainings side by side would all be held on
    the first cores. Linux and GNU's OpenMP, as in pip's torch; elsewhere it does nothing.
    """
    threads, places = torch.get_num_threads(), _places()
    openmp = _openmp() if device.type == "cpu" and 1 < threads == len(places) else None
    if openmp is None:
        yield
        return
    allowed = os.sched_getaffinity(0)
    _in_each_thread(openmp, threads, lambda number: os.sched_setaffinity(0, places[number]))
    try:
        yield
    finally:
        _in_each_thread(openmp, threads, lambda _: os.sched_setaffinity(0, allowed))


def _places() -> list[set[int]]:
    """The CPUs of each core that this process may use: two where a core has two hardware threads."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores: dict[str, set[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list"
        cores.setdefault(siblings.read_text() if siblings.exists() else str(cpu), set()).add(cpu)
    return list(cores.values())


@cache
def _openmp() -> ctypes.CDLL | None:
    """The library that torch's threads are of."""
    if sys.platform != "linux":
        return None
    loaded = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line)
    return next((ctypes.CDLL(path) for path in loaded), None)


def _in_each_thread(openmp: ctypes.CDLL, threads: int, call: Callable[[int], None]) -> None:
    """Calls `call` with its number in each thread that works for this one."""
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: call(openmp.omp_get_thread_num()))
    openmp.GOMP_parallel(body, None, threads, 0)

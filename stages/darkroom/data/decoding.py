"""Decodes and resizes many pictures at once, into a file that is mapped: a large set need not fit into memory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from darkroom.door import say
from darkroom.files import disk_error
from darkroom.pictures import BadPictureError

BLOCK = 16
"""pictures that a thread takes at a time"""
WINDOW = 64
"""blocks that may wait, decoded, for those before them"""
SECONDS_BETWEEN_LINES = 10.0

T = TypeVar("T")


def draw(
    read: Callable[[int], NDArray[np.uint8]], count: int, shape: tuple[int, int, int], scratch: Path
) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """read(0) … read(count - 1), each H×W×C as `shape` says, mapped from `scratch` as N×H×W×C, less the bad ones.

    Also returns why each bad one (its number) is bad. Pillow frees the interpreter while it decodes: threads keep all
    cores busy. Written, not mapped, so that a full disk is a UserError and not the end of the process (SIGBUS).
    """
    faults: dict[int, str] = {}
    try:
        with scratch.open("wb") as file:
            for i, result in enumerate(_watched(_all(read, count), count)):
                if isinstance(result, BadPictureError):
                    faults[i] = result.reason
                else:
                    assert result.shape == shape, f"{result.shape} instead of {shape}"
                    file.write(result.tobytes())
    except OSError as error:
        raise disk_error(error, scratch) from error
    if len(faults) == count:
        return np.empty((0, *shape), np.uint8), faults
    return np.memmap(scratch, np.uint8, mode="r", shape=(count - len(faults), *shape)), faults


def _all(read: Callable[[int], NDArray[np.uint8]], count: int) -> Iterator[NDArray[np.uint8] | BadPictureError]:
    """In order, whatever thread is done first."""

    def attempt(block: range) -> list[NDArray[np.uint8] | BadPictureError]:
        return [_attempt(read, i) for i in block]

    blocks = [range(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]
    with ThreadPoolExecutor(_cores()) as pool:
        for start in range(0, len(blocks), WINDOW):
            for results in pool.map(attempt, blocks[start : start + WINDOW]):
                yield from results


def _attempt(read: Callable[[int], NDArray[np.uint8]], i: int) -> NDArray[np.uint8] | BadPictureError:
    try:
        return read(i)
    except BadPictureError as error:
        return error


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _watched(results: Iterator[T], count: int) -> Iterator[T]:
    """A bar on a terminal, a line now and then elsewhere."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(results, desc="decoding", total=count, unit=" pictures", leave=False)
        return
    last = time.monotonic()
    for i, result in enumerate(results):
        yield result
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(f"  decoded {i + 1:,} of {count:,} pictures")

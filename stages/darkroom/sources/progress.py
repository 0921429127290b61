"""How far a download is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from darkroom.door import say

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(name: str, done: int, total: int | None) -> Iterator[Callable[[int], object]]:
    """A function to be told of each number of bytes that arrived, on top of the first `done` of `total`."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(desc=name, initial=done, total=total, unit="B", unit_scale=True, leave=False) as bar:
            yield bar.update
    else:
        yield _lines(name, done, total)


def _lines(name: str, done: int, total: int | None) -> Callable[[int], None]:
    last = time.monotonic()

    def arrived(count: int) -> None:
        nonlocal done, last
        done += count
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(f"  {name}: {size(done)}" + (f" of {size(total)}" if total else ""))

    return arrived


def size(count: int) -> str:
    """Bytes for people: 26.4 MB."""
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if unit != "bytes" else f"{count} bytes"

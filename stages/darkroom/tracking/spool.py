"""The spool: points of a run's step series in an append-only file, until and after the store has them.

A line a step, `[step, time in ms, {name: number}]`, written with one call to the operating system, so a process that
is killed outright loses nothing that it added; a power cut may tear the last line, which is then cut off.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from darkroom.files import disk_error

READ = 1 << 18
"""Bytes that are read at a time."""


@dataclass(frozen=True)
class Point:
    """The numbers of one step."""

    step: int
    when: int
    """ms since 1970"""
    numbers: dict[str, float]
    end: int
    """where its line ends in the file, in bytes"""


class Spool:
    """An append-only file of points. One process writes it (the checkpoint's lock sees to that)."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file: BinaryIO = path.open("ab", buffering=0)
        self._file.truncate(whole_length(path))

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Keeps the numbers of `step` with the present time. Raises UserError on a full disk."""
        line = json.dumps([step, time.time_ns() // 1_000_000, dict(numbers)], separators=(",", ":"))
        try:
            self._file.write(f"{line}\n".encode())
        except OSError as error:
            raise disk_error(error, self.path) from error

    def position(self) -> int:
        """Length in bytes; all that was added lies before it."""
        return self._file.seek(0, 2)

    def cut(self, position: int) -> None:
        """Forgets what was added after `position` (steps that a resumed training does again)."""
        self._file.truncate(min(position, self.position()))

    def close(self) -> None:
        self._file.close()


def whole_length(path: Path) -> int:
    """The length of the file up to its last whole line."""
    content = path.read_bytes() if path.stat().st_size < READ else _tail(path)
    return path.stat().st_size - (len(content) - content.rfind(b"\n") - 1)


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(-READ, 2)
        return file.read()


def read_points(path: Path, start: int = 0) -> Iterator[Point]:
    """The whole lines of the file from byte `start` on; a torn last line is left for later."""
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                return
            start += len(line)
            try:
                step, when, numbers = json.loads(line)
            except ValueError:  # a power cut, or a disk that was full for a moment
                continue
            yield Point(step, when, numbers, start)

"""The best points as experiments in DVC's queue, for `dvc queue start` to run from the pictures to the report."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from darkroom.errors import UserError
from darkroom.params import as_yaml


def queue(points: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Queues an experiment for each of `points` ({"train.lr": 0.1, ...}) and gives DVC's names of them.

    Raises UserError with DVC's own words where it takes one not: those before it are queued.
    """
    for point in points:
        settings = [part for key, value in point.items() for part in ("-S", f"{key}={as_yaml(value)}")]
        command = [sys.executable, "-m", "dvc", "exp", "run", "--queue", *settings]
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        named = re.search(r"Queued experiment '([^']+)'", done.stdout)
        if done.returncode or not named:
            raise UserError(f"dvc exp run --queue: {_last_line(done.stderr or done.stdout)}")
        yield named[1]


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ") if lines else "it said nothing"

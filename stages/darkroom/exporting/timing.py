"""How long a call takes, format beside format."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median

import numpy as np
from numpy.typing import NDArray

from darkroom.exporting.parity import Run

WARM_UP = 2
"""Calls before the first that counts: TorchScript compiles in its first two."""
LONGEST_SECONDS = 10.0
"""After this a network gets no further turns, so that the stage ends; one turn it always gets."""


def median_latencies(runs: Mapping[str, Run], images: NDArray[np.uint8], turns: int) -> dict[str, float]:
    """Median milliseconds that each of `runs` takes for `images` (N×C×H×W), over `turns` calls.

    In turns: whatever else the machine does meanwhile hits all of them alike.
    """
    for run in runs.values():
        for _ in range(WARM_UP):
            run(images)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    start = time.perf_counter()
    for _ in range(turns):
        for name, run in runs.items():
            before = time.perf_counter()
            run(images)
            taken[name].append(time.perf_counter() - before)
        if time.perf_counter() - start > LONGEST_SECONDS:
            break
    return {name: 1000 * median(seconds) for name, seconds in taken.items()}

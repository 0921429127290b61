"""How long a call takes, format beside format."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from darkroom.exporting.parity import Run

WARM_UP = 2
"""Calls before the first that counts: TorchScript compiles in its first two."""
BLOCKS = 4
"""How many blocks a format's calls come in."""
BLOCK_SECONDS = 0.5
"""Longer than this a block of the slowest format is not, where it has more than one call."""
PAUSE = 0.03
"""Seconds before a block: PyTorch's idle threads spin for a while, and take a core from who comes next meanwhile. On a busy
machine, ONNX's median after a call of PyTorch was 11 ms at once, and 2.3 ms after 20 ms or more."""
LONGEST_SECONDS = 3.0
"""After this a network gets no further turns, so that the stage ends; one turn it always gets."""


def call_seconds(runs: Mapping[str, Run], images: NDArray[np.uint8], turns: int) -> dict[str, list[float]]:
    """Seconds that each of `runs` took for `images` (N×C×H×W), over `turns` calls.

    In turns: whatever else the machine does meanwhile hits all of them alike. A turn is a block of calls, after a pause and
    a call that does not count: as where one model serves.
    """
    slowest = max([_seconds(run, images) for run in runs.values() for _ in range(WARM_UP)][WARM_UP - 1 :: WARM_UP])
    block = max(1, min(-(-turns // BLOCKS), int(BLOCK_SECONDS / slowest)))
    taken: dict[str, list[float]] = {name: [] for name in runs}
    start = time.perf_counter()
    for _ in range(-(-turns // block)):
        for name, run in runs.items():
            time.sleep(PAUSE)
            run(images)
            taken[name] += [_seconds(run, images) for _ in range(block)]
        if time.perf_counter() - start > LONGEST_SECONDS:
            break
    return taken


def percentile(seconds: list[float], percent: float) -> float:
    """The smallest of `seconds` that `percent` of them do not exceed (nearest rank)."""
    return float(np.percentile(seconds, percent, method="inverted_cdf"))


def _seconds(run: Run, images: NDArray[np.uint8]) -> float:
    before = time.perf_counter()
    run(images)
    return time.perf_counter() - before

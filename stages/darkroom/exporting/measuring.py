"""All files of one export beside PyTorch: agreement, latency, size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.errors import UserError
from darkroom.exporting.formats import FORMATS
from darkroom.exporting.module import run_module
from darkroom.exporting.parity import BATCH_SIZES, Run, agreement, check_agreement, run_all, spread
from darkroom.exporting.source import Source
from darkroom.exporting.timing import median_latencies
from darkroom.packed import PackedSet

TIMED_BATCHES = (1, 64)


def parity_pictures(packed: PackedSet, num_images: int) -> tuple[list[int], NDArray[np.uint8]]:
    """Places of pictures spread evenly over the test split, and the pictures as N×C×H×W.

    N is at least 64: a smaller split goes round until the largest batch is full. Raises UserError for an empty split.
    """
    test = packed.split("test")
    if len(test) == 0:
        raise UserError(f"{packed.folder} has no test picture: set data.test_fraction above 0, or add test pictures")
    chosen = spread(len(test), num_images)
    places = np.resize(chosen, max(len(chosen), *BATCH_SIZES))
    return places.tolist(), np.ascontiguousarray(test.images[places].transpose(0, 3, 1, 2))


def measure(
    folder: Path,
    source: Source,
    formats: Sequence[str],
    pictures: tuple[list[int], NDArray[np.uint8]],
    *,
    tolerance: float,
    turns: int,
) -> dict[str, Any]:
    """Numbers of each format's file in `folder`, loaded as its users load it, and of PyTorch.

    `pictures` as `parity_pictures` gives them. All on one thread: so the numbers are those of the files, whatever else
    the machine has to do. Raises UserError where a file's logits differ by more than `tolerance`.
    """
    places, images = pictures
    with _one_thread():
        pytorch = run_module(source.module)
        runs = {name: FORMATS[name].load(folder / FORMATS[name].file, 1) for name in formats}
        numbers = _agreements(runs, pytorch, source.description.temperature, places, images, tolerance)
        for batch_size in TIMED_BATCHES:
            latencies = median_latencies({"pytorch": pytorch, **runs}, images[:batch_size], turns)
            for name, milliseconds in latencies.items():
                numbers.setdefault(name, {})[f"latency_ms_batch_{batch_size}"] = round(milliseconds, 4)
    for name in formats:
        numbers[name]["bytes"] = (folder / FORMATS[name].file).stat().st_size
    return {**numbers, "num_images": len(set(places)), "threads": 1}


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _agreements(
    runs: Mapping[str, Run],
    pytorch: Run,
    temperature: float,
    places: list[int],
    images: NDArray[np.uint8],
    tolerance: float,
) -> dict[str, dict[str, Any]]:
    reference, _ = run_all(pytorch, images, max(BATCH_SIZES))
    if not (finite := np.isfinite(reference).all(axis=1)).all():
        raise UserError(
            f"the model gives no finite logits on test picture {places[int(finite.argmin())]}: its training diverged; "
            "lower train.lr and run dvc repro"
        )
    numbers: dict[str, dict[str, Any]] = {}
    for name, run in runs.items():
        found = agreement(run, images, reference, temperature)
        check_agreement(name, found, tolerance, places)
        numbers[name] = {"max_difference": found.max_difference, "same_classes": found.same_classes}
    return numbers

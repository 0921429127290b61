"""All files of one export beside PyTorch: agreement, accuracy, latency, size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from darkroom.errors import UserError
from darkroom.exporting.formats import FORMATS
from darkroom.exporting.module import run_module
from darkroom.exporting.parity import BATCH_SIZES, Run, agreement, check_agreement, run_all
from darkroom.exporting.session import usable_cpus
from darkroom.exporting.source import Source
from darkroom.exporting.timing import call_seconds, percentile
from darkroom.files import sha256_file
from darkroom.packed import PackedSet, Split, spread

PYTORCH = "pytorch"
LARGE = 64
"""pictures a call where throughput counts"""
FEWER = 10
"""how many calls with one picture there are for one with 64"""
THREADS = (1, 2)
FEW = 2000
"""test pictures up to which one thread does: beside another busy program several wait for each other, for seconds"""

Numbers = dict[str, dict[str, Any]]
"""what is measured of each format, and of PyTorch itself"""


def measure(
    folder: Path,
    source: Source,
    formats: Sequence[str],
    packed: PackedSet,
    *,
    tolerance: float,
    parity_images: int,
    turns: int,
) -> dict[str, Any]:
    """Numbers of each format's file in `folder`, loaded as its users load it, and of PyTorch.

    Raises UserError where a file that should be exact differs in a logit by more than `tolerance`, and for an empty test split.
    """
    test = packed.test()
    places, images = parity_pictures(test, parity_images)
    numbers: Numbers = {name: {} for name in (PYTORCH, *formats)}
    # On one thread first: so the numbers are those of the files, whatever else the machine has to do.
    with opened(folder, source, formats, 1) as runs:
        _compare(numbers, runs, source.description.temperature, places, images, tolerance)
        _time(numbers, runs, images, turns, 1)
    with opened(folder, source, formats, 1 if len(test) <= FEW else torch.get_num_threads()) as runs:
        for name, run in runs.items():
            numbers[name]["accuracy"] = accuracy(run, test)
    for threads in THREADS[1:]:
        if threads <= usable_cpus():
            with opened(folder, source, formats, threads) as runs:
                _time(numbers, runs, images, turns, threads)
    for name in formats:
        file = folder / FORMATS[name].file
        numbers[name] |= {"bytes": file.stat().st_size, "sha256": sha256_file(file)}
    return {**numbers, "num_images": len(set(places)), "num_test_images": len(test), "threads": 1}


def parity_pictures(test: Split, num_images: int) -> tuple[list[int], NDArray[np.uint8]]:
    """Places of pictures spread evenly over the test split, and the pictures as N×C×H×W.

    N is at least 64: a smaller split goes round until the largest batch is full.
    """
    chosen = spread(len(test), num_images)
    places = np.resize(chosen, max(len(chosen), *BATCH_SIZES))
    return places.tolist(), np.ascontiguousarray(test.images[places].transpose(0, 3, 1, 2))


def accuracy(run: Run, test: Split) -> float:
    """Share of the pictures of `test` whose class has the largest logit."""
    right = 0
    for start in range(0, len(test), LARGE):
        part = slice(start, start + LARGE)
        logits, _ = run(np.array(test.images[part].transpose(0, 3, 1, 2), order="C"))
        right += int((logits.argmax(axis=1) == test.labels[part]).sum())
    return right / len(test)


@contextmanager
def opened(folder: Path, source: Source, formats: Sequence[str], threads: int) -> Iterator[dict[str, Run]]:
    """PyTorch itself and the files of `formats` in `folder`, each on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        files = {name: FORMATS[name].load(folder / FORMATS[name].file, threads) for name in formats}
        yield {PYTORCH: run_module(source.module), **files}
    finally:
        torch.set_num_threads(before)


def _compare(
    numbers: Numbers,
    runs: Mapping[str, Run],
    temperature: float,
    places: list[int],
    images: NDArray[np.uint8],
    tolerance: float,
) -> None:
    reference, _ = run_all(runs[PYTORCH], images, max(BATCH_SIZES))
    if not (finite := np.isfinite(reference).all(axis=1)).all():
        raise UserError(
            f"the model gives no finite logits on test picture {places[int(finite.argmin())]}: its training diverged; "
            "lower train.lr and run dvc repro"
        )
    for name, run in runs.items():
        if name != PYTORCH:
            found = agreement(run, images, reference, temperature)
            if FORMATS[name].exact:
                check_agreement(name, found, tolerance, places)
            numbers[name] |= {"max_difference": found.max_difference, "same_classes": found.same_classes}


def _time(numbers: Numbers, runs: Mapping[str, Run], images: NDArray[np.uint8], turns: int, threads: int) -> None:
    """Adds latencies with one picture (median and 99th percentile) and with 64, and pictures a second with 64."""
    suffix = "" if threads == 1 else f"_threads_{threads}"
    for name, seconds in call_seconds(runs, images[:1], turns).items():
        numbers[name] |= {
            f"latency_ms_batch_1{suffix}": _milliseconds(median(seconds)),
            f"latency_ms_batch_1_p99{suffix}": _milliseconds(percentile(seconds, 99)),
        }
    for name, seconds in call_seconds(runs, images[:LARGE], -(-turns // FEWER)).items():
        numbers[name] |= {
            f"latency_ms_batch_64{suffix}": _milliseconds(median(seconds)),
            f"images_per_s_batch_64{suffix}": round(LARGE / median(seconds), 1),
        }


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 4)

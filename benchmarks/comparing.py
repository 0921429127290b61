"""What the comparisons share: rivals measured in turns, a table of them, and real pictures."""

from __future__ import annotations

import argparse
import gzip
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "stages"))

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
MEAN, STD = 0.2860, 0.3530
"""of Fashion-MNIST's training pictures, scaled to 0..1"""


@dataclass(frozen=True)
class Labelled:
    """A split, as the packed set has it."""

    images: NDArray[np.uint8]
    """N×28×28×1, a memory map"""
    labels: NDArray[np.int64]

    def first(self, num: int) -> Labelled:
        return Labelled(self.images[:num], self.labels[:num])


def fashion(split: str, folder: Path = DEBIAN) -> Labelled:
    """Fashion-MNIST's "train" or "t10k", as a memory map; ends the program where it is not there."""
    from darkroom.data.formats import read_idx_pair

    if not folder.is_dir():
        sys.exit(f"error: {folder} is not there (Debian: apt-get install dataset-fashion-mnist)")
    with tempfile.TemporaryDirectory() as name:
        unpacked = [Path(name, f"{split}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1")]
        for path in unpacked:
            path.write_bytes(gzip.decompress((folder / f"{path.name}.gz").read_bytes()))
        images, labels = read_idx_pair(*unpacked)
        np.save(Path(name, "images.npy"), images)
        mapped = np.load(Path(name, "images.npy"), mmap_mode="r")
    return Labelled(mapped, labels)


def arguments(doc: str | None, **rounds: int) -> argparse.Namespace:
    """--quick, and --rounds with its default."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer pictures and rounds: shows that it runs, no more")
    for name, default in rounds.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def in_turns(rivals: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Each rival's measurements, taken one after the other in every round, so that a slow minute slows all alike."""
    found: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(rounds):
        for name, measure in rivals.items():
            found[name].append(measure())
            print(f"  round {number + 1}: {name}: {found[name][-1]:,.4g}", file=sys.stderr)
    return found


def medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in found.items()}


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table, for the README."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")

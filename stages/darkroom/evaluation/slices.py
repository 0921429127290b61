"""Accuracy where pictures differ: dark and light ones, flat and contrasty ones, small and large ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darkroom.packed import ROWS

PARTS = 4


@dataclass(frozen=True)
class Slice:
    """A quarter of the pictures, by a property."""

    name: str
    """of the property"""
    low: float
    """smallest value in it"""
    high: float
    num_images: int
    accuracy: float


def properties(images: NDArray[np.uint8], sides: NDArray[np.int64] | None) -> dict[str, NDArray[np.float64]]:
    """Brightness (mean) and contrast (deviation) of pixels scaled to 0..1, and where known the shorter side in pixels.

    `images`: N×H×W×C. `sides`: N, of the pictures as they came.
    """
    brightness, contrast = np.empty(len(images)), np.empty(len(images))
    for start in range(0, len(images), ROWS):
        pixels = np.asarray(images[start : start + ROWS], dtype=np.float64).reshape(-1, images[0].size) / 255
        brightness[start : start + ROWS] = pixels.mean(axis=1)
        contrast[start : start + ROWS] = pixels.std(axis=1)
    known = {"brightness": brightness, "contrast": contrast}
    return known if sides is None else {**known, "shorter side": sides.astype(np.float64)}


def slices(values: Mapping[str, NDArray[np.float64]], hits: NDArray[np.bool_]) -> Iterator[Slice]:
    """Quarters by each property, cut at its quartiles: fewer where many pictures share a value, none where all do."""
    for name, each in values.items():
        edges = np.unique(np.quantile(each, np.linspace(0, 1, PARTS + 1)[1:-1], method="lower"))
        places = np.searchsorted(edges, each, side="left")
        if len(found := np.unique(places)) < 2:
            continue
        for place in found:
            inside = places == place
            yield Slice(
                name,
                float(each[inside].min()),
                float(each[inside].max()),
                int(inside.sum()),
                float(hits[inside].mean()),
            )

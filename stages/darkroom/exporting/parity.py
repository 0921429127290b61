"""Whether a file gives PyTorch's answers. numpy alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darkroom.errors import UserError
from darkroom.packed import spread

Run = Callable[[NDArray[np.uint8]], tuple[NDArray[np.float32], NDArray[np.float32]]]
"""uint8 N×C×H×W to logits and probabilities, each float32 N×K"""

BATCH_SIZES = (1, 2, 5, 64)
CALLS = 16
"""At each batch size, where there are pictures for that many. The largest size takes all pictures."""
PROBABILITY_TOLERANCE = 1e-5
"""Largest difference between a file's probabilities and the softmax of its own logits."""


@dataclass(frozen=True)
class Agreement:
    """How far a file is from PyTorch, over all pictures and batch sizes."""

    max_difference: float
    """of a logit; infinite where the file gives no number"""
    same_classes: float
    """share of pictures with the same class at every batch size"""
    image: int
    """place, among those compared, of the picture with the largest difference"""
    batch_size: int
    """at which it was found"""
    largest_logit: float
    """of PyTorch's, by size: what a difference is to be seen beside"""


def agreement(run: Run, images: NDArray[np.uint8], reference: NDArray[np.float32], temperature: float) -> Agreement:
    """Compares `run` on `images` (N×C×H×W), at 1, 2, 5 and 64 a call, with PyTorch's logits `reference` (N×K)."""
    differences = np.zeros((len(BATCH_SIZES), len(images)))
    same = np.ones(len(images), dtype=bool)
    for row, batch_size in enumerate(BATCH_SIZES):
        places = spread(len(images), CALLS * batch_size)
        logits, probabilities = run_all(run, images[places], batch_size)
        _check_probabilities(logits, probabilities, temperature)
        distance = np.abs(logits - reference[places]).max(axis=1)
        differences[row, places] = np.where(np.isfinite(distance), distance, np.inf)
        same[places] &= logits.argmax(axis=1) == reference[places].argmax(axis=1)
    size, image = np.unravel_index(differences.argmax(), differences.shape)
    return Agreement(
        max_difference=float(differences.max()),
        same_classes=float(same.mean()),
        image=int(image),
        batch_size=BATCH_SIZES[size],
        largest_logit=float(np.abs(reference).max()),
    )


def check_agreement(name: str, found: Agreement, tolerance: float, places: Sequence[int]) -> None:
    """Raises UserError where `found` is beyond `tolerance`; `places` are the compared pictures' in the test split."""
    if found.max_difference > tolerance:
        raise UserError(
            f"{name} differs from PyTorch by {found.max_difference:.3g} in a logit of test picture "
            f"{places[found.image]} (at batch size {found.batch_size}, logits up to {found.largest_logit:.3g}); "
            f"export.tolerance: {tolerance:g} allows less. Raise it if that difference is small beside the logits"
        )


def run_all(run: Run, images: NDArray[np.uint8], batch_size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Logits and probabilities of all `images`, `batch_size` a call, the last call with what is left."""
    parts = [run(images[start : start + batch_size]) for start in range(0, len(images), batch_size)]
    logits, probabilities = zip(*parts, strict=True)
    return np.concatenate(logits), np.concatenate(probabilities)


def _check_probabilities(logits: NDArray[np.float32], probabilities: NDArray[np.float32], temperature: float) -> None:
    """A file whose probabilities are not its logits' is this project's mistake, not its user's."""
    scaled = logits.astype(np.float64) / temperature
    exponents = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    expected = exponents / exponents.sum(axis=1, keepdims=True)
    finite = np.isfinite(expected)
    assert (np.abs(probabilities - expected)[finite] <= PROBABILITY_TOLERANCE).all(), (
        "probabilities are not the logits'"
    )

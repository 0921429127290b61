"""CIFAR's batches: pickles of Python 2, read with an unpickler that makes numbers, texts and arrays alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from darkroom.data.formats import Labelled
from darkroom.data.manifest import damaged


def read_batch(path: Path, labels: bytes) -> Labelled:
    """One batch: pixels N×3072, red, green and blue planes of 32×32; `labels` names the list of labels in it.

    https://www.cs.toronto.edu/~kriz/cifar.html. Raises UserError where the file is damaged, or holds anything else.
    """
    content = _unpickle(path)
    try:
        pixels, numbers = np.asarray(content[b"data"]), np.asarray(content[labels], np.int64)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"no CIFAR batch: {error}") from None
    if pixels.dtype != np.uint8 or pixels.shape != (len(numbers), 3072):
        raise damaged(path, f"{pixels.dtype} {pixels.shape}, with {len(numbers)} labels")
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), numbers


def read_names(path: Path, key: bytes) -> list[str]:
    """The class names. Raises UserError."""
    try:
        return [name.decode() for name in _unpickle(path)[key]]
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(path, f"no class names: {error}") from None


class _Unpickler(pickle.Unpickler):
    """Knows what the batches need: a pickle may name any function of Python, and would call it."""

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return known


def _new_array(_kind: type, _shape: Any, _code: Any) -> Any:
    """The empty array that the pickle then fills by __setstate__."""
    return np.empty(0, np.uint8)


def _dtype(code: Any, _align: Any, _copy: Any) -> Any:
    return np.dtype(code, copy=True)  # the pickle then sets its byte order: not on numpy's own


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
}


def _unpickle(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="bytes").load()
    except Exception as error:  # a damaged pickle fails in many ways
        raise damaged(path, str(error)) from error

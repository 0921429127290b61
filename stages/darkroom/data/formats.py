"""Readers of the published formats: arrays uint8 N×H×W×C and labels int64 N, as they were published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from darkroom.data.manifest import damaged

Labelled = tuple[NDArray[np.uint8], NDArray[np.int64]]

UNSIGNED_BYTE = 8
"""IDX's code of the type"""


def read_idx_pair(images: Path, labels: Path) -> Labelled:
    """MNIST's format. Raises UserError where a file is damaged."""
    pixels = read_idx(images)
    numbers = read_idx(labels)
    if pixels.ndim != 3 or numbers.ndim != 1 or len(pixels) != len(numbers):
        raise damaged(images, f"shape {pixels.shape}, with {numbers.shape} labels")
    return pixels[..., None], numbers.astype(np.int64)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes: 0, 0, type, number of dimensions, then each as a big-endian int32.

    http://yann.lecun.com/exdb/mnist/, "The IDX file format".
    """
    content = path.read_bytes()
    start = 4 + 4 * content[3] if len(content) >= 4 else 0
    if content[:3] != bytes([0, 0, UNSIGNED_BYTE]) or len(content) < start:
        raise damaged(path, "no IDX file of unsigned bytes")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">i4"))
    if len(content) - start != np.prod(shape):
        raise damaged(path, f"{len(content) - start:,} bytes instead of {np.prod(shape):,}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_digits(path: Path) -> Labelled:
    """scikit-learn's digits: 64 numbers from 0 to 16 and the label in each line. Raises UserError.

    0..16 becomes 0..255 by value · 255 / 16, rounded half up: 0, 16, 32, 48, 64, 80, 96, 112, 128, 143, ..., 255.
    """
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.int64, ndmin=2)
    except ValueError as error:
        raise damaged(path, str(error)) from None
    if table.shape[1] != 65 or table[:, :64].min() < 0 or table[:, :64].max() > 16:
        raise damaged(path, "not 64 numbers from 0 to 16 and a label in each line")
    pixels = ((table[:, :64] * 255 + 8) // 16).astype(np.uint8)
    return pixels.reshape(-1, 8, 8, 1), table[:, 64]


def read_svhn(path: Path) -> Labelled:
    """SVHN's cropped digits: MATLAB arrays X, 32×32×3×N, and y, N×1, where 10 is the digit 0. Raises UserError."""
    import scipy.io  # only here: a third of a second

    try:
        content = scipy.io.loadmat(path, variable_names=["X", "y"])
        images = np.ascontiguousarray(content["X"].transpose(3, 0, 1, 2))
        labels = content["y"].reshape(-1).astype(np.int64)
    except Exception as error:  # scipy raises many kinds on a damaged file
        raise damaged(path, str(error)) from error
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or len(images) != len(labels):
        raise damaged(path, f"{images.dtype} {images.shape}, with {labels.shape} labels")
    return images, labels % 10

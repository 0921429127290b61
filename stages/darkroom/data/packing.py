"""Writes the packed set, split by split, and hashes and measures it as it passes by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darkroom.data.collection import Collection
from darkroom.files import write_json
from darkroom.packed import ROWS, Meta, SplitName, write_meta


def pack(
    collection: Collection, rows: Mapping[SplitName, NDArray[np.int64]], folder: Path, *, name: str, resize: str
) -> Meta:
    """Fills `folder` as darkroom.packed describes it. The same pictures give the same bytes on every machine."""
    _, size, _, channels = collection.images.shape
    look = {"classes": collection.classes, "image_size": size, "channels": channels, "resize": resize}
    digest = hashlib.sha256(json.dumps(look, sort_keys=True).encode())
    split_sha256: dict[str, str] = {}
    pixel_counts = np.zeros((channels, 256), np.int64)
    for split, members in rows.items():
        labels = collection.labels[members].astype("<i8")
        split_digest = hashlib.sha256()
        with (folder / f"{split}.images.npy").open("wb") as file:
            _write_header(file, np.dtype(np.uint8), (len(members), size, size, channels))
            for chunk in _chunks(collection.images, members):
                file.write(chunk.data)
                digest.update(chunk.reshape(-1).data)
                split_digest.update(chunk.reshape(-1).data)
                if split == "train":
                    pixel_counts += _pixel_counts(chunk)
        with (folder / f"{split}.labels.npy").open("wb") as file:
            _write_header(file, labels.dtype, labels.shape)
            file.write(labels.data)
        digest.update(labels.data)
        split_digest.update(labels.data)
        split_sha256[split] = split_digest.hexdigest()
    write_json(folder / "splits.json", _sources(collection, rows))
    mean, std = statistics(pixel_counts)
    meta = Meta(
        name=name,
        classes=collection.classes,
        image_size=size,
        channels=channels,
        resize=resize,
        mean=mean,
        std=std,
        counts={split: _counts(collection, members) for split, members in rows.items()},
        sha256=digest.hexdigest(),
        split_sha256=split_sha256,
    )
    write_meta(folder, meta)
    return meta


def _write_header(file: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Written with write(), not through a map: a full disk is then an error, not the end of the process (SIGBUS)."""
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, description)


def _chunks(images: NDArray[np.uint8], rows: NDArray[np.int64]) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, len(rows), ROWS):
        yield np.ascontiguousarray(images[rows[start : start + ROWS]])


def _pixel_counts(chunk: NDArray[np.uint8]) -> NDArray[np.int64]:
    """C×256: how often each value occurs in each channel."""
    channels = chunk.shape[3]
    return np.stack([np.bincount(chunk[..., channel].reshape(-1), minlength=256) for channel in range(channels)])


def statistics(pixel_counts: NDArray[np.int64]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation a channel of pixels scaled to 0..1, from how often each value occurs (C×256).

    Counted in whole numbers, so that they depend neither on the order of the pictures nor on the machine.
    A channel of one value has the deviation 1, since pictures are divided by it.
    """
    values = np.arange(256, dtype=np.float64) / 255
    total = pixel_counts.sum(axis=1)
    mean = (pixel_counts * values).sum(axis=1) / total
    variance = (pixel_counts * (values - mean[:, None]) ** 2).sum(axis=1) / total
    constant = (pixel_counts > 0).sum(axis=1) == 1
    return mean.tolist(), np.where(constant, 1.0, np.sqrt(variance)).tolist()


def _counts(collection: Collection, members: NDArray[np.int64]) -> list[int]:
    counts: list[int] = np.bincount(collection.labels[members], minlength=len(collection.classes)).tolist()
    return counts


def _sources(collection: Collection, rows: Mapping[SplitName, NDArray[np.int64]]) -> dict[str, Any]:
    """splits.json: where each row is from, how large it was, and what was left out and why."""

    def by_split(values: Sequence[Any]) -> dict[str, Any]:
        return {split: [values[row] for row in members.tolist()] for split, members in rows.items()}

    sides = {} if collection.shorter_sides is None else {"shorter_sides": by_split(collection.shorter_sides)}
    return {**by_split(collection.sources), "left_out": collection.left_out, **sides}

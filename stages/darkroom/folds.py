"""Cross-validation: the pictures of train and val in folds, each of which is once what the others are judged on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darkroom.errors import UserError
from darkroom.files import lock, sha256_bytes, written_whole
from darkroom.packed import ROWS, Meta, PackedSet, Split, SplitName


def stratified(labels: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """N: the fold of each picture, each class spread evenly."""
    rng = np.random.default_rng(seed)
    places = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        places[members] = (np.arange(len(members)) + rng.integers(folds)) % folds
    return places


@dataclass(frozen=True)
class Fold(PackedSet):
    """A packed set whose val split is one fold, and whose train split is the others. It has no test split."""

    rows: dict[SplitName, slice]
    """of the two files, which hold the folds one after the other, and then all but the last once more"""

    def split(self, name: SplitName) -> Split:
        if name not in self.rows:
            raise UserError(f"{self.folder} holds folds of train and val: there is no split {name} among them")
        labels = self._map("labels.npy")[self.rows[name]]
        return Split(_rows(self._map("images.npy"), self.rows[name]), labels)


def fold_sets(packed: PackedSet, folds: int, folder: Path) -> list[Fold]:
    """`folds` sets with the train and val pictures of `packed`, all views of two files in `folder`, made where they are not.

    Which picture is in which fold is the same for every study. mean and std stay those of `packed`.
    Raises UserError where a class has fewer pictures than folds, or the disk is full.
    """
    labels = np.concatenate([packed.split(name).labels for name in ("train", "val")])
    fewest = np.bincount(labels, minlength=len(packed.meta.classes))
    if (few := int(fewest.min())) < folds:
        raise UserError(
            f"sweep.folds: {folds} are more than the {few} pictures of {packed.meta.classes[fewest.argmin()]} in train and val"
        )
    places = stratified(labels, folds, seed=0)
    order = np.argsort(places, kind="stable")
    starts = np.searchsorted(places[order], np.arange(folds + 1))
    folder = folder / f"{packed.meta.sha256[:16]}-{folds}"
    with lock(folder / "lock"):
        _write(packed, np.concatenate([order, order[: starts[-2]]]), labels, folder)
    labels = labels[order]
    return [_fold(packed.meta, labels, starts, number, folder) for number in range(folds)]


def _fold(meta: Meta, labels: NDArray[np.int64], starts: NDArray[np.int64], number: int, folder: Path) -> Fold:
    begin, end = int(starts[number]), int(starts[number + 1])
    own, num_classes = labels[begin:end], len(meta.classes)
    counts = {"train": np.bincount(labels, minlength=num_classes) - np.bincount(own, minlength=num_classes),
              "val": np.bincount(own, minlength=num_classes), "test": np.zeros(num_classes, int)}  # fmt: skip
    whole = replace(
        meta,
        counts={name: each.tolist() for name, each in counts.items()},
        sha256=sha256_bytes(f"{meta.sha256} fold {number} of {len(starts) - 1}".encode()),
        split_sha256={},
    )
    return Fold(folder, whole, {"val": slice(begin, end), "train": slice(end, begin + len(labels))})


def _write(packed: PackedSet, order: NDArray[np.int64], labels: NDArray[np.int64], folder: Path) -> None:
    """Pictures and labels in that order; a few at a time, since there may be more than memory holds."""
    if (folder / "labels.npy").exists():  # written last
        return
    train, val = (packed.split(name).images for name in ("train", "val"))
    with written_whole(folder / "images.npy") as path:
        images = np.lib.format.open_memmap(path, "w+", train.dtype, (len(order), *train.shape[1:]))
        for start in range(0, len(order), ROWS):
            rows = order[start : start + ROWS]
            own = rows < len(train)
            images[start : start + ROWS][own] = train[rows[own]]
            images[start : start + ROWS][~own] = val[rows[~own] - len(train)]
        images.flush()
    with written_whole(folder / "labels.npy") as path, path.open("wb") as file:
        np.save(file, labels[order])


def _rows(array: NDArray[Any], rows: slice) -> NDArray[Any]:
    """A map of those rows alone, which knows where in the file it begins: a slice of a map does not."""
    assert isinstance(array, np.memmap)
    assert array.filename is not None
    offset = array.offset + rows.start * array[0].nbytes
    shape = (rows.stop - rows.start, *array.shape[1:])
    rows_alone: NDArray[Any] = np.memmap(array.filename, array.dtype, "r", offset, shape)
    return rows_alone

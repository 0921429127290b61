"""The packed set: memory maps that prepare writes and every later stage reads.

`data/packed/` holds, for each of train, val and test, `<split>.images.npy` (uint8, N×H×W×C) and
`<split>.labels.npy` (int64, N), with `splits.json` and `meta.json`.
Stored as N×H×W×C, so that a permuted view of the map is channels_last without a copy.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from darkroom.errors import UserError
from darkroom.files import missing, read_json, write_json

SplitName = Literal["train", "val", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "val", "test")
MADE_BY = "dvc repro prepare"
ROWS = 1024
"""pictures in memory at a time"""


@dataclass(frozen=True)
class Meta:
    """What the pictures are, and how a new picture must be made like them."""

    name: str
    """`data.name`"""
    classes: list[str]
    """class names; their place is the label"""
    image_size: int
    """pixels a side"""
    channels: int
    """1 (grey) or 3 (RGB)"""
    resize: str
    """crop, pad or stretch: how a picture of another shape becomes square"""
    mean: list[float]
    """of the training split, a channel, pixels scaled to 0..1"""
    std: list[float]
    """of the training split, a channel, pixels scaled to 0..1; never 0"""
    counts: dict[str, list[int]]
    """pictures a class for each split"""
    sha256: str
    """of the whole: images, labels, classes, size and resize rule"""
    split_sha256: dict[str, str]
    """of each split's images and labels"""


@dataclass(frozen=True)
class Split:
    """One split as memory maps."""

    images: NDArray[np.uint8]
    """N×H×W×C"""
    labels: NDArray[np.int64]
    """N"""

    def __len__(self) -> int:
        return len(self.labels)

    def sha256(self) -> str:
        """Of the pixels, then the labels."""
        digest = hashlib.sha256()
        for start in range(0, len(self), ROWS):
            digest.update(np.ascontiguousarray(self.images[start : start + ROWS]).data)
        digest.update(np.ascontiguousarray(self.labels).astype("<i8").data)
        return digest.hexdigest()


@dataclass(frozen=True)
class PackedSet:
    """An opened `data/packed/`; splits are opened when asked for, so a sweep never touches the test split."""

    folder: Path
    meta: Meta

    def split(self, name: SplitName) -> Split:
        """The split's arrays, mapped read-only. Raises UserError where a file is missing or cut short."""
        return Split(self._map(f"{name}.images.npy"), self._map(f"{name}.labels.npy"))

    def test(self) -> Split:
        """The test split. Raises UserError where it has no picture."""
        test = self.split("test")
        if not len(test):
            raise UserError(f"{self.folder} has no test picture: set data.test_fraction above 0, or add test pictures")
        return test

    def verify(self, *splits: SplitName) -> None:
        """Raises UserError where a split is not what prepare wrote: DVC restores a damaged cache without a word."""
        for name in splits:
            if self.split(name).sha256() != self.meta.split_sha256[name]:
                raise UserError(
                    f"{self.folder}/{name}.*.npy do not match their sha256 in meta.json: a disk has damaged them, or the copy "
                    "in DVC's cache, which DVC restores without a word; dvc repro --force --no-run-cache prepare makes them anew"
                )

    def sources(self, name: SplitName) -> list[str]:
        """Where each picture (N) is from: its file, or its place in the published set."""
        return list(self._origins()[name])

    def shorter_sides(self, name: SplitName) -> NDArray[np.int64] | None:
        """Pixels (N) of the shorter side of each picture as it came; None where the set's pictures are all of one size."""
        sides = self._origins().get("shorter_sides")
        return None if sides is None else np.array(sides[name], np.int64)

    def check_same(self, data_sha256: str) -> None:
        """Raises UserError unless this is the set of that hash: the one that a model was trained on."""
        if data_sha256 != self.meta.sha256:
            raise UserError(
                f"{self.folder} holds other data (sha256 {self.meta.sha256[:12]}…) than the model was trained on "
                f"({data_sha256[:12]}…): run dvc repro"
            )

    def _origins(self) -> dict[str, Any]:
        return dict(read_json(self.folder / "splits.json", MADE_BY))

    def _map(self, file: str) -> NDArray[Any]:
        path = self.folder / file
        try:
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            return array
        except FileNotFoundError:
            raise missing(path, MADE_BY) from None
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path} is damaged ({error}): run {MADE_BY}") from None


def open_packed(folder: Path, *verified: SplitName) -> PackedSet:
    """The packed set in `folder`, the splits `verified` compared with their hashes.

    Raises UserError where it is missing, incomplete or damaged.
    """
    if not folder.is_dir():
        raise missing(folder, MADE_BY)
    values = read_json(folder / "meta.json", MADE_BY)
    try:
        packed = PackedSet(folder, Meta(**values))
    except TypeError:
        raise UserError(f"{folder / 'meta.json'} is of another version: run {MADE_BY}") from None
    packed.verify(*verified)
    return packed


def write_meta(folder: Path, meta: Meta) -> None:
    write_json(folder / "meta.json", asdict(meta))


def spread(total: int, wanted: int) -> NDArray[np.int64]:
    """`wanted` places among `total`, evenly, the first and the last among them; all where there are no more."""
    return np.linspace(0, total - 1, min(wanted, total)).round().astype(np.int64)

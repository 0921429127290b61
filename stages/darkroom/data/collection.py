"""All pictures of a set as the network will see them, before they are split."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from darkroom.data.decoding import draw
from darkroom.data.known import KNOWN
from darkroom.data.layout import read_layout
from darkroom.data.manifest import Manifest, check_content
from darkroom.door import say
from darkroom.errors import UserError, some_of
from darkroom.files import sha256_bytes
from darkroom.packed import SPLITS, SplitName
from darkroom.pictures import fit, read_picture, shorter_side

OWN_SIZE, OWN_CHANNELS = 64, 3
"""What `auto` means for one's own pictures."""

SHOWN = 20
"""bad pictures that are named one by one"""


@dataclass(frozen=True)
class Shape:
    """What data.image_size, data.channels and data.resize say."""

    image_size: int | Literal["auto"]
    channels: int | Literal["auto"]
    resize: str


@dataclass(frozen=True)
class Collection:
    images: NDArray[np.uint8]
    """N×H×W×C, as they will be packed; a memory map where they were decoded or resized"""
    labels: NDArray[np.int64]
    """N"""
    splits: list[SplitName]
    """N, by the set itself: all train where it has no splits of its own"""
    sources: list[str]
    """N: relative path, or split and place in the published set"""
    keys: list[str]
    """N: sha256 of the picture as it came, whatever it is resized to"""
    classes: list[str]
    left_out: dict[str, str]
    """relative path -> why it is not among them"""
    shorter_sides: list[int] | None = None
    """N: pixels, as they came; None where all are of one size"""


def collect(raw: Path, manifest: Manifest, shape: Shape, on_bad_image: str, scratch: Path) -> Collection:
    """The pictures that `manifest` names. `scratch`: a file that may hold pixels until they are packed.

    Raises UserError for damaged files, bad pictures with `on_bad_image` error, and folders that make no classes.
    """
    if manifest.name == "image_folder":
        return _own(raw, manifest, shape, on_bad_image, scratch)
    return _published(raw, manifest, shape, scratch)


def _published(raw: Path, manifest: Manifest, shape: Shape, scratch: Path) -> Collection:
    check_content(raw, manifest)
    known = KNOWN[manifest.name]
    parts = {split: part for split, part in known.read(raw).items() if len(part[1])}
    images = np.concatenate([images for images, _ in parts.values()])
    labels = np.concatenate([labels for _, labels in parts.values()])
    classes = known.classes(raw)
    if labels.min() < 0 or labels.max() >= len(classes):
        raise UserError(f"{raw} has labels from {labels.min()} to {labels.max()} for {len(classes)} classes")
    return Collection(
        images=_resized(images, shape, scratch),
        labels=labels,
        splits=[split for split, (_, numbers) in parts.items() for _ in numbers],
        sources=[f"{split}/{i}" for split, (_, numbers) in parts.items() for i in range(len(numbers))],
        keys=[sha256_bytes(image.tobytes()) for image in images],
        classes=classes,
        left_out={},
    )


def _resized(images: NDArray[np.uint8], shape: Shape, scratch: Path) -> NDArray[np.uint8]:
    own_size, own_channels = images.shape[2], images.shape[3]
    size = own_size if shape.image_size == "auto" else shape.image_size
    channels = own_channels if shape.channels == "auto" else shape.channels
    if (size, channels) == (own_size, own_channels):
        return images

    def read(i: int) -> NDArray[np.uint8]:
        image = Image.fromarray(images[i, :, :, 0] if own_channels == 1 else images[i])
        return fit(image, image_size=size, channels=channels, resize=shape.resize)

    drawn, _ = draw(read, len(images), (size, size, channels), scratch)
    return drawn


def _own(raw: Path, manifest: Manifest, shape: Shape, on_bad_image: str, scratch: Path) -> Collection:
    layout = read_layout(list(manifest.files), manifest.empty_folders)
    size = OWN_SIZE if shape.image_size == "auto" else shape.image_size
    channels = OWN_CHANNELS if shape.channels == "auto" else shape.channels
    if shape.image_size == "auto":
        say(f"pictures are made {size}×{size} ({shape.resize}); data.image_size changes that")

    sides: dict[int, int] = {}

    def read(i: int) -> NDArray[np.uint8]:
        path = raw / layout.paths[i]
        pixels = read_picture(path, image_size=size, channels=channels, resize=shape.resize)
        sides[i] = shorter_side(path)
        return pixels

    drawn, faults = draw(read, len(layout.paths), (size, size, channels), scratch)
    bad = {layout.paths[i]: reason for i, reason in faults.items()}
    if bad:
        _report_bad(bad, len(layout.paths), on_bad_image)
    good = [i for i in range(len(layout.paths)) if i not in faults]
    paths = [layout.paths[i] for i in good]
    return Collection(
        images=drawn,
        labels=layout.labels[good],
        splits=[layout.splits[i] for i in good],
        sources=paths,
        keys=[manifest.files[path] for path in paths],
        classes=layout.classes,
        left_out=dict.fromkeys(manifest.left_out, "no picture by its name and folder") | bad,
        shorter_sides=[sides[i] for i in good],
    )


def _report_bad(bad: dict[str, str], num_files: int, on_bad_image: str) -> None:
    lines = [f"  {path}: {reason}" for path, reason in list(bad.items())[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"  and {len(bad) - SHOWN:,} more")
    count = f"{len(bad):,} of {num_files:,} files"
    if on_bad_image == "error":
        advice = "mend or remove them, or set data.on_bad_image: skip to go on without them"
        raise UserError("\n".join([f"{count} cannot be used:", *lines, advice]))
    say("\n".join([f"{count} are skipped (data.on_bad_image: skip):", *lines]))


def check_classes(collection: Collection) -> None:
    """Raises UserError for a class that training would never see; names in a line what validation or test lack."""
    for split in SPLITS:
        present = {int(label) for label, own in zip(collection.labels, collection.splits, strict=True) if own == split}
        absent = [name for label, name in enumerate(collection.classes) if label not in present]
        if split == "train" and absent:
            raise UserError(f"no picture to train on for {some_of(absent)}: add some, or remove the folder")
        if present and absent:
            say(f"{split} has no picture of {some_of(absent)}: labels stay those of train")

"""What people look at: counts and sizes in metrics/data.json, contact sheets in plots/data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from darkroom.data.collection import Collection
from darkroom.packed import SPLITS, Meta
from darkroom.pictures import fit
from darkroom.sheets import contact_sheet

MOST_SHEETS = 20
"""A set with more classes gets sheets with a row a class."""
COLUMNS = 10
PICTURES = 40
"""on the sheet of one class"""
LARGEST = 96
"""pixels a side of a picture on a sheet"""


def metrics(meta: Meta, *, num_left_out: int, num_duplicates: int) -> dict[str, Any]:
    """metrics/data.json. The counts a class are a list, which DVC's tables leave out: columns by the hundred."""
    classes = [
        {"name": name, **{split: meta.counts[split][label] for split in SPLITS}}
        for label, name in enumerate(meta.classes)
    ]
    return {
        "num_classes": len(meta.classes),
        "num_train": sum(meta.counts["train"]),
        "num_val": sum(meta.counts["val"]),
        "num_test": sum(meta.counts["test"]),
        "num_left_out": num_left_out,
        "num_duplicates": num_duplicates,
        "image_size": meta.image_size,
        "channels": meta.channels,
        "mean": meta.mean,
        "std": meta.std,
        "sha256": meta.sha256,
        "classes": classes,
    }


def draw_sheets(collection: Collection, rows: NDArray[np.int64], folder: Path) -> int:
    """Contact sheets of the training pictures, `rows`, as PNG in `folder`; returns how many.

    One sheet a class up to 20 classes; beyond that at most 20 sheets, each with a row a class.
    """
    num_classes = len(collection.classes)
    members = [rows[collection.labels[rows] == label] for label in range(num_classes)]
    if num_classes <= MOST_SHEETS:
        for label, name in enumerate(collection.classes):
            chosen = members[label][:PICTURES]
            _sheet(collection, chosen, [""] * len(chosen)).save(folder / f"{label:02d}-{_plain(name)}.png")
        return num_classes
    classes_a_sheet = -(-num_classes // MOST_SHEETS)
    starts = range(0, num_classes, classes_a_sheet)
    for start in starts:
        end = min(start + classes_a_sheet, num_classes)
        sheets = [_row(collection, label, members[label]) for label in range(start, end)]
        _stacked(sheets).save(folder / f"{start:04d}-{end - 1:04d}.png")
    return len(starts)


def _row(collection: Collection, label: int, members: NDArray[np.int64]) -> Image.Image:
    chosen = members[:COLUMNS]
    return _sheet(collection, chosen, [collection.classes[label], *[""] * (len(chosen) - 1)])


def _sheet(collection: Collection, rows: NDArray[np.int64], captions: list[str]) -> Image.Image:
    images = collection.images[rows]
    if images.shape[1] > LARGEST:
        channels = images.shape[3]
        whole = [Image.fromarray(image[:, :, 0] if channels == 1 else image) for image in images]
        images = np.stack([fit(image, image_size=LARGEST, channels=channels, resize="stretch") for image in whole])
    return contact_sheet(images, captions, columns=COLUMNS)


def _stacked(sheets: list[Image.Image]) -> Image.Image:
    page = Image.new("RGB", (max(sheet.width for sheet in sheets), sum(sheet.height for sheet in sheets)), "white")
    top = 0
    for sheet in sheets:
        page.paste(sheet, (0, top))
        top += sheet.height
    return page


def _plain(name: str) -> str:
    """A class name as part of a file name."""
    return re.sub(r"[^\w-]+", "_", name)[:60]

"""What the folders of one's own pictures mean: classes, or train/val/test with classes below them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from darkroom.door import say
from darkroom.errors import UserError, some_of
from darkroom.packed import SplitName

SPLIT_FOLDERS: dict[str, SplitName] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""folder names, in lower case, that mean a split where classes lie below them"""


@dataclass(frozen=True)
class Layout:
    paths: list[str]
    """N, sorted"""
    labels: NDArray[np.int64]
    """N"""
    splits: list[SplitName]
    """N; all train where there are only classes"""
    classes: list[str]
    """the training split's folders, sorted"""


@dataclass(frozen=True)
class _Entry:
    path: str
    split: SplitName
    name: str


def read_layout(paths: Iterable[str], empty_folders: Iterable[str]) -> Layout:
    """Class and split of each picture, by its relative path (`cat/1.jpg`, `train/cat/x/1.jpg`).

    `empty_folders`: folders of the first two levels without a picture. Raises UserError where they make no classes.
    """
    ordered = sorted(paths)
    split_folders = _split_folders(ordered)
    entries = [entry for path in ordered if (entry := _entry(path, split_folders))]
    _say_loose(ordered, entries)
    _check_empty(empty_folders, split_folders)
    classes = sorted({entry.name for entry in entries if entry.split == "train"})
    _check_classes(entries, classes)
    label = {name: i for i, name in enumerate(classes)}
    return Layout(
        paths=[entry.path for entry in entries],
        labels=np.array([label[entry.name] for entry in entries], np.int64),
        splits=[entry.split for entry in entries],
        classes=classes,
    )


def _split_folders(paths: list[str]) -> dict[str, SplitName]:
    """Folder -> split, empty where the folders are classes: a set of vehicles may well have a class `train`."""
    tops = {path.split("/")[0] for path in paths}
    nested = {path.split("/")[0] for path in paths if path.count("/") >= 2}
    found = {top: SPLIT_FOLDERS[top.lower()] for top in sorted(tops) if top.lower() in SPLIT_FOLDERS}
    others = sorted(tops - found.keys())
    if not found.keys() & nested or (others and len(found) == 1):
        return {}
    kinds = list(found.values())
    if "train" not in kinds:
        raise UserError(
            f"data.folder: {', '.join(found)} but no train/ (a folder train/ with the classes below is needed)"
        )
    if others:
        raise UserError(
            f"data.folder: {', '.join(others)} beside {', '.join(found)}: is neither training, validation nor test "
            "(move it away, or into one of them)"
        )
    if len(set(kinds)) < len(kinds):
        raise UserError(f"data.folder: {', '.join(found)}: two folders for one split (keep one of them)")
    return found


def _entry(path: str, split_folders: dict[str, SplitName]) -> _Entry | None:
    """None for a picture that lies in a split's folder, but in no class."""
    top, *rest = PurePosixPath(path).parts
    if not split_folders:
        return _Entry(path, "train", _class_name(top))
    return _Entry(path, split_folders[top], _class_name(rest[0])) if len(rest) > 1 else None


def _class_name(folder: str) -> str:
    """One spelling of accents: macOS may store é as two characters."""
    return unicodedata.normalize("NFC", folder)


def _say_loose(paths: list[str], entries: list[_Entry]) -> None:
    loose = sorted(set(paths) - {entry.path for entry in entries})
    if loose:
        say(f"left out, in no class folder: {some_of(loose)}")


def _check_empty(empty_folders: Iterable[str], split_folders: dict[str, SplitName]) -> None:
    """An empty class is an error; in validation or test, check_classes tells it."""
    empty = []
    for folder in empty_folders:
        top, *rest = folder.split("/")
        is_class = not rest if not split_folders else rest and split_folders.get(top) == "train"
        if is_class:
            empty.append(folder)
    if empty:
        raise UserError(f"data.folder: no picture in {some_of(empty)} (add some, or remove the folder)")


def _check_classes(entries: list[_Entry], classes: list[str]) -> None:
    unknown = {entry.name: entry for entry in entries if entry.name not in classes}
    if unknown:
        named = some_of([f"{entry.split}: {name}" for name, entry in sorted(unknown.items())])
        raise UserError(f"data.folder: classes that train lacks: {named} (train has {some_of(classes)})")
    if len(classes) < 2:
        (only,) = classes or ["none"]
        deeper = any(entry.path.count("/") > 1 for entry in entries)
        hint = f"; if the classes lie below it, let data.folder end in /{only}" if deeper else ""
        raise UserError(f"data.folder: one class ({only}), at least two are needed: one folder each{hint}")

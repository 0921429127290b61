"""What download left in data/raw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from darkroom.errors import UserError
from darkroom.files import missing, read_json, sha256_file

MADE_BY = "dvc repro download"


@dataclass(frozen=True)
class Manifest:
    """`manifest.json`, as download writes it."""

    name: str
    """`data.name`"""
    origin: str
    """a web address, `embedded` or `data.folder`"""
    files: Mapping[str, str]
    """relative path with `/` -> sha256"""
    empty_folders: list[str] = field(default_factory=list)
    """image_folder: folders of the first two levels without a picture below them"""
    left_out: list[str] = field(default_factory=list)
    """image_folder: files that are no pictures by their name, or in no class folder"""


def read_manifest(raw: Path) -> Manifest:
    """The manifest in `raw`. Raises UserError where it, or a file that it names, is missing."""
    if not raw.is_dir():
        raise missing(raw, MADE_BY)
    path = raw / "manifest.json"
    try:
        manifest = Manifest(**read_json(path, MADE_BY))
    except TypeError:
        raise UserError(f"{path} is of another version: run {MADE_BY}") from None
    for name in manifest.files:
        if not (raw / name).is_file():
            raise missing(raw / name, MADE_BY)
    return manifest


def check_content(raw: Path, manifest: Manifest) -> None:
    """Raises UserError for a file that is no longer what download wrote."""
    for name, sha256 in manifest.files.items():
        if sha256_file(raw / name) != sha256:
            raise damaged(raw / name, "its content changed")


def damaged(path: Path, how: str) -> UserError:
    return UserError(f"{path} is damaged ({how}): run {MADE_BY}")

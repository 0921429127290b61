"""Picture files below folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from darkroom.errors import UserError
from darkroom.filenames import PICTURE_SUFFIXES, is_litter, is_picture


def find_pictures(places: Sequence[Path]) -> list[Path]:
    """The files among `places`, whatever their names, and the pictures below the folders among them, in order of name.

    Raises UserError for a place that is not there, and where there is no picture at all.
    """
    found: list[Path] = []
    for place in places:
        if not place.exists():
            raise UserError(f"{place} is missing: name picture files, or folders that hold some")
        found += sorted(_below(place)) if place.is_dir() else [place]
    if not found:
        named, known = ", ".join(map(str, places)), " ".join(sorted(PICTURE_SUFFIXES))
        raise UserError(f"{named}: no picture there (a file named {known})")
    return found


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_litter(name)]
        yield from (Path(parent, name) for name in files if is_picture(Path(name)) and not is_litter(name))

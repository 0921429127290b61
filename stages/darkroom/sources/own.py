"""One's own pictures: finds them below a folder and copies them, one folder a class.

What kind of folders these are (classes, or train/val/test above them) is for prepare to say.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from darkroom.door import say
from darkroom.errors import UserError, some_of
from darkroom.filenames import is_litter, is_picture
from darkroom.files import disk_error, sha256_file


@dataclass(frozen=True)
class Found:
    """What lies below a folder, as relative paths with `/`, sorted: the same on every machine."""

    pictures: list[str]
    empty_folders: list[str]
    """first and second level, without a picture below them: classes that somebody meant to fill"""
    left_out: list[str]
    """files that are no pictures by their name, or lie in no class folder"""
    broken_links: list[str]


def find(folder: Path) -> Found:
    """The pictures below `folder`. Raises UserError where none is in a class folder, or a link is broken."""
    found = _search(folder)
    if found.broken_links:
        raise UserError(
            f"data.folder: {some_of(found.broken_links)} in {folder}: links that lead nowhere "
            "(remove them, or bring back what they name)"
        )
    if not found.pictures:
        raise UserError(_nothing(folder, found))
    return found


def _search(folder: Path) -> Found:
    pictures, left_out, broken = [], [], []
    with_pictures: set[Path] = set()
    folders: set[Path] = set()
    for path in _walk(folder, set()):
        inside = path.relative_to(folder)
        if path.is_dir():
            folders.add(inside)
        elif not path.exists():
            broken.append(inside.as_posix())
        elif is_picture(path) and len(inside.parts) > 1:
            pictures.append(inside.as_posix())
            with_pictures.update(inside.parents)
        elif not _is_note(inside):
            left_out.append(inside.as_posix())
    empty = [inside.as_posix() for inside in folders - with_pictures if len(inside.parts) <= 2]
    return Found(sorted(pictures), sorted(empty), sorted(left_out), sorted(broken))


def _walk(folder: Path, above: set[Path]) -> Iterator[Path]:
    """Everything below `folder` that is not litter, through links; a link to a folder above is not entered again."""
    above = above | {folder.resolve()}
    for entry in folder.iterdir():
        if is_litter(entry.name):
            continue
        yield entry
        if entry.is_dir() and entry.resolve() not in above:
            yield from _walk(entry, above)


def _is_note(inside: Path) -> bool:
    """A README or DVC's own file at the top: nobody takes it for a picture."""
    return len(inside.parts) == 1 and (inside.suffix == ".dvc" or inside.name.lower().startswith("readme"))


def _nothing(folder: Path, found: Found) -> str:
    loose = [name for name in found.left_out if is_picture(Path(name))]
    if loose:
        problem = f"the pictures in {folder} lie in no class folder ({some_of(loose)})"
    elif found.left_out:
        problem = f"{folder} holds no pictures but {some_of(found.left_out)}"
    else:
        problem = f"{folder} holds no pictures"
    return f"data.folder: {problem}\nput them one folder a class, as in {folder}/cat/1.jpg, or name another data.folder"


def copy(folder: Path, found: Found, into: Path) -> dict[str, str]:
    """Copies the pictures to the same places below `into`; relative path -> sha256.

    Copies, where the file system can share the blocks that costs nothing; hard links would let DVC, which makes what it
    caches read-only, change the originals.
    """
    if found.left_out:
        say(f"left out, no pictures in a class folder: {some_of(found.left_out)}")
    for parent in sorted({Path(name).parent for name in found.pictures}):
        (into / parent).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        hashes = list(pool.map(lambda name: _copy(folder / name, into / name), found.pictures))
    return dict(zip(found.pictures, hashes, strict=True))


def _copy(source: Path, target: Path) -> str:
    try:
        if not _clone(source, target):
            shutil.copyfile(source, target)
        return sha256_file(target)
    except OSError as error:
        if error.filename == str(source):
            raise UserError(f"data.folder: {source} cannot be read ({error.strerror})") from error
        raise disk_error(error, target) from error


def _clone(source: Path, target: Path) -> bool:
    """Copies within the kernel, which shares the blocks where it can (btrfs, XFS); False where it cannot copy so."""
    if not hasattr(os, "copy_file_range"):
        return False
    with source.open("rb") as reader, target.open("wb") as writer:
        left = os.fstat(reader.fileno()).st_size
        try:
            while left > 0 and (count := os.copy_file_range(reader.fileno(), writer.fileno(), left)):
                left -= count
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                return False
            raise
    return left == 0

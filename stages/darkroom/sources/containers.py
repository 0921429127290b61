"""Unpacks what is published, checking the content as it passes by."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import IO

from darkroom.files import written_whole
from darkroom.sources.catalogue import set_of

CHUNK = 1 << 20

Stream = IO[bytes] | BufferedIOBase


class WrongContentError(Exception):
    """A file that is not what was published: damaged, cut short, or another one of that name."""


def unpack(archive: Path, contents: Mapping[str, str], into: Path) -> None:
    """Writes the files named in `contents` into the folder `into`, each whole and of its sha256, or not at all.

    Raises WrongContentError, and UserError on a full disk.
    """
    missing = set(contents)
    try:
        for name, stream in _decode(archive, missing):
            _write(stream, into / name, contents[name], archive)
            missing.discard(name)
    except (gzip.BadGzipFile, EOFError, zlib.error, tarfile.TarError) as error:
        raise WrongContentError(f"{archive.name} is damaged ({_what(archive) or error})") from error
    if missing:
        raise WrongContentError(f"{archive.name} does not hold {', '.join(sorted(missing))}")


def _decode(archive: Path, wanted: Collection[str]) -> Iterator[tuple[str, Stream]]:
    """The wanted files' names and contents. Nothing is ever written to a path that an archive names."""
    if archive.name.endswith(".tar.gz"):
        names = set(wanted)
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                if name in names and (content := tar.extractfile(member)):
                    yield name, content
    else:
        (name,) = wanted
        with gzip.open(archive) if _is_gzipped(archive) else archive.open("rb") as opened:
            yield name, opened


def _is_gzipped(archive: Path) -> bool:
    """By the content: some browsers unpack a download, and leave its name."""
    with archive.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _write(stream: Stream, target: Path, expected: str, archive: Path) -> None:
    digest = hashlib.sha256()
    with written_whole(target) as temporary, temporary.open("wb") as file:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
        found = digest.hexdigest()
        if found != expected:
            raise WrongContentError(_wrong(target.name, expected, found, archive))


def _wrong(name: str, expected: str, found: str, archive: Path) -> str:
    kind = set_of(found)
    if kind:
        return f"{name} in {archive} is that of {kind}"
    what = _what(archive)
    return f"{archive} is {what}" if what else f"{name} in {archive} has sha256 {found} instead of {expected}"


def _what(archive: Path) -> str | None:
    """What a file is that only claims to be an archive: an error page, most often."""
    with archive.open("rb") as file:
        start = file.read(512).lstrip().lower()
    if not start:
        return "empty"
    return "a web page" if start.startswith((b"<!doctype html", b"<html")) else None

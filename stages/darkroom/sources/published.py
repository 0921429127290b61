"""A published set, from the web or from a local folder, whole and checked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from darkroom.door import say
from darkroom.errors import UserError, some_of
from darkroom.filenames import is_litter
from darkroom.files import lock, sha256_file, written_whole
from darkroom.sources.catalogue import Archive, PublishedSet, same_name
from darkroom.sources.containers import WrongContentError, unpack
from darkroom.sources.transfer import UnreachableError, fetch

DEPTH = 3
"""folders below `data.folder` that are searched: torchvision keeps `FashionMNIST/raw/train-images-idx3-ubyte`"""


def download(name: str, published: PublishedSet, source: str, store: Path) -> None:
    """Makes `store` hold the set's content; what it holds already, whole, is not asked for again.

    `source`: a mirror's address, or "" for the set's own. Raises UserError that says what else can be done.
    """
    bases = [source.rstrip("/") + "/"] if source else list(published.addresses)
    with lock(store / "lock", waiting=lambda holder: say(f"{name} is being downloaded by {holder}: waiting")):
        missing = [archive for archive in published.archives if not _is_whole(store, archive)]
        if not missing:
            say(f"{name}: the copy in {store} is whole")
        for archive in missing:
            _download_checked(archive, [base + archive.name for base in bases], store, published)
        shutil.rmtree(store / "arriving", ignore_errors=True)  # what is left of other addresses


def link(store: Path, published: PublishedSet, into: Path) -> None:
    """The set's files in `into`: hard links, or copies on another disk. They are only ever replaced, never changed."""
    for name in published.contents:
        try:
            (into / name).hardlink_to(store / name)
        except OSError:
            with written_whole(into / name) as temporary:
                shutil.copyfile(store / name, temporary)


def _is_whole(store: Path, archive: Archive) -> bool:
    return all(_has(store / name, sha256) for name, sha256 in archive.contents.items())


def _has(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_file(path) == sha256


def _download_checked(archive: Archive, addresses: list[str], store: Path, published: PublishedSet) -> None:
    """Fetches and unpacks; what turns out wrong is thrown away and fetched once more, from elsewhere where possible."""
    arrived = store / "arriving" / archive.name
    faults = []
    for order in (addresses, addresses[1:] + addresses[:1]):
        try:
            address = fetch(order, arrived)
        except UnreachableError as error:
            raise UserError(f"no download: {error}\n{_ways_out(published)}") from None
        try:
            unpack(arrived, archive.contents, store)
        except WrongContentError as error:
            faults.append(f"{address}: {str(error).replace(f'{arrived.parent}{os.sep}', '')}")
            say(f"{faults[-1]}; thrown away")
        else:
            return
        finally:
            arrived.unlink(missing_ok=True)
    raise UserError("\n".join(["wrong content, twice:", *dict.fromkeys(faults), _ways_out(published)]))


def _ways_out(published: PublishedSet) -> str:
    names = ", ".join(archive.name for archive in published.archives)
    return f"set data.source to a mirror's address, or data.folder to a folder that holds {names}"


def is_vacant(folder: Path) -> bool:
    """Whether nothing but notes and DVC's own files lies in `folder`."""
    return all(
        is_litter(entry.name) or entry.suffix == ".dvc" or entry.name.lower().startswith("readme")
        for entry in folder.iterdir()
    )


def lacks(folder: Path, published: PublishedSet) -> bool:
    """Whether no file in `folder` has the name of one of the set's, packed or not."""
    wanted = {same_name(Path(name)) for archive in published.archives for name in (archive.name, *archive.contents)}
    return not wanted & _files_by_name(folder).keys()


def take_from(folder: Path, name: str, published: PublishedSet, into: Path) -> None:
    """Unpacks the set's files that lie in `folder`, packed in whatever way, into `into`. Raises UserError."""
    files = _files_by_name(folder)
    for archive in published.archives:
        faults = []
        for parts in _candidates(archive, files):
            try:
                for path, contents in parts:
                    unpack(path, contents, into)
            except WrongContentError as error:
                faults.append(str(error))
            else:
                break
        else:
            raise UserError(_not_the_set(folder, name, archive, published, files, faults))


def _files_by_name(folder: Path) -> dict[str, list[Path]]:
    """Published name -> where files of that name lie, in order."""
    found: dict[str, list[Path]] = {}
    for parent, folders, names in os.walk(folder, followlinks=True):
        depth = len(Path(parent).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not is_litter(name)) if depth < DEPTH else []
        for name in sorted(names):
            path = Path(parent, name)
            found.setdefault(same_name(path), []).append(path)
    return found


def _candidates(archive: Archive, files: Mapping[str, list[Path]]) -> Iterator[list[tuple[Path, dict[str, str]]]]:
    """Ways to get the archive's content: unpacked in one folder, or packed."""
    first, *_ = archive.contents
    for path in files.get(first, []):
        beside = {name: _beside(path, name, files) for name in archive.contents}
        if all(beside.values()):
            yield [(place, {name: archive.contents[name]}) for name, place in beside.items() if place]
    if archive.name not in archive.contents:
        for path in files.get(archive.name, []):
            yield [(path, archive.contents)]


def _beside(path: Path, name: str, files: Mapping[str, list[Path]]) -> Path | None:
    return next((other for other in files.get(name, []) if other.parent == path.parent), None)


def _not_the_set(
    folder: Path,
    name: str,
    archive: Archive,
    published: PublishedSet,
    files: Mapping[str, list[Path]],
    faults: list[str],
) -> str:
    wanted = ", ".join(archive.name for archive in published.archives)
    if faults:
        problem = "; ".join(faults)
    elif any(known in files for known in (*published.contents, *(each.name for each in published.archives))):
        problem = f"{folder} holds a part of {name}, but not {archive.name}"
    else:
        entries = sorted(entry.name for entry in folder.iterdir() if not is_litter(entry.name))
        problem = f"{folder} holds something else ({some_of(entries)})"
    return (
        f"data.folder: {problem}\n{name} is {wanted}, or these unpacked: name a folder that holds them, "
        "or an empty one to download them; for your own pictures set data.name: image_folder"
    )

"""Brings the pictures in and checks them.

Reads   data.folder
Writes  data/raw
Keys    data.name, data.source, data.folder

The pictures come from the web (the set's own address, or the mirror `data.source`), from the folder `data.folder`, or
from scikit-learn, which brings the digits along. Downloads are kept in <root>/.downloads/<name>, which all experiments
share, and checked there before they are linked. data/raw/manifest.json names each file with its sha256.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from darkroom.door import enter, root, say
from darkroom.errors import UserError
from darkroom.params import read_params

KEYS = ("data.name", "data.source", "data.folder")
OWN = Path("data/own")
"""where `data.folder` points as cloned: one's own pictures there are no published files"""


def main() -> None:
    data = read_params().data
    download(
        Path("data/raw"),
        name=data.name,
        source=data.source,
        folder=Path(data.folder),
        root=root(),
    )


def download(raw: Path, *, name: str, source: str, folder: Path, root: Path) -> dict[str, Any]:
    """Makes `raw` hold the whole verified set, or leaves it as it was.

    Returns the number of files and of bytes. Raises UserError.
    """
    from darkroom.files import write_json, written_folder
    from darkroom.sources.progress import size

    with written_folder(raw) as draft:
        manifest = _bring(draft, name, source, folder, root)
        write_json(draft / "manifest.json", {"name": name, **manifest})
    num_bytes = sum((raw / file).stat().st_size for file in manifest["files"])
    num_files = len(manifest["files"])
    say(f"wrote {raw}: {name}, {num_files:,} file{'s' if num_files > 1 else ''}, {size(num_bytes)}, checked")
    return {"num_files": num_files, "num_bytes": num_bytes}


def _bring(draft: Path, name: str, source: str, folder: Path, root: Path) -> dict[str, Any]:
    """The files in `draft`; what the manifest says of them."""
    if name == "image_folder":
        return _own_pictures(draft, folder, root)
    from darkroom.sources.catalogue import CATALOGUE
    from darkroom.sources.published import download as download_published
    from darkroom.sources.published import is_vacant, lacks, link, take_from

    published = CATALOGUE[name]
    if name == "digits":
        take_from(_scikit_learns_data(), name, published, draft)
        return {"origin": "embedded", "files": published.contents}
    _check_folder(folder, root)
    if not is_vacant(folder):
        if folder != OWN or not lacks(folder, published):
            say(f"{name}: using the published files in {folder}, by the sha256 of what is in them")
            take_from(folder, name, published, draft)
            return {"origin": "data.folder", "files": published.contents}
        say(f"{name}: {folder} holds no file of it, only your own: it is downloaded (data.folder names another folder)")
    store = root / ".downloads" / name
    download_published(name, published, source, store)
    link(store, published, draft)
    return {"origin": source or published.addresses[0], "files": published.contents}


def _own_pictures(draft: Path, folder: Path, root: Path) -> dict[str, Any]:
    from darkroom.sources import own

    _check_folder(folder, root)
    found = own.find(folder)
    return {
        "origin": "data.folder",
        "files": own.copy(folder, found, draft),
        "empty_folders": found.empty_folders,
        "left_out": found.left_out,
    }


def _check_folder(folder: Path, root: Path) -> None:
    """Raises UserError where the folder is missing, or was left behind when DVC copied the repository."""
    from darkroom.sources.published import is_vacant

    vacant = not folder.is_dir() or is_vacant(folder)
    original = root / folder
    if vacant and not folder.is_absolute() and root != Path.cwd() and original.is_dir() and not is_vacant(original):
        raise UserError(
            f"data.folder: {folder} has nothing in this temporary experiment, which sees only what git or DVC tracks: "
            f"type `dvc add {folder}`, or name the folder by its absolute path ({original})"
        )
    if not folder.is_dir():
        raise UserError(f"data.folder: {folder} is {'a file' if folder.exists() else 'missing'} (a folder is needed)")


def _scikit_learns_data() -> Path:
    """Where scikit-learn keeps its small sets; found without importing it, which takes longer than this whole stage."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise UserError("data.name: digits come with scikit-learn, which is not installed (make repro installs it)")
    return Path(package.submodule_search_locations[0], "datasets", "data")


if __name__ == "__main__":
    enter(main)

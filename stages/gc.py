# ruff: noqa: A005 - `import gc` finds the module that is built into Python, never this script
"""Lists what nothing needs any more, and with --yes removes it: `make gc`, `make gc YES=1`.

Finished checkpoints of trainings that no run and not the workspace's model names, what pruned trials leave, artifacts of
deleted runs, downloads of sets that data/raw does not hold, folds of old sweeps. Never anything else.

Run by hand: python stages/gc.py [--yes] [--days N]

Reads   .checkpoints, mlruns, .downloads, .folds, data/raw, metrics/train.json, the tracking store
Writes  nothing; with --yes removes what it lists
Keys    tracking
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from darkroom.door import enter, root, say
from darkroom.params import read_params

if TYPE_CHECKING:
    from darkroom.tracking.store import Store

DAYS = 14
"""An unfinished checkpoint younger than this may be gone on with."""


@dataclass(frozen=True)
class Leftover:
    """Something that nothing needs."""

    path: Path
    why: str
    num_bytes: int


def main() -> None:
    options = _options()
    params = read_params()
    from darkroom.tracking import open_store

    place = root()
    found = gc(open_store(params.tracking, place), workspace=Path(), days=options.days, remove=options.yes)
    for leftover in found:
        say(f"{_size(leftover.num_bytes):>10}  {leftover.path.relative_to(place)}  ({leftover.why})")
    total = _size(sum(leftover.num_bytes for leftover in found))
    if not found:
        say("nothing to remove: all checkpoints, artifacts and downloads are in use")
    elif options.yes:
        say(f"removed {total}")
    else:
        say(f"{total} in all; make gc YES=1 removes it")


def gc(store: Store, *, workspace: Path, days: float = DAYS, remove: bool = False) -> list[Leftover]:
    """What nothing needs below the store's root; with `remove` it is gone afterwards.

    `workspace` holds the metrics and data that are in use; unfinished checkpoints younger than `days` are kept.
    """
    from darkroom.tracking.leftovers import orphan_artifacts

    places = [*_checkpoints(store, workspace, days), *orphan_artifacts(store), *_downloads(store.root, workspace)]
    places += [(path, f"of a sweep of {days:g} days ago") for path in _folds(store.root, days)]
    found = [Leftover(path, why, _num_bytes(path)) for path, why in places]
    if remove:
        for leftover in found:
            shutil.rmtree(leftover.path)
    return found


def _checkpoints(store: Store, workspace: Path, days: float) -> Iterator[tuple[Path, str]]:
    from darkroom.tracking.leftovers import named_fingerprints

    folders = [folder for folder in sorted((store.root / ".checkpoints").glob("*")) if folder.is_dir()]
    named = named_fingerprints(store) if folders else {}
    present = _of_workspace(store, workspace)
    for folder in folders:
        if folder.name in present or _in_use(folder):
            continue
        if folder.name in named:
            if named[folder.name] == {"FINISHED"} and not any(folder.glob("*.pt")):
                yield folder, "holds no checkpoint, and its run has ended"
        elif (folder / "finished.pt").exists():
            yield folder, "finished, and no run names it"
        elif (age := _age_in_days(folder)) >= days:
            yield folder, f"unfinished for {age:.0f} days, and no run names it"


def _of_workspace(store: Store, workspace: Path) -> set[str]:
    """The fingerprint of the training behind the workspace's model, as its run or its metrics have it."""
    from darkroom.files import read_json
    from darkroom.tracking.leftovers import FINGERPRINT

    path = workspace / "metrics/train.json"
    numbers = read_json(path, "dvc repro train") if path.is_file() else {}
    run = store.find(str(numbers.get("mlflow_run_id", "")))
    return {str(numbers.get("fingerprint", "")), run.data.tags.get(FINGERPRINT, "") if run else ""}


def _in_use(folder: Path) -> bool:
    """Whether a training holds the folder now."""
    from filelock import FileLock, Timeout

    if not (folder / "lock").exists():  # asking would make one
        return False
    try:
        with FileLock(folder / "lock", timeout=0):
            return False
    except Timeout:
        return True


def _downloads(place: Path, workspace: Path) -> Iterator[tuple[Path, str]]:
    from darkroom.files import read_json

    manifest = workspace / "data/raw/manifest.json"
    used = read_json(manifest, "dvc repro download").get("name") if manifest.is_file() else None
    for folder in sorted((place / ".downloads").glob("*")):
        if folder.is_dir() and folder.name != used:
            yield folder, "data/raw holds another set" if folder.name != "models" else "fetched from the store"


def _folds(place: Path, days: float) -> Iterator[Path]:
    return (folder for folder in sorted((place / ".folds").glob("*")) if _age_in_days(folder) > days)


def _age_in_days(folder: Path) -> float:
    """Since a training last wrote there; its lock is touched by whoever asks."""
    written = (path.stat().st_mtime for path in folder.rglob("*") if path.name != "lock")
    newest = max(written, default=folder.stat().st_mtime)
    return (time.time() - newest) / 86400


def _num_bytes(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:,.1f} kB"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Lists what nothing needs any more: checkpoints, artifacts, downloads."
    )
    parser.add_argument("--yes", action="store_true", help="remove what is listed")
    parser.add_argument(
        "--days", type=float, default=DAYS, help="keep unfinished checkpoints younger than this (default %(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    enter(main)

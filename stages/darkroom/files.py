"""Files that are whole or absent: atomic writes, hashes, strict JSON, locks with a named holder."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from darkroom.errors import UserError


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and is gone otherwise.

    Temporary file, fsync, rename, fsync of the folder: after a crash at any point `path` is the old file or the new one.
    Raises UserError on a full disk.
    """
    temporary = None
    try:
        temporary = _temporary_beside(path)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        told = disk_error(error, path)
        if told is error:
            raise
        raise told from error
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)


def _temporary_beside(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    return Path(name)


@contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that takes its place when the block ends well, and is gone otherwise.

    So `path` holds all of its files or, after a crash at the wrong moment, is absent. Raises UserError on a full disk.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        if path.exists():
            shutil.rmtree(path)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(error, path) from error
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)


def disk_error(error: OSError, path: Path) -> Exception:
    """The error as a user's sentence where the disk is full or not writable; the error itself otherwise."""
    reasons = {
        errno.ENOSPC: "the disk is full: free some space and run the same command again",
        errno.EDQUOT: "the disk quota is used up: free some space and run the same command again",
        errno.EFBIG: "the file is too large for this disk, or for the limit set for files (ulimit -f)",
        errno.EROFS: "the disk is read-only",
        errno.EACCES: "no permission to write here",
    }
    reason = reasons.get(error.errno or 0)
    return UserError(f"{path}: {reason} (nothing was changed)") if reason else error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` last through a power cut (no such call on Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_bytes(path: Path, content: bytes) -> None:
    with written_whole(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, values: Any) -> None:
    """Sorted, strict JSON: a number that is not finite becomes null, since JSON has no NaN."""
    write_text(path, json.dumps(finite(values), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def finite(values: Any) -> Any:
    """`values` with null for each float that is NaN or infinite."""
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, Mapping):
        return {str(key): finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite(value) for value in values]
    return values


def read_json(path: Path, made_by: str) -> Any:
    """The values in `path`; `made_by` is the command that an error names. Raises UserError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise missing(path, made_by) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}): run {made_by}") from None


def missing(path: Path, made_by: str) -> UserError:
    return UserError(f"{path} is missing: run {made_by}")


def sha256_bytes(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_code(*places: Path) -> str:
    """One hash for the Python files at or below `places`: their names and contents, in order."""
    digest = hashlib.sha256()
    for place in places:
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(f"{path.relative_to(place.parent).as_posix()}\0{sha256_file(path)}\0".encode())
    return digest.hexdigest()


@contextmanager
def lock(path: Path, waiting: Callable[[str], None] | None = None, timeout: float = -1) -> Iterator[None]:
    """Holds `path` alone; freed when the block or the process ends.

    While another process holds it, `waiting` is called once with that holder ("process 123 on host").
    `timeout` in seconds, -1 for as long as it takes. Raises UserError that names the holder when time is up.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    holder = path.with_suffix(".holder")
    file_lock = FileLock(path)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        name = _name_in(holder)
        if waiting:
            waiting(name)
        try:
            file_lock.acquire(timeout=timeout)
        except Timeout:
            raise UserError(f"{path} is held by {name}: wait for it, or stop it") from None
    try:
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        holder.unlink(missing_ok=True)
        file_lock.release()


def _name_in(holder: Path) -> str:
    try:
        return holder.read_text() or "another process"
    except FileNotFoundError:
        return "another process"

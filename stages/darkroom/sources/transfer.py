"""Downloads over HTTP that go on where they broke off.

A dropped connection costs nothing: as long as bytes arrive, the rest is asked for (HTTP Range, RFC 9110 section 14).
Where none arrive, the addresses are tried in turn, with growing pauses.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from io import FileIO
from pathlib import Path

import requests
import urllib3

from darkroom.door import say
from darkroom.files import disk_error
from darkroom.sources.progress import progress, size

CHUNK = 1 << 18
ROUNDS = 4
FIRST_PAUSE = 1.0
"""seconds; doubled after each round"""
TIMEOUT = (10.0, 60.0)
"""seconds without a connection, without a byte"""


class UnreachableError(Exception):
    """No address gave the file."""


class _RefusedError(Exception):
    """An answer that waiting does not change, such as 404."""


class _DroppedError(Exception):
    """A connection that could not be made or kept, or a server's passing trouble."""


def fetch(addresses: Sequence[str], target: Path) -> str:
    """Downloads `target` from the first of `addresses` (all hold the same file) that gives it, and returns that one.

    What arrived before an interruption lies beside `target` and is used the next time.
    Raises UnreachableError that names each address with its reason, and UserError on a full disk.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    faults: dict[str, str] = {}
    willing = list(addresses)
    with requests.Session() as session:
        for attempt in range(ROUNDS):
            if attempt and willing:
                pause = FIRST_PAUSE * 2 ** (attempt - 1)
                say(f"{willing[0]}: {faults[willing[0]]}; trying again in {pause:.0f} s")
                time.sleep(pause)
            for address in list(willing):
                try:
                    _fetch_from(session, address, target)
                except (_RefusedError, _DroppedError) as error:
                    faults[address] = str(error)
                    if isinstance(error, _RefusedError):
                        willing.remove(address)
                else:
                    return address
    raise UnreachableError("; ".join(f"{address}: {fault}" for address, fault in faults.items()))


def _fetch_from(session: requests.Session, address: str, target: Path) -> None:
    """Asks for what is missing as long as each answer brings some of it."""
    # A part belongs to its address: the same file may be packed differently elsewhere.
    part = target.with_name(f"{target.name}.{hashlib.sha256(address.encode()).hexdigest()[:8]}.part")
    while True:
        before = _length(part)
        try:
            _receive(session, address, part)
        except _DroppedError:
            if _length(part) <= before:
                raise
        else:
            part.replace(target)
            return


def _receive(session: requests.Session, address: str, part: Path) -> None:
    """One answer of the server, added to what `part` already holds."""
    done = _length(part)
    # identity: the file as it lies there; a server must not pack it on the way, nor we unpack it
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        with session.get(address, headers=headers, stream=True, timeout=TIMEOUT) as response:
            start = _start(response, done, part)
            length = response.headers.get("Content-Length")
            total = start + int(length) if length and length.isdigit() else None
            of_size = f" ({size(total)})" if total else ""
            say(f"downloading {address}{of_size}" + (f" from {size(start)} on" if start else ""))
            with _opened(part, start) as file, progress(part.name.split(".")[0], start, total) as arrived:
                for chunk in response.raw.stream(CHUNK, decode_content=False):
                    _write(file, chunk, part)
                    arrived(len(chunk))
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise _DroppedError(_reason(error)) from error


def _start(response: requests.Response, done: int, part: Path) -> int:
    """The first byte that the answer brings: `done` where the server goes on, 0 where it starts anew."""
    status = response.status_code
    if status == requests.codes.ok:
        return 0
    brings = response.headers.get("Content-Range", "")
    if status == requests.codes.partial_content and brings.startswith(f"bytes {done}-"):
        return done
    if status in (requests.codes.partial_content, requests.codes.requested_range_not_satisfiable):
        part.unlink(missing_ok=True)  # the file there is another one by now
        raise _DroppedError("the file changed while it was downloaded")
    fault = f"the server says {status} {response.reason}"
    if status >= 500 or status in (requests.codes.request_timeout, requests.codes.too_many_requests):
        raise _DroppedError(fault)
    raise _RefusedError(fault)


def _opened(part: Path, start: int) -> FileIO:
    try:
        return part.open("ab" if start else "wb", buffering=0)  # so that a full disk is told at the write that meets it
    except OSError as error:
        raise disk_error(error, part) from error


def _write(file: FileIO, chunk: bytes, part: Path) -> None:
    left = memoryview(chunk)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        part.unlink(missing_ok=True)  # gives the room back
        raise disk_error(error, part) from error


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _reason(error: Exception) -> str:
    """The innermost reason in a few words: requests wraps urllib3, which wraps the system's error."""
    while True:
        inner = getattr(error, "reason", None) or next((arg for arg in error.args if isinstance(arg, Exception)), None)
        if not isinstance(inner, Exception):
            break
        error = inner
    return re.sub(r"^(<.*?>|HTTPS?Connection\(.*?\)): ", "", str(error))

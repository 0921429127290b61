"""Which process works on a run, and whether it still does."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import psutil

HOST, PID, STARTED = "darkroom.host", "darkroom.pid", "darkroom.process_started"
ELSEWHERE_SECONDS = 3600


@cache
def host() -> str:
    """This machine's name; with its identity where it has one, since many machines are called localhost."""
    identity = Path("/etc/machine-id")
    known = identity.read_text().strip()[:8] if identity.is_file() else ""
    return f"{socket.gethostname()} {known}".strip()


def this_process() -> dict[str, str]:
    """Tags that tell this process from any other, also from a later one with the same number."""
    return {HOST: host(), PID: str(os.getpid()), STARTED: f"{psutil.Process().create_time():.2f}"}


def is_gone(tags: Mapping[str, str]) -> bool:
    """Whether the process that a run's `tags` name ran on this machine and runs no longer. False where unknown."""
    if tags.get(HOST) != host() or not tags.get(PID, "").isdigit():
        return False
    try:
        process = psutil.Process(int(tags[PID]))
        same = abs(process.create_time() - float(tags.get(STARTED, "nan"))) < 1.0
        return not same or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except (psutil.AccessDenied, ValueError):
        return False


def may_work(tags: Mapping[str, str], created: int) -> bool:
    """Whether another process may still be working on what has these `tags` and was `created` then (ms since 1970).

    One on this machine does as long as it runs; of one elsewhere it is believed for an hour.
    """
    if HOST not in tags or is_gone(tags):
        return False
    if tags[HOST] == host():
        return tags.get(PID) != str(os.getpid())
    return time.time() - created / 1000 < ELSEWHERE_SECONDS


def facts() -> dict[str, str]:
    """Python, operating system and processor, as tags."""
    return {
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()}",
        "cpu": f"{_processor()} ({psutil.cpu_count(logical=False) or '?'} cores, {psutil.cpu_count()} threads)",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

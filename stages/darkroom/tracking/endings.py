"""How a run ends, by what its stage ended with."""

from __future__ import annotations

from typing import Literal

from darkroom.door import Terminated
from darkroom.errors import UserError
from darkroom.tracking.address import first_line

Status = Literal["FINISHED", "FAILED", "KILLED"]


def ending_of(error: BaseException | None) -> tuple[Status, str]:
    """How a run ends that was left with `error`, and why in a line."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return "FINISHED", ""
    if isinstance(error, Terminated | KeyboardInterrupt):
        return "KILLED", "stopped by SIGTERM" if isinstance(error, Terminated) else "stopped by Ctrl-C"
    return "FAILED", in_a_line(error)


def in_a_line(error: BaseException) -> str:
    said = first_line(error)
    return said if isinstance(error, UserError) else f"{type(error).__name__}: {said}".removesuffix(": ")

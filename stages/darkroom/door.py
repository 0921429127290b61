"""How a script in stages/ starts and ends.

`enter(main)` turns a user's mistake into one line and exit code 1, SIGTERM into an orderly end with 143, and a vanished
`dvc` or launcher into the same: either, killed alone, leaves its children running, which would then write into the next run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from darkroom.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[2]
WATCH_SECONDS = 0.5
RANK = "RANK"
"""Set by torch's launcher for each of several processes that train together; 0 is the one that speaks."""
PARTING_SECONDS = 30
"""How long a process whose caller is gone has to save and close what is open: it may wait for one that is gone too."""
BROUGHT_BACK = (
    "The stage's earlier outputs are in DVC's cache: `dvc checkout` brings them back, and `git checkout metrics` its numbers "
    "where they are committed; once this is put right, `dvc repro` brings back both."
)


class Terminated(SystemExit):
    """SIGTERM, or the end of the process that started this one. Unwinds the stack, so that what is open gets closed."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


def root() -> Path:
    """Where databases, downloads and checkpoints live: DVC_ROOT where set, else the repository.

    In a temporary experiment DVC_ROOT is the real repository, while the working directory is a copy that DVC deletes.
    """
    return Path(os.environ.get("DVC_ROOT") or REPOSITORY).resolve()


def enter(main: Callable[[], None]) -> None:
    """Runs a script's main as its users expect: no traceback for a user's mistake, exit codes 0, 1, 130 and 143."""
    signal.signal(signal.SIGTERM, _terminate)
    if "DVC_STAGE" in os.environ or RANK in os.environ:
        threading.Thread(target=_stop_with_caller, args=(_callers(),), daemon=True).start()
    try:
        main()
    except UserError as error:
        _refuse(str(error))
    except ModuleNotFoundError as error:
        path = _left_behind(error.name or "")
        if path is None:
            raise
        _refuse(
            f"{path} is not in git, so this temporary experiment has no copy of it: git add {path}, and run it again"
        )
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # `python stages/predict.py … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(reason: str) -> NoReturn:
    rank = os.environ.get(RANK, "0")
    print(f"\nerror: {reason}" if rank == "0" else f"\nerror in process {rank}: {reason}", file=sys.stderr)
    if "DVC_STAGE" in os.environ:
        print(f"\n{BROUGHT_BACK}", file=sys.stderr)
    sys.exit(1)


def _left_behind(module: str) -> Path | None:
    """The file of `module` where it lies in the root but not in this copy of the repository: DVC copies what git knows."""
    if root() == REPOSITORY:
        return None
    place = Path("stages", *module.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((path for path in files if (root() / path).exists()), None)


class Stop:
    """Whether someone asked this process to stop while `orderly_stop` held the signal back."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def obey(self) -> None:
        """Ends the process as the signal would have. Raises Terminated or KeyboardInterrupt."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated


@contextmanager
def orderly_stop() -> Iterator[Stop]:
    """Holds SIGTERM and Ctrl-C back, so that work in hand can be saved: look at `stop.signal`, save, then `stop.obey()`.

    A second signal ends the process at once. Does nothing outside the main thread, where Python takes no signals.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def hold_back(number: int, _frame: FrameType | None) -> None:
        if stop.signal is not None:
            stop.obey()
        stop.signal = number

    before = {number: signal.signal(number, hold_back) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say(text: str) -> None:
    """A line for the person at the terminal; of several processes that train together, one speaks."""
    if os.environ.get(RANK, "0") == "0":
        print(text, flush=True)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise Terminated


def _callers() -> list[int]:
    """The process of dvc, or of torch's launcher, and the shell between it and this one where the shell did not exec."""
    import psutil

    parents = psutil.Process().parents()
    shells = ("sh", "bash", "dash", "zsh", "fish")
    upto = next((i for i, parent in enumerate(parents) if parent.name() not in shells), 0)
    return [parent.pid for parent in parents[: upto + 1]]


def _stop_with_caller(callers: list[int]) -> None:
    import psutil

    started = {pid: psutil.Process(pid).create_time() for pid in callers if psutil.pid_exists(pid)}
    while all(_alive(pid, when) for pid, when in started.items()):
        time.sleep(WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    if RANK in os.environ:
        time.sleep(PARTING_SECONDS)
        os._exit(128 + signal.SIGTERM)


def _alive(pid: int, created: float) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        return process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

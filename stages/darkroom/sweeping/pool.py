"""The workers as the coordinator sees them: started once, replaced when one is killed, gone when the sweep ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Literal, Self

import psutil

from darkroom.sweeping.worker import Message, Opener, Task, work

MOST_WORKERS = 4
"""`sweep.workers: auto` starts no more: each holds torch and MLflow, about half a gigabyte."""
PATIENCE = 30
"""seconds that workers have to end a trial in order"""


@dataclass(frozen=True)
class Died:
    """A worker that ended without being asked."""

    reason: str


@dataclass(eq=False)
class Worker:
    """One process, and the line to it."""

    process: SpawnProcess
    connection: Connection
    ready: bool = False

    def send(self, message: Task | bool | None) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: `Pool.messages` says so next
            self.connection.send(message)

    def receive(self) -> Message | Died:
        try:
            message: Message = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return Died(_reason(self.process.exitcode or 0))
        return message


@dataclass
class Pool:
    """Workers of one sweep, as a context."""

    opener: Opener
    threads: int
    """torch's, of each"""
    workers: list[Worker] = field(default_factory=list)
    _started: list[SpawnProcess] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception | None):
            self.stop()
            deadline = time.monotonic() + PATIENCE
            for process in self._started:
                process.join(max(0.0, deadline - time.monotonic()))
        for process in self._started:  # at once where the user pressed Ctrl-C twice
            process.kill()
            process.join()

    def start(self) -> Worker:
        """A new process; it says Ready when it has opened its data.

        Spawned, not forked: a fork copies the locks of threads that it does not copy, torch's and MLflow's among them.
        """
        context = get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=work, args=(there, self.opener, self.threads), daemon=True)
        with _without_ctrl_c():
            process.start()
        there.close()  # its other end is the worker's alone, so that a killed worker is seen as the end of the line
        self._started.append(process)
        self.workers.append(Worker(process, here))
        return self.workers[-1]

    def remove(self, worker: Worker) -> None:
        """Hangs up: the worker ends when it has read what it was sent."""
        self.workers.remove(worker)
        worker.connection.close()

    def messages(self, seconds: float) -> Iterator[tuple[Worker, Message | Died]]:
        """What workers say within that time; the end of one is a message too."""
        by_connection = {worker.connection: worker for worker in self.workers}
        for connection in wait(list(by_connection), timeout=seconds):
            worker = by_connection[connection]  # type: ignore[index]  # wait gives back what it was given
            yield worker, worker.receive()

    def stop(self) -> None:
        """Asks all to end in order: trials that run are stopped, and say so."""
        for worker in self.workers:
            worker.process.terminate()


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Processes started here never see SIGINT, not while they load Python either; this one sees it a moment later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def divide(workers: int | Literal["auto"], most: int) -> tuple[int, int]:
    """How many workers for at most `most` trials at once, and the threads of each: OMP_NUM_THREADS at most, where it is set."""
    cores = physical_cores()
    num_workers = min(most, min(cores, MOST_WORKERS) if workers == "auto" else workers)
    share = max(1, cores // max(1, num_workers))
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return num_workers, min(share, int(limit)) if limit.isdigit() and int(limit) else share


def physical_cores() -> int:
    """Cores that this process may use; a core of two hardware threads is one.

    Of a Slurm job those that it was given: not every cluster holds a job on its own.
    """
    logical = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = os.environ.get("SLURM_CPUS_ON_NODE", "")
    logical = min(logical, int(given)) if given.isdigit() else logical
    return max(1, min(logical, psutil.cpu_count(logical=False) or logical))


def _reason(exit_code: int) -> str:
    if exit_code == -9:
        return "its worker was killed (signal 9; the system does so when memory runs out: try fewer --workers)"
    return f"its worker ended with {f'signal {-exit_code}' if exit_code < 0 else f'exit code {exit_code}'}"

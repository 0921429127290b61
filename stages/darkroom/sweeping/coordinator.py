"""The process that holds the study: gives trials to workers, hears their reports, and ends them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from darkroom.door import orderly_stop
from darkroom.errors import UserError
from darkroom.sweeping.ledger import Claim, Ledger
from darkroom.sweeping.pool import PATIENCE, Died, Pool, Worker
from darkroom.sweeping.progress import Progress
from darkroom.sweeping.space import Point
from darkroom.sweeping.worker import Ended, Message, Ready, Report, Started, Task

WAKE_SECONDS = 0.2
"""How soon a Ctrl-C is seen while all workers train."""


@dataclass
class Coordinator:
    """One sweep under way."""

    ledger: Ledger
    pool: Pool
    values: Callable[[Point], dict[str, Any]]
    """all that the train stage takes, for a point"""
    progress: Progress
    running: dict[Worker, Claim] = field(default_factory=dict)
    stopping: bool = False

    def run(self, num_workers: int) -> None:
        """Trains until the study has its total. Ctrl-C or SIGTERM ends running trials in order, a second one at once.

        Raises KeyboardInterrupt or Terminated after such an end, UserError where workers cannot start.
        """
        try:
            with orderly_stop() as stop, self.pool:
                for _ in range(num_workers):
                    self.pool.start()
                while self.pool.workers and stop.signal is None:
                    self._hear()
                if stop.signal is not None:
                    self._stop()
                    stop.obey()
        except BaseException:
            with suppress(Exception):  # where it is the storage that is gone, the next start does this
                for claim in self.running.values():
                    self.ledger.interrupt(claim)
            raise
        finally:
            self.progress.close()

    def _hear(self) -> None:
        for worker, message in self.pool.messages(WAKE_SECONDS):
            self._handle(worker, message)

    def _stop(self) -> None:
        self.stopping = True
        self.pool.stop()
        deadline = time.monotonic() + PATIENCE
        while self.running and time.monotonic() < deadline:
            self._hear()

    def _handle(self, worker: Worker, message: Message | Died) -> None:
        match message:
            case Ready():
                worker.ready = True
                self._give(worker)
            case Started(run_id):
                self.ledger.started(self.running[worker], run_id)
            case Report(epoch, value):
                worker.send(self.ledger.report(self.running[worker], epoch, value))
            case Ended("unopened", error=error):
                raise UserError(error)
            case Ended("stopped"):
                self._lost(worker, "its worker was told to stop")
            case Ended():
                self._ended(worker, self.running.pop(worker), message)
            case Died(reason):
                self._lost(worker, reason)

    def _give(self, worker: Worker) -> None:
        """Sends the worker its next trial, or home."""
        claim = None if self.stopping else self.ledger.claim()
        if claim is None:
            worker.send(None)
            self.pool.remove(worker)
            return
        self.running[worker] = claim
        self.progress.begin(claim)
        worker.send(Task(claim.number, self.values(claim.point), claim.run_id))

    def _ended(self, worker: Worker, claim: Claim, ended: Ended) -> None:
        if ended.state == "complete":
            how = f"{self.ledger.complete(claim, ended.scores):.4f}"
        elif ended.state == "pruned":
            told = self.ledger.prune(claim)
            how = f"pruned after epoch {told.last_step} at {told.value:.4f}"
        else:
            self.ledger.fail(claim, ended.error)
            how = f"failed: {ended.error}"
        self.progress.end(claim, how)
        self._give(worker)

    def _lost(self, worker: Worker, reason: str) -> None:
        """A worker is gone; its trial waits for another one, and another worker takes its place."""
        self.pool.remove(worker)
        claim = self.running.pop(worker, None)
        if claim is None:
            if not self.stopping and not worker.ready:
                raise UserError(f"a worker died while it opened the data: {reason}")
        elif self.stopping:
            self.ledger.interrupt(claim)
            self.progress.end(claim, "interrupted")
        else:
            goes_on = self.ledger.lose(claim, reason)
            self.progress.end(claim, f"lost: {reason}; it is run again" if goes_on else f"failed: {reason}, too often")
        if not self.stopping:
            self.pool.start()

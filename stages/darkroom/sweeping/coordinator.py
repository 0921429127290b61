"""The process that holds the study: gives trials to workers, hears their reports, and ends them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from darkroom.door import orderly_stop, say
from darkroom.errors import UserError
from darkroom.sweeping.ledger import Claim, Ledger
from darkroom.sweeping.pool import PATIENCE, Died, Pool, Worker
from darkroom.sweeping.progress import Progress
from darkroom.sweeping.space import Point
from darkroom.sweeping.standing import reached
from darkroom.sweeping.study import STORAGE_ERRORS, reason
from darkroom.sweeping.worker import Ended, Message, Ready, Report, Started, Task

T = TypeVar("T")
WAKE_SECONDS = 0.2
"""How soon a Ctrl-C is seen while all workers train."""
TEND_SECONDS = 2.0
"""How often a worker that has nothing to do looks whether another's trial is to be run again."""
MOST_UNOPENED = 3
"""Workers that die while they start, one after the other, until the sweep gives up: others would die alike."""
OUTAGE_SECONDS = 300.0
"""How long a storage may be away before the sweep gives up."""


@dataclass
class Coordinator:
    """One sweep under way."""

    ledger: Ledger
    pool: Pool
    values: Callable[[Point], dict[str, Any]]
    """all that the train stage takes, for a point"""
    progress: Progress
    timeout: float = 0.0
    """seconds after which no trial is begun; 0: never"""
    running: dict[Worker, Claim] = field(default_factory=dict)
    idle: list[Worker] = field(default_factory=list)
    """workers for which there was no trial; one of another machine may be lost yet"""
    unopened: int = 0
    """workers that died before they had opened the data, since one did or a trial ended"""
    stopping: bool = False
    _began: float | None = None
    """when the first trial was begun: what workers need to start is not the trials' time"""
    _tended: float = 0.0

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
                    self._tend()
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

    def _tend(self) -> None:
        """Says that this coordinator is at work, ends what others left, and gives idle workers something to do."""
        if time.monotonic() - self._tended < TEND_SECONDS:
            return
        self._tended = time.monotonic()
        patiently(self.ledger.roll.beat)
        patiently(self.ledger.recover)
        idle, self.idle = self.idle, []
        for worker in idle:
            self._give(worker)

    def _stop(self) -> None:
        self.stopping = True
        self.pool.stop()
        deadline = time.monotonic() + PATIENCE
        while self.running and time.monotonic() < deadline:
            self._hear()

    def _handle(self, worker: Worker, message: Message | Died) -> None:
        match message:
            case Ready():
                worker.ready, self.unopened = True, 0
                self._give(worker)
            case Started(run_id):
                patiently(partial(self.ledger.started, self.running[worker], run_id))
            case Report(step, value):
                worker.send(patiently(partial(self.ledger.report, self.running[worker], step, value)))
            case Ended("unopened", error=error):
                raise UserError(error)
            case Ended("stopped"):
                self._lost(worker, "its worker was told to stop", in_order=True)
            case Ended():
                self._ended(worker, self.running.pop(worker), message)
            case Died(reason):
                self._lost(worker, reason)

    def _give(self, worker: Worker) -> None:
        """Sends the worker its next trial; home, where no trial is left that could need it; or lets it wait."""
        ends = self.stopping or self._is_late()
        claim = None if ends else patiently(self.ledger.claim)
        if claim is not None:
            self.running[worker] = claim
            self._began = self._began or time.monotonic()
            self.progress.begin(claim)
            place, again = claim.attributes["place"], claim.retry_of is not None
            worker.send(Task(claim.number, self.values(claim.point), claim.run_id, place, again))
        elif ends or not patiently(lambda: self.ledger.is_open() and self.ledger.is_going()):
            worker.send(None)
            self.pool.remove(worker)
        else:
            self.idle.append(worker)

    def _is_late(self) -> bool:
        return bool(self.timeout) and self._began is not None and time.monotonic() - self._began > self.timeout

    def _ended(self, worker: Worker, claim: Claim, ended: Ended) -> None:
        self.unopened = 0
        how = patiently(partial(self._tell, claim, ended))
        patiently(partial(self.progress.end, claim, how))
        self._give(worker)

    def _tell(self, claim: Claim, ended: Ended) -> str:
        if not self.ledger.is_ours(claim):
            return "was taken over: this machine was not heard of for too long"
        if ended.state == "complete":
            return f"{self.ledger.complete(claim, ended.scores):.4f}"
        if ended.state == "pruned":
            told = self.ledger.prune(claim)
            return f"pruned after {reached(self.ledger.sweep, told)}"
        self.ledger.fail(claim, ended.error)
        return f"failed: {ended.error}"

    def _lost(self, worker: Worker, reason: str, *, in_order: bool = False) -> None:
        """A worker is gone; its trial waits for another one, and another worker takes its place.

        `in_order` where it was told to stop: a cluster that stops a job tells all of its processes, and a worker may
        be the first to say so. That is no fault of the trial's.
        """
        self.pool.remove(worker)
        claim = self.running.pop(worker, None)
        if claim is not None:
            how = patiently(partial(self._let_go, claim, reason, in_order=in_order))
            patiently(partial(self.progress.end, claim, how))
        elif worker in self.idle:
            self.idle.remove(worker)
        elif not worker.ready and not self.stopping:
            self.unopened += 1
            if self.unopened == MOST_UNOPENED:
                raise UserError(f"{MOST_UNOPENED} workers in a row died while they opened the data: {reason}")
        if not self.stopping:
            self.pool.start()

    def _let_go(self, claim: Claim, reason: str, *, in_order: bool) -> str:
        if self.stopping or in_order:
            self.ledger.interrupt(claim)
            return "interrupted"
        goes_on = self.ledger.lose(claim, reason)
        return f"lost: {reason}; it is run again" if goes_on else f"failed: {reason}, too often"


def patiently(do: Callable[[], T]) -> T:
    """Does it; where the storage is away, again and again for OUTAGE_SECONDS. So it must be such that twice is as once."""
    deadline, pause, told = time.monotonic() + OUTAGE_SECONDS, 1.0, False
    while True:
        try:
            return do()
        except STORAGE_ERRORS as error:
            if time.monotonic() > deadline:
                raise
            if not told:
                say(
                    f"sweep.storage does not answer ({reason(error)}): trying again for {OUTAGE_SECONDS / 60:.0f} minutes"
                )
            told = True
            time.sleep(pause)
            pause = min(2 * pause, 10.0)

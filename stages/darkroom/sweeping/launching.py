"""A sweep in the jobs of a cluster: what must be so before, who submits them, and who waits for them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from darkroom.door import Stop, orderly_stop, say
from darkroom.errors import UserError
from darkroom.files import sha256_bytes
from darkroom.params import Params, Sweep
from darkroom.params.sweep import STORAGE_VARIABLE
from darkroom.sweeping.clusters import (
    LOGS,
    Array,
    Job,
    SlurmError,
    check_commands,
    find_array,
    has_other_nodes,
    submit,
)
from darkroom.sweeping.coordinator import patiently
from darkroom.sweeping.ledger import Ledger
from darkroom.sweeping.pool import PATIENCE
from darkroom.sweeping.progress import Follower, Progress
from darkroom.sweeping.study import is_shared, shown
from darkroom.tracking.address import find_address

Answer = TypeVar("Answer")
MOST_JOBS = 4
"""`sweep.jobs: auto` submits no more."""
LOOK_SECONDS = 1.0
"""How often the study is looked at."""
ASK_SECONDS = 5.0
"""How often Slurm is asked: its one controller answers everyone."""
STOP_SECONDS = PATIENCE + 15
"""How long jobs that were told to stop have for it."""


def launch(ledger: Ledger, params: Params, *, root: Path, command: Sequence[str]) -> None:
    """Brings the study to `sweep.trials` with jobs that run `command`, a sweep of the same study on one machine.

    Jobs that an earlier call left at work are waited for instead. Raises UserError where the cluster does not take them,
    or where they end before the total is reached.
    """
    url, logs = params.sweep.storage, root / LOGS
    name = _job_name(url, params.sweep.study)
    array = find_array(name, logs) or submit(
        command,
        name=name,
        num_jobs=num_jobs(params.sweep, ledger.num_done()),
        options=params.sweep.slurm,
        environment={STORAGE_VARIABLE: url},
        logs=logs,
    )
    _announce(ledger, array)
    Watch(ledger, array, Progress(ledger)).run()


def check_cluster(params: Params, root: Path) -> None:
    """Raises UserError without Slurm, or where jobs would write one sqlite file: it locks badly over a network."""
    check_commands()
    if not is_shared(params.sweep.storage):
        raise UserError(
            "sweep.storage: a study in a file is for one machine and one sweep at a time; jobs share one on a server: "
            f"export {STORAGE_VARIABLE}=postgresql://…"
        )
    address = find_address(params.tracking.uri, root)
    partition = params.sweep.slurm.get("partition")
    if address.file is not None and has_other_nodes(None if partition is None else str(partition)):
        raise UserError(
            f"tracking.uri: runs in the file {address.file} cannot be written by jobs on several machines: "
            "export MLFLOW_TRACKING_URI=http://… (mlflow server), or postgresql://…"
        )


def num_jobs(sweep: Sweep, done: int) -> int:
    """No more jobs than trials are missing, for the workers that each has."""
    workers = 1 if sweep.workers == "auto" else sweep.workers
    needed = max(-(-(sweep.trials - done) // workers), 1)  # one for the repeats, where the trials are all there
    return min(needed, MOST_JOBS if sweep.jobs == "auto" else sweep.jobs)


def _job_name(url: str, study: str) -> str:
    """The study's, told from one of the same name elsewhere."""
    mark = sha256_bytes(shown(url).encode(), b"\0", study.encode())[:8]
    return "-".join(["sweep", re.sub(r"[^\w.-]", "-", study), mark])


def _announce(ledger: Ledger, array: Array) -> None:
    with suppress(SlurmError):
        jobs = [job for job in array.jobs() if not job.has_ended]
        say(
            f"study {ledger.sweep.study}: {ledger.num_done()} of {ledger.sweep.trials} trials done; "
            f"Slurm has {len(jobs)} {'job' if len(jobs) == 1 else 'jobs'} for it: squeue --jobs={array.number}"
        )
    say(f"their logs: {array.logs}/{array.number}_*.log; Ctrl-C stops them, closing the terminal does not")


@dataclass
class Watch:
    """Waits for an array, and says what becomes of the study."""

    ledger: Ledger
    array: Array
    progress: Progress
    jobs: dict[str, Job] = field(default_factory=dict)
    """by their number in the array, as they were last heard of"""
    _reasons: set[str] = field(default_factory=set)
    """why jobs waited, as said"""
    _mute: bool = False
    """whether Slurm failed to answer"""

    def run(self) -> None:
        """Until all jobs have ended. Ctrl-C or SIGTERM ends them in order, a second one as Slurm does.

        Raises KeyboardInterrupt or Terminated after such an end, UserError where trials are missing.
        """
        try:
            with orderly_stop() as stop:
                self._wait(stop)
                if stop.signal is not None:
                    self._stop()
                    stop.obey()
        except (KeyboardInterrupt, SystemExit):
            with suppress(SlurmError):
                self.array.cancel()
            raise
        finally:
            self.progress.close()
        if self.ledger.is_open() and not self._went_well():
            raise UserError(self._shortfall())

    def _wait(self, stop: Stop) -> None:
        follower, asked = Follower(self.progress), -ASK_SECONDS
        while stop.signal is None:
            patiently(follower.look)
            if time.monotonic() - asked >= ASK_SECONDS:
                asked = time.monotonic()
                if self._ask():
                    break
                if not self.ledger.is_open():
                    self._try(self.array.drop_pending)
            time.sleep(LOOK_SECONDS)
        patiently(follower.look)

    def _ask(self) -> bool:
        """Whether all jobs have ended; says so of each that failed."""
        found = self._try(self.array.jobs)
        if found is None:
            return False
        for job in found:
            if job.has_failed and not (job.task in self.jobs and self.jobs[job.task].has_failed):
                self.progress.remark("\n  ".join([f"{self._said(job)}:", *self.array.last_lines(job)]))
            self.jobs[job.task] = job
        self._say_why(found)
        return all(job.has_ended for job in found)

    def _say_why(self, jobs: list[Job]) -> None:
        """Why none runs, each reason once: Slurm also takes what it can never run, and lets it wait."""
        reasons = (
            {job.reason for job in jobs if job.reason} if all(job.reason or job.has_ended for job in jobs) else set()
        )
        for reason in sorted(reasons - self._reasons):
            self.progress.remark(f"waiting for Slurm ({reason}): squeue --start --jobs={self.array.number}")
        self._reasons |= reasons

    def _try(self, ask: Callable[[], Answer]) -> Answer | None:
        """Its answer; None where Slurm gives none, as while its controller starts anew."""
        try:
            answer = ask()
        except SlurmError as error:
            if not self._mute:
                self.progress.remark(f"{error}; asking again")
            self._mute = True
            return None
        self._mute = False
        return answer

    def _went_well(self) -> bool:
        """Whether all jobs ended by themselves, as they do without the total after `sweep.timeout`."""
        return bool(self.jobs) and all(job.state == "COMPLETED" for job in self.jobs.values())

    def _said(self, job: Job) -> str:
        return f"job {self.array.number}_{job.task} failed ({job.state}, exit code {job.exit_code})"

    def _stop(self) -> None:
        self.progress.remark("stopping the jobs: their trials are saved, and gone on with by the same command")
        self._try(self.array.stop)
        deadline = time.monotonic() + STOP_SECONDS
        while not self._ask() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)

    def _shortfall(self) -> str:
        states = [job.ending for job in self.jobs.values()]
        ends = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return (
            f"the jobs have ended ({ends or 'Slurm forgot how'}) with {self.ledger.num_done()} of {self.ledger.sweep.trials} "
            f"trials done: the same command goes on (their logs: {self.array.logs}/{self.array.number}_*.log)"
        )

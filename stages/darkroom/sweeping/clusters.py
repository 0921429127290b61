"""Jobs of a Slurm cluster, by its own commands: sbatch, squeue, scancel and sinfo.

All jobs of one sweep are one array, so that one number names them. squeue alone says how they are: sacct, which submitit
asks, answers only where the cluster keeps accounts. The script replaces its shell by the sweep, so that a signal for the
batch step reaches the coordinator and nobody else. Secrets travel in the environment, which Slurm shows to nobody.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from darkroom.errors import UserError

LOGS = ".slurm"
"""Folder below the root."""
NOTICE_SECONDS = 60
"""How long before its time limit a job is told to stop; Slurm may tell it up to a minute earlier."""
LAST_LINES = 5
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"
}  # fmt: skip
TOLD_TO_STOP = 143
"""Exit code of a sweep that ended in order after SIGTERM."""


class SlurmError(Exception):
    """A command of Slurm failed; what it said."""


@dataclass(frozen=True)
class Job:
    """One of an array's jobs, as squeue has it."""

    task: str
    """its number in the array"""
    state: str
    """RUNNING, PENDING, COMPLETED …"""
    exit_code: int
    reason: str = ""
    """why it waits"""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def ending(self) -> str:
        """How it ended; the notice before a time limit is a failure to Slurm, since the sweep obeys it."""
        return "told to stop" if self.state == "FAILED" and self.exit_code == TOLD_TO_STOP else self.state

    @property
    def has_failed(self) -> bool:
        """Whether it ended by itself and not well: not by its time limit, a preemption or a person."""
        stopped = self.state in ("CANCELLED", "PREEMPTED", "TIMEOUT") or self.exit_code == TOLD_TO_STOP
        return self.has_ended and self.state != "COMPLETED" and not stopped


@dataclass(frozen=True)
class Array:
    """The jobs of one sweep."""

    number: int
    logs: Path

    def jobs(self) -> list[Job]:
        """All that Slurm still knows; it forgets jobs some minutes after their end. Raises SlurmError."""
        try:
            lines = _run("squeue", "--noheader", "--array", "--states=all", f"--jobs={self.number}",
                         "--Format=ArrayTaskID:32,State:32,exit_code:32,Reason:64")  # fmt: skip
        except SlurmError as error:
            if "Invalid job id" in str(error):
                return []
            raise
        return [_job(*line.split(maxsplit=3)) for line in lines.splitlines()]

    def stop(self) -> None:
        """Tells each job's coordinator to end in order; those that have not begun never will."""
        self.drop_pending()
        _run("scancel", "--batch", "--signal=TERM", str(self.number))

    def drop_pending(self) -> None:
        _run("scancel", "--state=PENDING", str(self.number))

    def cancel(self) -> None:
        """Ends the jobs as Slurm ends them: SIGTERM to every process, SIGKILL after its KillWait."""
        _run("scancel", str(self.number))

    def log(self, job: Job) -> Path:
        return self.logs / f"{self.number}_{job.task}.log"

    def last_lines(self, job: Job) -> list[str]:
        """The end of the job's log; none where there is no log, as when its node could not write one."""
        if not self.log(job).exists():
            return []
        lines = self.log(job).read_text(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-LAST_LINES:]


def _job(task: str, state: str, code: str, reason: str) -> Job:
    """The code is that of wait(2), or "code:signal"."""
    before, colon, _ = code.partition(":")
    waits = reason.strip() if state == "PENDING" and reason.strip() != "None" else ""
    return Job(task, state, int(before) if colon else int(before) >> 8, waits)


def check_commands() -> None:
    """Raises UserError where this machine submits to no cluster."""
    if not shutil.which("sbatch"):
        raise UserError(
            "sbatch is not here: --launcher slurm runs on a machine that submits to a Slurm cluster "
            "(--launcher local trains on this one)"
        )


def has_other_nodes(partition: str | None) -> bool:
    """Whether jobs may run on another machine than this one. Raises UserError where the cluster does not answer."""
    chosen = [] if partition is None else [f"--partition={partition}"]
    try:
        hosts = _run("sinfo", "--noheader", "--Node", "--format=%n", *chosen).split()
    except SlurmError as error:
        raise UserError(f"Slurm does not answer: {error}") from None
    return bool({host.split(".")[0] for host in hosts} - {socket.gethostname().split(".")[0]})


def submit(
    command: Sequence[str],
    *,
    name: str,
    num_jobs: int,
    options: Mapping[str, bool | float | str],
    environment: Mapping[str, str],
    logs: Path,
) -> Array:
    """Submits `command` as `num_jobs` jobs that start where this process is. Raises UserError with sbatch's own words.

    `environment` is set for them beside all of this process's.
    """
    logs.mkdir(exist_ok=True)
    given = {
        "job-name": name,
        "signal": f"B:TERM@{NOTICE_SECONDS}",
        **options,
        "array": f"0-{num_jobs - 1}",
        "export": "ALL",
        "output": f"{logs}/%A_%a.log",
        "open-mode": "append",  # a job that was preempted starts again with the same log
    }
    script = f"#!/bin/sh\nexec {shlex.join(command)}\n"
    try:
        said = _run("sbatch", "--parsable", *filter(None, map(_option, given, given.values())), stdin=script,
                    environment=environment)  # fmt: skip
    except SlurmError as error:
        raise UserError(f"{error} (options of each job: sweep.slurm in params.yaml, and --slurm)") from None
    return Array(int(said.strip().partition(";")[0]), logs)  # "17;cluster" where there are several


def _option(name: str, value: bool | float | str) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else ""
    return f"--{name}={value}"


def find_array(name: str, logs: Path) -> Array | None:
    """This user's array of that name that still has jobs. Raises UserError where the cluster does not answer."""
    try:
        found = _run("squeue", "--noheader", "--me", f"--name={name}", "--format=%F").split()
    except SlurmError as error:
        raise UserError(f"Slurm does not answer: {error}") from None
    return Array(max(map(int, found)), logs) if found else None


def _run(*command: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> str:
    """What the command prints. Raises SlurmError with what it complains of, in a line."""
    done = subprocess.run(
        command, input=stdin, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = [line.removeprefix(f"{command[0]}: ") for line in done.stderr.splitlines() if line.strip()]
        raise SlurmError(f"{command[0]}: {'; '.join(lines) or f'exit code {done.returncode}'}")
    return done.stdout

"""A Slurm cluster of one node for the tests, from Debian's packages: real programs, in a folder and on ports of its own.

Everything ends with the block, and with the program that started it, however that one ends.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from servers import free_port

PROGRAMS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client"}
"""and the packages that bring them"""
START_SECONDS = 30
CPUS = 4
"""As told to Slurm, which believes it: two jobs fit on any machine."""

# Plugins that need no control groups, no accounts and no user but this one. A job that was requeued waits for
# cred_expire before it starts again: two minutes by default. One that was killed has KillWait to end in order.
CONFIGURATION = """\
ClusterName=darkroom-tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
KillWait=30
SlurmdParameters=config_overrides
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""

# Waits for the end of the program, whichever way it comes, and clears up what it then left: jobs first, which only their
# node's slurmd can end. Files in `running` are named after the processes to be ended.
SWEEPER = """
cat >/dev/null
cd "$0" 2>/dev/null || exit 0
if ls running | grep -q .; then
    timeout 10 scancel --signal=KILL --full --me
    timeout 10 scancel --me
    sleep 2
    for process in running/*; do kill -s KILL "${process#running/}"; done
fi >/dev/null 2>&1
rm -rf "$0"
"""


@dataclass(frozen=True)
class Slurm:
    """A running cluster."""

    folder: Path

    def environment(self) -> dict[str, str]:
        """What its commands need to find in theirs."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str) -> str:
        done = subprocess.run(command, env=os.environ | self.environment(), capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def jobs(self) -> dict[str, str]:
        """{"17_0": "RUNNING"} of all that it knows."""
        lines = self.run("squeue", "--noheader", "--array", "--states=all", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines)


def missing_packages() -> list[str]:
    return [package for program, package in PROGRAMS.items() if not _found(program)]


@contextmanager
def slurm() -> Iterator[Slurm]:
    """A cluster whose node takes jobs, until the block is left; its jobs end with it."""
    with _workplace() as folder, ExitStack() as running:
        host = socket.gethostname().split(".")[0]
        ports = [free_port() for _ in range(2)]
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=host, controller=ports[0], node=ports[1], user=getpass.getuser(), folder=folder, cpus=CPUS
            )
        )
        cluster = Slurm(folder)
        running.enter_context(_munge(folder))
        start = (folder, cluster.environment())
        running.enter_context(
            _running([_found("slurmctld"), "-D"], *start, lambda: _answers(cluster, "scontrol", "ping"))
        )
        running.enter_context(_running([_found("slurmd"), "-D"], *start, lambda: _is_idle(cluster)))
        try:
            yield cluster
        finally:
            _end_jobs(cluster)


@contextmanager
def _munge(folder: Path) -> Iterator[None]:
    """What vouches for who sends a message; with a key and a socket of its own."""
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    names = {"socket": "socket", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
    files = [f"--{option}={folder}/munge.{name}" for option, name in names.items()]
    command = [_found("munged"), "--foreground", "--num-threads=2", f"--key-file={key}", *files]
    with _running(command, folder, {}, (folder / "munge.socket").exists):
        yield


def _is_idle(cluster: Slurm) -> bool:
    states = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"], env=os.environ | cluster.environment(), capture_output=True, text=True
    )
    return states.stdout.strip() == "idle"


def _answers(cluster: Slurm, *command: str) -> bool:
    return not subprocess.run(command, env=os.environ | cluster.environment(), capture_output=True).returncode


def _end_jobs(cluster: Slurm) -> None:
    """Jobs outlive slurmd; they are killed while it is there to do it."""
    with suppress(AssertionError):
        cluster.run("scancel", "--signal=KILL", "--full", "--me")
        cluster.run("scancel", "--me")
        _wait(lambda: not cluster.run("squeue", "--noheader"), "jobs do not end")


@contextmanager
def _workplace() -> Iterator[Path]:
    """A temporary folder that goes with this program, whatever ends it. munged wants one that others enter and do not write."""
    folder = Path(tempfile.mkdtemp(prefix="darkroom-slurm-"))
    folder.chmod(0o711)
    for name in ("running", "state", "spool"):
        (folder / name).mkdir()
    sweeper = subprocess.Popen(
        ["sh", "-c", SWEEPER, folder], stdin=subprocess.PIPE, start_new_session=True,
        env=os.environ | Slurm(folder).environment(),
    )  # fmt: skip
    try:
        yield folder
    finally:
        assert sweeper.stdin is not None
        sweeper.stdin.close()
        sweeper.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(
    command: list[str], folder: Path, environment: Mapping[str, str], ready: Callable[[], object]
) -> Iterator[None]:
    """A program that is ready before the block begins and is gone when it ends; it logs into NAME.log."""
    log = folder / f"{Path(command[0]).name}.log"
    with log.open("a") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    note = folder / "running" / str(process.pid)
    note.touch()
    try:
        _wait(lambda: process.poll() is not None or ready(), f"{command[0]} does not start: see {log}")
        assert process.poll() is None, f"{command[0]} ended: {log.read_text()}"
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        note.unlink(missing_ok=True)


def _wait(done: Callable[[], object], otherwise: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not done():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)


def _found(program: str) -> str:
    """Its path; Debian keeps what only services call out of a person's PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""

"""A sweep beside the same points as runs of their own: trials an hour, on digits, two at a time.

    python benchmarks/sweep_vs_queue.py [--quick] [--trials 60] [--jobs 2]

With 15 epochs and with one: clones the last commit into a temporary folder, prepares digits there, and then, one after the
other: `python stages/sweep.py --workers 2`; the same without a pruner, which tells what pruning alone brings; each of the first
one's points, unpruned, in a `python stages/train.py` of its own, two at a time; and each through `dvc exp run --queue` (target
train) and `dvc queue start -j 2`. All have one thread a training. Exits with 1 where the sweep's trials an hour are less than
3 times the queue's with 15 epochs, or 8 times with one, or 2 times those of one process a trial.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import psutil

from comparing import REPOSITORY, arguments, show

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))} | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "DVC_NO_ANALYTICS": "1",
}  # fmt: skip
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
LOOK_SECONDS = 0.5
START_SECONDS, WAIT_SECONDS = 30, 2 * 3600
PROMISED = {15: 3.0, 1: 8.0}
"""by epochs: the sweep's trials an hour beside the queue's, at least"""
PROMISED_BESIDE_PROCESSES = 2.0
IDENTITY = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost")


def run(folder: Path, *command: str, **environment: str) -> float:
    """Seconds that the command took; ends the program with what it printed where it fails."""
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT | environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - began


def prepare(folder: Path) -> None:
    run(folder.parent, "git", "clone", "--quiet", str(REPOSITORY), str(folder))
    run(folder, "dvc", "repro", "prepare")
    run(folder, "git", "add", "--all")
    run(folder, "git", *IDENTITY, "commit", "--quiet", "--allow-empty", "--message=Digits, prepared")


@dataclass(frozen=True)
class Measured:
    """Trials of some epochs each."""

    epochs: int
    trials: int
    seconds: dict[str, float]
    """by way; the first is the sweep"""
    trained: dict[str, int]
    """epochs in all, by way"""

    def times(self, way: str) -> float:
        """The sweep's trials an hour beside those of another way."""
        return self.seconds[way] / self.seconds[SWEEP]

    def rows(self) -> list[list[str]]:
        return [
            [str(self.epochs), way, f"{seconds:.0f}", f"{self.trials * 3600 / seconds:.0f}", str(self.trained[way]),
             f"{self.times(way):.2f}"]
            for way, seconds in self.seconds.items()
        ]  # fmt: skip

    def broken(self) -> list[str]:
        """What was promised and is not so."""
        promised = {QUEUE: PROMISED[self.epochs], PROCESSES: PROMISED_BESIDE_PROCESSES}
        return [
            f"{self.epochs} epochs: {self.times(way):.2f} times the trials an hour of: {way} (promised: at least {least})"
            for way, least in promised.items()
            if self.times(way) < least
        ]


SWEEP, UNPRUNED = "sweep.py", "sweep.py, nothing pruned"
PROCESSES, STARTED, QUEUE = "one train.py a trial", "dvc queue start", "dvc exp run --queue, and start"


def forget(folder: Path) -> None:
    """Finished trainings would be used as they are."""
    shutil.rmtree(folder / ".checkpoints", ignore_errors=True)


def sweep(folder: Path, study: str, trials: int, jobs: int, settings: list[str]) -> float:
    forget(folder)
    options = [part for setting in settings for part in ("-S", setting)]
    command = [
        "python",
        "stages/sweep.py",
        "--study",
        study,
        "--trials",
        str(trials),
        "--workers",
        str(jobs),
        "-S",
        "sweep.confirm.top=0",
    ]
    return run(folder, *command, *options)


def points_and_epochs(folder: Path, study: str) -> tuple[list[dict[str, Any]], int]:
    """The study's trials as values of params.yaml, and the epochs that they trained in all."""
    import optuna

    from darkroom.params import read_params
    from darkroom.sweeping.space import make_space
    from darkroom.sweeping.standing import counts

    space = make_space(read_params(folder / "params.yaml").sweep.space)
    opened = optuna.load_study(study_name=study, storage=f"sqlite:///{folder / 'optuna.db'}")
    trials = [trial for trial in opened.trials if counts(trial)]
    return [space.decode(trial.params) for trial in trials], sum(trial.last_step or 0 for trial in trials)


def processes(folder: Path, points: list[dict[str, Any]], fixed: list[str], jobs: int) -> float:
    """Seconds for a `python stages/train.py` a point, each in a copy of the project beside the others that run."""
    from darkroom.params import parse_yaml
    from darkroom.sweeping.applying import apply

    forget(folder)
    free: Queue[Path] = Queue()
    for number in range(jobs):
        copy = folder.with_name(f"{folder.name}-copy-{number}")
        free.put(shutil.copytree(folder, copy, symlinks=True))
    settings = {key: parse_yaml(value) for key, value in (setting.split("=", 1) for setting in fixed)}

    def train(point: dict[str, Any]) -> None:
        copy = free.get()
        shutil.copyfile(folder / "params.yaml", copy / "params.yaml")
        apply(copy / "params.yaml", settings | point)
        run(copy, "python", "stages/train.py", DVC_ROOT=str(folder), **ONE_THREAD)
        free.put(copy)

    began = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(train, points))
    return time.perf_counter() - began


def queue(folder: Path, points: list[dict[str, Any]], fixed: list[str], jobs: int) -> tuple[float, float]:
    """Seconds to queue the points, and seconds until the last of them is trained."""
    from darkroom.params import as_yaml

    forget(folder)
    before = num_ended(folder)
    queueing = 0.0
    for point in points:
        settings = [f"{key}={as_yaml(value)}" for key, value in point.items()]
        options = [part for setting in (*fixed, *settings) for part in ("-S", setting)]
        queueing += run(folder, "dvc", "exp", "run", "--queue", "train", *options)
    began = time.perf_counter()
    started = start(folder, jobs)
    while (ended := num_ended(folder) - before) < len(points):
        if time.perf_counter() - began > WAIT_SECONDS:
            sys.exit(f"error: {ended} of {len(points)} experiments after {WAIT_SECONDS} s")
        if not workers(folder) and time.perf_counter() - started > START_SECONDS:
            print("  dvc's workers ended with tasks still queued: they are started again", file=sys.stderr)
            started = start(folder, jobs)
        time.sleep(LOOK_SECONDS)
    taken = time.perf_counter() - began
    while "Running" in status(folder):
        time.sleep(LOOK_SECONDS)
    for worker in workers(folder):  # `dvc queue stop` may be lost on its way to one, which then stays for ever
        with suppress(psutil.NoSuchProcess):
            worker.terminate()
    if "Failed" in status(folder):
        sys.exit(f"error: experiments failed:\n{status(folder)}")
    return queueing, taken


def start(folder: Path, jobs: int) -> float:
    """When it was done. Nobody reads what it prints: its workers hold that pipe open until they have been idle for a while."""
    command = ["dvc", "queue", "start", "-j", str(jobs)]
    quiet = subprocess.DEVNULL
    subprocess.run(command, cwd=folder, env=ENVIRONMENT | ONE_THREAD, stdout=quiet, stderr=quiet, check=True)
    return time.perf_counter()


def workers(folder: Path) -> list[psutil.Process]:
    """DVC's, of this clone, that are there."""
    numbers = [path.read_text() for path in (folder / ".dvc/tmp/exps/celery").glob("*.pid")]
    return [psutil.Process(int(number)) for number in numbers if number and psutil.pid_exists(int(number))]


def num_ended(folder: Path) -> int:
    """Runs in MLflow that ended. The database is read by itself: `dvc queue status` takes seconds of a core."""
    with closing(sqlite3.connect(folder / "mlflow.db", timeout=60)) as database:
        (number,) = database.execute("select count(*) from runs where status in ('FINISHED', 'FAILED')").fetchone()
    return int(number)


def status(folder: Path) -> str:
    command = ["dvc", "queue", "status"]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True).stdout


def measured(folder: Path, epochs: int, trials: int, jobs: int) -> Measured:
    """In a clone of its own, whose queue and trainings know nothing of the others."""
    prepare(folder)
    settings = [f"train.epochs={epochs}", *(["train.warmup_epochs=0"] if epochs < 3 else [])]
    seconds = {SWEEP: sweep(folder, f"epochs-{epochs}", trials, jobs, settings)}
    points, pruned = points_and_epochs(folder, f"epochs-{epochs}")
    seconds[UNPRUNED] = sweep(folder, f"unpruned-{epochs}", trials, jobs, [*settings, "sweep.pruner=none"])
    seconds[PROCESSES] = processes(folder, points, settings, jobs)
    queueing, seconds[STARTED] = queue(folder, points, settings, jobs)
    seconds[QUEUE] = queueing + seconds[STARTED]
    return Measured(epochs, trials, seconds, dict.fromkeys(seconds, trials * epochs) | {SWEEP: pruned})


def main() -> None:
    wanted = arguments(__doc__, trials=60, jobs=2)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        trials = 4 if wanted.quick else wanted.trials
        found = [measured(Path(name, f"clone-{epochs}"), epochs, trials, wanted.jobs) for epochs in PROMISED]
    header = ["epochs", f"{trials} trials, {wanted.jobs} at a time", "seconds", "trials an hour", "epochs in all", "sweep ×"]  # fmt: skip
    show(header, [row for each in found for row in each.rows()])
    for each in found:
        print(
            f"\n{each.epochs} epochs: {each.times(QUEUE):.2f} times the queue's trials an hour"
            f" (promised: at least {PROMISED[each.epochs]:.1f}; {each.times(STARTED):.2f} where queueing them is free),"
            f" {each.times(PROCESSES):.2f} times those of one process a trial (at least {PROMISED_BESIDE_PROCESSES:.1f});"
            f" pruning alone {each.times(UNPRUNED):.2f}"
        )
    broken = [line for each in found for line in each.broken()]
    if broken and not wanted.quick:  # four trials are over before the workers have warmed up
        sys.exit("error: " + "\n".join(broken))


if __name__ == "__main__":
    main()

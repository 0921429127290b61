"""A sweep with pruning beside the same points through DVC's queue: trials an hour, on digits, two at a time.

    python benchmarks/sweep_vs_queue.py [--quick] [--trials 20] [--epochs 30] [--jobs 2]

Clones the last commit into a temporary folder and prepares digits there. Then, one after the other:
`python stages/sweep.py --workers 2`; each of its points, unpruned, through `dvc exp run --queue` (target train, one thread
a worker) and `dvc queue start -j 2`. Promised: at least 2.5 times the trials an hour.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from comparing import REPOSITORY, arguments, show

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_"))} | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "DVC_NO_ANALYTICS": "1",
}  # fmt: skip
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
LOOK_SECONDS = 0.5
WAIT_SECONDS = 2 * 3600
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


def points_and_epochs(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """The study's trials as values of params.yaml, and the epochs that they trained in all."""
    import optuna

    from darkroom.params import read_params
    from darkroom.sweeping.space import make_space
    from darkroom.sweeping.standing import counts

    space = make_space(read_params(folder / "params.yaml").sweep.space)
    study = optuna.load_study(study_name="darkroom", storage=f"sqlite:///{folder / 'optuna.db'}")
    trials = [trial for trial in study.trials if counts(trial)]
    return [space.decode(trial.params) for trial in trials], sum(trial.last_step or 0 for trial in trials)


def queue(folder: Path, points: list[dict[str, Any]], fixed: list[str], jobs: int) -> tuple[float, float]:
    """Seconds to queue the points, and seconds until the last of them is trained."""
    from darkroom.params import as_yaml

    shutil.rmtree(folder / ".checkpoints")  # what the sweep trained to its end would be used as it is
    before = num_ended(folder)
    queueing = 0.0
    for point in points:
        settings = [f"{key}={as_yaml(value)}" for key, value in point.items()]
        options = [part for setting in (*fixed, *settings) for part in ("-S", setting)]
        queueing += run(folder, "dvc", "exp", "run", "--queue", "train", *options)
    began = time.perf_counter()
    run(folder, "dvc", "queue", "start", "-j", str(jobs), **ONE_THREAD)
    while num_ended(folder) - before < len(points):
        if time.perf_counter() - began > WAIT_SECONDS:
            sys.exit(f"error: {num_ended(folder) - before} of {len(points)} experiments after {WAIT_SECONDS} s")
        time.sleep(LOOK_SECONDS)
    taken = time.perf_counter() - began
    while "Running" in status(folder):
        time.sleep(LOOK_SECONDS)
    run(folder, "dvc", "queue", "stop")
    if "Failed" in status(folder):
        sys.exit(f"error: experiments failed:\n{status(folder)}")
    return queueing, taken


def num_ended(folder: Path) -> int:
    """Runs in MLflow that ended. The database is read by itself: `dvc queue status` takes seconds of a core."""
    with closing(sqlite3.connect(folder / "mlflow.db", timeout=60)) as database:
        (number,) = database.execute("select count(*) from runs where status in ('FINISHED', 'FAILED')").fetchone()
    return int(number)


def status(folder: Path) -> str:
    return subprocess.run(
        ["dvc", "queue", "status"], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True
    ).stdout


def main() -> None:
    wanted = arguments(__doc__, trials=20, epochs=30, jobs=2)
    trials, epochs = (4, 3) if wanted.quick else (wanted.trials, wanted.epochs)
    fixed = [f"train.epochs={epochs}", *(["train.warmup_epochs=0"] if epochs < 3 else [])]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name, "clone")
        prepare(folder)
        options = [part for setting in fixed for part in ("-S", setting)]
        sweep = ["python", "stages/sweep.py", "--trials", str(trials), "--workers", str(wanted.jobs), *options]
        swept = run(folder, *sweep)
        points, num_epochs = points_and_epochs(folder)
        queueing, trained = queue(folder, points, fixed, wanted.jobs)
    rows = [
        ("sweep.py, pruned", swept, num_epochs),
        ("dvc queue start", trained, trials * epochs),
        ("dvc exp run --queue, and start", queueing + trained, trials * epochs),
    ]
    show(
        [f"{trials} trials of {epochs} epochs, {wanted.jobs} at a time", "seconds", "trials an hour", "epochs"],
        [[what, f"{seconds:.0f}", f"{trials * 3600 / seconds:.0f}", str(num)] for what, seconds, num in rows],
    )
    print(
        f"\nthe sweep's trials an hour: {(queueing + trained) / swept:.2f} times the queue's (promised: at least 2.50);"
    )
    print(f"{trained / swept:.2f} times where queueing them is free")


if __name__ == "__main__":
    main()

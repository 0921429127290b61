"""Trainings that are killed at a chosen moment and gone on with, each in a process of its own, beside ones that are not.

    python tests/killing.py JOBS.json FOLDER      prints a line of JSON a job

One process imports everything and forks for each training, which costs a second instead of five. A job is a `Job`; the line
tells whether the training that was killed ended with the same bits, and where the kill fell.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

TERM, KILL = "SIGTERM", "SIGKILL"
POINTS = ("open", "half", "before fsync", "before rename", "after rename")
"""of a save at which a process dies"""
AXES: dict[str, tuple[Any, ...]] = {
    "precision": ("fp32", "bf16", "fp16"),
    "optimizer": ("sgd", "adamw"),
    "schedule": ("cosine", "one_cycle", "plateau"),
    "ema_decay": (0.0, 0.9),
    "accumulate": (1, 3),
    "dropout": (0.0, 0.3),
}
STEPS = 24
"""four epochs of six"""
SAVE_EVERY = 2


@dataclass(frozen=True)
class Job:
    """One training and its death."""

    settings: dict[str, Any]
    how: str
    """SIGKILL, SIGTERM, or one of POINTS"""
    at: int
    """the step in which the signal falls, or the save (both from 1)"""
    delay: float
    """seconds later"""


def sample(num: int, seed: int) -> list[Job]:
    """Jobs over the whole matrix: nine of ten are signals between the first step and the last, the others inside a save."""
    rng = random.Random(seed)
    cells = [dict(zip(AXES, values, strict=True)) for values in product(*AXES.values())]
    rng.shuffle(cells)
    jobs = []
    for number in range(num):
        settings = cells[number % len(cells)]
        if number % 8 == 7:
            saves = STEPS // SAVE_EVERY
            jobs.append(Job(settings, POINTS[number // 8 % len(POINTS)], rng.randint(1, saves - 1), 0.0))
        else:
            how = TERM if number % 8 in (2, 5) else KILL
            jobs.append(Job(settings, how, rng.randint(1, STEPS - 2), rng.random() * 0.004))
    return jobs


def _die(how: str = KILL) -> None:
    os.kill(os.getpid(), getattr(signal, how))


@contextmanager
def _dying(job: Job | None) -> Iterator[None]:
    """Arranges this process's death."""
    if job is None:
        yield
    elif job.how in POINTS:
        _die_in_a_save(job.how, job.at)
        yield
    else:
        _die_in_a_step(job)
        yield


def _die_in_a_step(job: Job) -> None:
    from darkroom.training import Session

    reached = threading.Event()
    plain = Session._step

    def step(session: Any) -> Any:
        if session.progress.steps + 1 == job.at:
            reached.set()
        return plain(session)

    Session._step = step  # type: ignore[method-assign]

    def kill() -> None:
        reached.wait()
        time.sleep(job.delay)
        _die(job.how)

    threading.Thread(target=kill, daemon=True).start()


def _die_in_a_save(point: str, number: int) -> None:
    """Patches what saving calls, so that the process dies there in the save of that number."""
    import torch

    from darkroom import files
    from darkroom.training import checkpoints

    saves = 0
    plain_save, plain_fsync, plain_replace = torch.save, os.fsync, Path.replace
    within = threading.local()

    def due() -> bool:
        return saves == number and getattr(within, "writing", False)

    def save(content: Any, path: Path) -> None:
        nonlocal saves
        saves += 1
        within.writing = True
        if saves == number and point == "open":
            _die()
        plain_save(content, path)
        if saves == number and point == "half":
            os.truncate(path, Path(path).stat().st_size // 2)
            _die()

    def fsync(handle: int) -> None:
        if due() and point == "before fsync":
            _die()
        plain_fsync(handle)

    def replace(path: Path, target: Path) -> Path:
        checkpoint = str(target).endswith(".pt")
        if due() and checkpoint and point == "before rename":
            _die()
        result = plain_replace(path, target)
        if due() and checkpoint and point == "after rename":
            _die()
        return result

    checkpoints.torch.save = save  # type: ignore[attr-defined]
    files.os.fsync = fsync  # type: ignore[attr-defined]
    Path.replace = replace  # type: ignore[method-assign,assignment]


def _train(job: Job, folder: Path, packed: Any, out: Path, *, dies: bool, fresh: bool) -> None:
    """In a process of its own: the stage's function, with the state that it ends in beside its files."""
    import torch

    from darkroom.fitting import Fitting
    from darkroom.params import read_params, with_values
    from darkroom.tracking import open_store
    from train import train

    torch.set_num_threads(1)
    settings = dict(job.settings)
    values = {"model.dropout": settings.pop("dropout")} | {f"train.{key}": value for key, value in settings.items()}
    small = {
        "model.name": "mlp", "model.width": 32, "model.blocks": "auto", "train.epochs": 4, "train.batch_size": 167,
        "train.lr": 0.01, "train.warmup_epochs": 0.5, "train.threads": 1, "train.checkpoint_every": f"{SAVE_EVERY} steps",
        "augment.mixup": 0.2, "tracking.system_metrics": False,
    }  # fmt: skip
    params = with_values(read_params(Path(__file__).resolve().parents[1] / "params.yaml"), small | values)
    plain = Fitting.fit

    def fit(fitting: Fitting, session: Any, stored: Any) -> Any:
        trained = plain(fitting, session, stored)
        out.mkdir(parents=True, exist_ok=True)
        torch.save(session.state_dict(), out / "state.pt")
        return trained

    Fitting.fit = fit  # type: ignore[method-assign]
    os.environ |= {"DARKROOM_FRESH": "1"} if fresh else {}
    with _dying(job if dies else None):
        train(
            packed, augment=params.augment, model=params.model, train=params.train,
            store=open_store(params.tracking, folder), out=out, checkpoints=out / "checkpoints",
        )  # fmt: skip


def _forked(work: Callable[[], None]) -> int:
    """Runs `work` in a fork of this process; its exit code, negative after a signal."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        work()
        code = 0
    except SystemExit as error:
        code = int(error.code or 0)
    finally:
        os._exit(code)


def _ended(folder: Path, out: Path) -> dict[str, Any]:
    """All that a training left which must be the same: state, weights, metrics and the series in its run."""
    from hashlib import sha256
    from sqlite3 import connect

    import torch

    numbers = json.loads((out / "metrics/train.json").read_text())
    run_id = numbers.pop("mlflow_run_id")
    for timed in ("images_per_s", "seconds"):
        numbers.pop(timed)

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return (
                sha256(value.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
                if value.ndim
                else value.item()
            )
        if isinstance(value, dict):
            timed = ("seconds", "train_seconds", "train_seconds_in_all")
            return {str(key): plain(each) for key, each in value.items() if key not in timed}
        return [plain(each) for each in value] if isinstance(value, list | tuple) else value

    with connect(folder / "mlflow.db") as database:
        query = "select key, step, value, is_nan from metrics where run_uuid = ? order by key, step, value"
        rows = database.execute(query, (run_id,)).fetchall()
        (status,) = database.execute("select status from runs where run_uuid = ?", (run_id,)).fetchone()
    timed = ("images_per_s", "seconds", "epoch_images_per_s")
    points = [row for row in rows if row[0] not in timed]
    return {
        "run_id": run_id, "status": status, "numbers": numbers, "points": points,
        "state": plain(torch.load(out / "state.pt", weights_only=True)),
    }  # fmt: skip


def run(job: Job, folder: Path, packed: Any, references: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Trains whole (once a cell of the matrix), then killed and gone on with; what is equal and where the kill fell."""
    name = json.dumps(job.settings, sort_keys=True)
    place = folder / f"job-{len(list(folder.glob('job-*')))}"
    if name not in references:
        whole = folder / f"whole-{len(references)}"
        code = _forked(lambda: _train(job, folder, packed, whole, dies=False, fresh=True))
        assert code == 0, f"{job}: the uninterrupted training ended with {code}"
        references[name] = _ended(folder, whole)
    died = _forked(lambda: _train(job, folder, packed, place, dies=True, fresh=False))
    spools = list(place.glob("checkpoints/*/series.jsonl"))
    steps = sum('"lr"' in line for line in spools[0].read_text().splitlines()) if spools else 0
    saved = sorted(int(path.stem.split("-")[1]) for path in place.glob("checkpoints/*/step-*.pt"))
    left = [path.name for path in place.glob("checkpoints/*/.*.tmp")]
    code = _forked(lambda: _train(job, folder, packed, place, dies=False, fresh=False))
    told: dict[str, Any] = asdict(job) | {"died": died, "steps": steps, "saved": saved, "left": left, "code": code}
    if code == 0:
        found = _ended(folder, place)
        expected = references[name]
        told["equal"] = {key: found[key] == expected[key] for key in ("status", "numbers", "points", "state")}
    return told


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stages"))
    from digits import pack_digits

    folder = Path(sys.argv[2])
    packed = pack_digits(folder / "packed")
    # here, so that the forks find everything imported; its store is another, whose connections they do not share
    _train(sample(1, 0)[0], folder / "warm", packed, folder / "warm", dies=False, fresh=False)
    references: dict[str, dict[str, Any]] = {}
    for values in json.loads(Path(sys.argv[1]).read_text()):
        print(json.dumps(run(Job(**values), folder, packed, references)), flush=True)


if __name__ == "__main__":
    main()

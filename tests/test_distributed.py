"""One training in several processes: the same losses, one record, and an end in order."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines import SMALL, Pipeline, all_runs, clone, series

WORKER = Path(__file__).with_name("joined.py")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PATIENCE = 120.0


def joined(folder: Path, processes: int, *stop: str, **settings: Any) -> dict[str, Any]:
    """What the leader of so many processes tells of a small training."""
    result = folder / f"{processes}.json"
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", str(WORKER),
         str(result), json.dumps(settings), *stop],
        check=True, env=os.environ | ONE_THREAD, timeout=PATIENCE, capture_output=True,
    )  # fmt: skip
    told: dict[str, Any] = json.loads(result.read_text())
    return told


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 64, "ema_decay": 0.9, "schedule": "one_cycle", "optimizer": "adamw", "lr": 0.01},
        {"batch_size": 30, "accumulate": 3, "clip_norm": 0.5, "class_weights": "balanced"},
    ],
)
def test_one_two_and_four_processes_give_the_same_losses(settings: dict[str, Any], tmp_path: Path) -> None:
    """141 pictures: the last step is short, 13 or 21 pictures; also shared by four processes in three micro-batches."""
    alone, *others = (joined(tmp_path, num, **settings) for num in (1, 2, 4))
    for num, told in zip((2, 4), others, strict=True):
        assert told["processes"] == num
        for one, other in zip(alone["steps"], told["steps"], strict=True):
            assert other == pytest.approx(one, rel=1e-5)
        for one, other in zip(alone["epochs"], told["epochs"], strict=True):
            assert other == pytest.approx(one, rel=1e-5)
        assert len(told["ranks"]) == num
        assert all(rank == told["ranks"][0] for rank in told["ranks"]), "every process ends with the same weights"


def test_fewer_pictures_than_processes_in_the_last_step(tmp_path: Path) -> None:
    """141 pictures in steps of 46: the last has 3, for four processes."""
    alone, told = (joined(tmp_path, num, batch_size=46) for num in (1, 4))
    assert [loss for loss, _ in told["steps"]] == pytest.approx([loss for loss, _ in alone["steps"]], rel=1e-5)


def test_batch_norm_trains_and_all_processes_agree(tmp_path: Path) -> None:
    told = joined(tmp_path, 2, network="resnet", ema_decay=0.9)
    assert told["ranks"][0] == told["ranks"][1]


def test_when_one_process_wants_to_stop_all_stop_at_the_same_step(tmp_path: Path) -> None:
    told = joined(tmp_path, 3, "2", "1", batch_size=30)
    steps = {rank[0] for rank in told["ranks"]}
    assert len(steps) == 1
    assert 2 <= steps.pop() <= 4


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    pipeline = clone(tmp_path_factory.mktemp("distributed") / "clone")
    pipeline.set(SMALL | {"model.name": "simple_cnn", "model.blocks": "auto", "train.precision": "fp32"})
    pipeline.run("dvc", "repro", "prepare")
    pipeline.commit("Prepared")
    return pipeline


@pytest.fixture
def pipeline(prepared: Pipeline) -> Iterator[Pipeline]:
    before = (prepared.folder / "params.yaml").read_text()
    yield prepared
    (prepared.folder / "params.yaml").write_text(before)


def test_the_stage_starts_its_processes_and_records_one_run(pipeline: Pipeline) -> None:
    alone = pipeline.run("dvc", "exp", "run", "train")
    one = pipeline.json("metrics/train.json")
    done = pipeline.run("dvc", "exp", "run", "-S", "train.devices=2", "train", DARKROOM_FRESH="1")
    two = pipeline.json("metrics/train.json")
    assert "training in 2 processes" in done.stdout
    assert alone.stdout.count("validation: accuracy") == done.stdout.count("validation: accuracy") == 1, "one speaks"
    assert (one["processes"], two["processes"]) == (1, 2)
    assert two["val_loss"] == pytest.approx(one["val_loss"], rel=1e-3)
    *_, before, after = all_runs(pipeline)
    assert after.info.run_id == two["mlflow_run_id"]
    assert after.info.status == "FINISHED"
    losses = [value for _, value in series(pipeline, after, "train_loss")]
    assert losses == pytest.approx([value for _, value in series(pipeline, before, "train_loss")], rel=1e-3)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE:.0f} s: {what}"
        time.sleep(0.05)


def steps_spooled(pipeline: Pipeline) -> int:
    return sum(len(path.read_text().splitlines()) for path in pipeline.folder.glob(".checkpoints/*/series.jsonl"))


def start(pipeline: Pipeline, *command: str, lr: float, **values: Any) -> subprocess.Popen[str]:
    """A long training of several processes, in the middle of its steps."""
    pipeline.set({"train.epochs": 100, "train.lr": lr, "train.checkpoint_every": "5 steps", **values})
    spooled = steps_spooled(pipeline)
    process = subprocess.Popen(
        command, cwd=pipeline.folder, env=os.environ | ONE_THREAD, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    wait_for(lambda: steps_spooled(pipeline) > spooled + 20 or process.poll() is not None, "twenty steps")
    assert process.poll() is None, process.communicate()[0]
    return process


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children(recursive=True) if "RANK" in child.environ()]


def test_sigterm_ends_all_processes_in_order_and_the_training_goes_on(pipeline: Pipeline) -> None:
    process = start(pipeline, sys.executable, "stages/train.py", lr=0.011, **{"train.devices": 2})
    ranks = ranks_of(process)
    assert len(ranks) == 2
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert "Traceback" not in told
    assert "stopped by SIGTERM: all processes have ended" in told
    assert not any(rank.is_running() for rank in ranks)
    run = all_runs(pipeline)[-1]
    assert run.info.status == "KILLED"
    pipeline.set({"train.devices": 1})
    done = pipeline.run(sys.executable, "stages/train.py", **ONE_THREAD)
    assert "going on in epoch" in done.stdout, "a training goes on with another number of processes"
    after = all_runs(pipeline)[-1]
    assert after.data.tags["darkroom.trained_by"] == run.info.run_id, (
        "train.devices is another, and a run keeps its own"
    )
    steps = [step for step, _ in series(pipeline, after, "train_loss")]
    assert steps == list(range(1, pipeline.json("metrics/train.json")["steps"] + 1))


def test_processes_end_with_a_launcher_that_is_killed_outright(pipeline: Pipeline) -> None:
    process = start(pipeline, sys.executable, "stages/train.py", lr=0.012, **{"train.devices": 2})
    ranks = ranks_of(process)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(rank.is_running() and rank.status() != "zombie" for rank in ranks), "the ranks' end")
    assert all_runs(pipeline)[-1].info.status == "KILLED"


def test_a_process_that_is_lost_leads_to_a_restart_and_a_whole_run(pipeline: Pipeline) -> None:
    process = start(
        pipeline, sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2",
        "stages/train.py", lr=0.013,
    )  # fmt: skip
    victim = max(ranks_of(process), key=lambda rank: rank.environ()["RANK"])
    victim.kill()
    told, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told
    assert "going on in epoch" in told
    run = all_runs(pipeline)[-1]
    assert run.info.status == "FINISHED"
    steps = [step for step, _ in series(pipeline, run, "train_loss")]
    assert steps == list(range(1, pipeline.json("metrics/train.json")["steps"] + 1)), "none twice, none missing"


def test_two_machines_train_together_and_one_goes_on_when_the_other_is_lost(pipeline: Pipeline) -> None:
    """Two launchers that meet at an address, as on two machines; the second is killed with all that it started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3",
        "--rdzv-id=pair", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}",
        "--rdzv-conf=last_call_timeout=10,keep_alive_interval=1,keep_alive_max_attempt=3", "stages/train.py",
    ]  # fmt: skip
    second = subprocess.Popen(
        ["sh", "-c", f"sleep 1; exec {shlex.join(command)}"], cwd=pipeline.folder, env=os.environ | ONE_THREAD,
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    first = start(pipeline, *command, lr=0.014)
    spool = max(pipeline.folder.glob(".checkpoints/*/series.jsonl"), key=lambda path: path.stat().st_mtime)
    assert len(ranks_of(first)) == 1
    worlds = {child.environ()["WORLD_SIZE"] for child in ranks_of(first)}
    assert worlds == {"2"}, "both train together"
    os.killpg(second.pid, signal.SIGKILL)
    second.wait()
    told, _ = first.communicate(timeout=PATIENCE)
    assert first.returncode == 0, told
    assert "going on in epoch" in told
    numbers = pipeline.json("metrics/train.json")
    assert numbers["processes"] == 1
    assert (spool.parent / "finished.pt").exists()
    run = all_runs(pipeline)[-1]
    assert run.info.status == "FINISHED"
    assert [step for step, _ in series(pipeline, run, "train_loss")] == list(range(1, numbers["steps"] + 1))

"""Trainings killed at any moment, gone on with, and compared with ones that were not: state, metrics and series, to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from killing import KILL, POINTS, SAVE_EVERY, STEPS, TERM, sample
from pipelines import REPOSITORY

SOAK = REPOSITORY / ".soak/kills.log"


def killed(num: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    jobs = folder / "jobs.json"
    jobs.write_text(json.dumps([asdict(job) for job in sample(num, seed)]))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("killing.py")), str(jobs), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def check(told: list[dict[str, Any]], num: int) -> Counter[str]:
    """Asserts that every job died where it should and ended as its twin; how many died where."""
    assert len(told) == num
    fell: Counter[str] = Counter()
    for job in told:
        assert job["code"] == 0, job
        assert job["equal"] == {"status": True, "numbers": True, "points": True, "state": True}, job
        assert job["died"] == (143 if job["how"] == TERM else -9), job
        if job["how"] in POINTS:
            assert job["steps"] == job["at"] * SAVE_EVERY, "in that save"
            there = SAVE_EVERY * job["at"] in job["saved"]
            assert there == (job["how"] == "after rename"), job
            assert bool(job["left"]) == (job["how"] != "after rename"), job
            fell["inside a save"] += 1
        else:
            # the spool is written at checkpoints: a kill loses the lines since then
            assert 0 <= job["steps"] < STEPS, job
            fell[f"between steps, {job['how']}"] += 1
    return fell


def test_a_sample_of_the_matrix_ends_bit_for_bit(tmp_path: Path) -> None:
    fell = check(killed(16, int(os.environ.get("DARKROOM_SEED", "0")), tmp_path), 16)
    assert fell == {f"between steps, {KILL}": 10, f"between steps, {TERM}": 4, "inside a save": 2}


@pytest.mark.soak
@pytest.mark.timeout(5400)
def test_two_hundred_kills_over_the_matrix(tmp_path: Path) -> None:
    told = killed(200, 1, tmp_path)
    SOAK.parent.mkdir(exist_ok=True)
    SOAK.write_text("".join(json.dumps(job) + "\n" for job in told))
    fell = check(told, 200)
    assert fell["inside a save"] >= 20
    assert sum(num for where, num in fell.items() if where.startswith("between")) >= 160
    assert {key: {str(job["settings"][key]) for job in told} for key in told[0]["settings"]}["precision"] == {
        "fp32", "bf16", "fp16",
    }  # fmt: skip
    print(f"\n200 of 200 equal to the bit: {dict(fell)}; where each fell: {SOAK}")

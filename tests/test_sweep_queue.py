"""A sweep's best points as experiments in DVC's queue."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from darkroom.errors import UserError
from darkroom.sweeping.queueing import queue
from pipelines import Pipeline, restore


@pytest.fixture
def emptied(pipeline: Pipeline) -> Iterator[Pipeline]:
    yield pipeline
    pipeline.run("dvc", "queue", "remove", "--all")
    (pipeline.folder / "optuna.db").unlink(missing_ok=True)
    restore(pipeline)


def params_of_queued(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """{name: values of params.yaml}, of what waits in DVC's queue."""
    shown = json.loads(pipeline.run("dvc", "exp", "show", "--json").stdout)
    found: dict[str, dict[str, Any]] = {}

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "params" in value.get("data", {}) and value.get("name"):
                found[value["name"]] = value["data"]["params"]["params.yaml"]["data"]
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(shown)
    return found


def test_the_best_points_wait_in_dvcs_queue(emptied: Pipeline):
    sweep = ("python", "stages/sweep.py", "--trials", "3", "--workers", "1", "-S", "train.epochs=1", "-S", "sweep.pruner=none",
             "-S", "sweep.confirm.top=0")  # fmt: skip
    told = emptied.run(*sweep, "--queue", "2").stdout
    names = re.findall(r"^queued ([\w-]+): ", told, re.MULTILINE)
    assert len(names) == 2
    assert told.splitlines()[-1] == "next: dvc queue start"
    found = params_of_queued(emptied)
    assert set(names) <= set(found)
    best = dict(re.findall(r"^  (\w+\.\w+): (.+)$", told, re.MULTILINE))
    first = found[names[0]]
    assert {key: str(first[key.split(".")[0]][key.split(".")[1]]) for key in best} == best
    assert first["train"]["epochs"] == found[names[1]]["train"]["epochs"] == 1, "what was fixed is the experiments' too"
    assert found[names[0]]["train"]["lr"] != found[names[1]]["train"]["lr"]


def test_what_dvc_refuses_is_said_in_its_words(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="dvc exp run --queue: .*not inside of a DVC repository"):
        list(queue([{"train.lr": 0.1}]))


@pytest.mark.parametrize("count", ["0", "-1", "some"])
def test_no_number_of_experiments(pipeline: Pipeline, count: str):
    done = pipeline.run("python", "stages/sweep.py", f"--queue={count}", code=2)
    assert f"{count!r} is no number of experiments" in done.stderr

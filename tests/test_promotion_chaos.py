"""Promotions and rollbacks in random order, killed at random points: one champion, never one that failed a gate, a whole history."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chaos import BETTER, ROLLBACK, points

KILLED = -9


def told(count: int, seed: str, folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("chaos.py")), str(count), seed, str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@dataclass
class Ledger:
    """What is allowed, in plain Python: who may be champion now, whom each one replaced, and what must be on record."""

    champion: str | None = None
    lines: dict[str, list[str]] = field(default_factory=dict)
    """of each version that was ever champion: those before it, the newest first"""
    record: list[str] = field(default_factory=list)
    unsettled: bool = False
    """whether the last entry may still be missing from the record, since its action was killed"""

    def follow(self, action: dict[str, Any], *, exists: bool) -> None:
        """Takes an action's outcome in, after checking that it is one of those allowed."""
        state, code, kind = action["state"], action["code"], action["kind"]
        now = state["aliases"].get("champion")
        target = next(iter(self.lines.get(self.champion or "", [])), None)
        wanted = {BETTER: 0, ROLLBACK: 0 if target else 1}.get(kind, 1)
        assert code in (wanted, KILLED), action
        if now != self.champion:
            assert kind in (BETTER, ROLLBACK), f"{kind} changed the champion"
            self._move(action, str(now), target)
        else:
            assert code == KILLED or wanted == 1, f"{kind} changed nothing"
            self._stay(action, exists=exists)
        assert self.champion is None or self.champion in state["versions"]
        self._compare(action)

    def _move(self, action: dict[str, Any], now: str, target: str | None) -> None:
        if action["kind"] == BETTER:
            assert action["state"]["versions"][now]["run_id"] == action["run_id"], "the candidate's, or the old one"
            self.lines[now] = [self.champion, *self.lines[self.champion]] if self.champion else []
            self.record.append(f"promoted as darkroom version {now}")
        else:
            assert now == target
            self.record.append(f"rolled back from version {self.champion}")
        self.champion, self.unsettled = now, True

    def _stay(self, action: dict[str, Any], *, exists: bool) -> None:
        """A refusal is on record where its action ended, and may be where it was killed."""
        results = [decision["result"] for decision in action["state"]["decisions"]]
        kept = len(results) > len(self.record)
        if action["code"] != KILLED:
            assert kept == (exists and action["kind"] != ROLLBACK), action
        if kept:
            assert results[-1].startswith("refused: ")
            self.record.append(results[-1])
            self.unsettled = False

    def _compare(self, action: dict[str, Any]) -> None:
        state = action["state"]
        results = [decision["result"] for decision in state["decisions"]]
        ended = action["code"] != KILLED
        assert results == self.record or (not ended and self.unsettled and results == self.record[:-1]), action
        if not ended:
            return
        self.unsettled = False
        line = self.lines[self.champion] if self.champion else []
        assert state["aliases"].get("previous") == (line[0] if line else None)
        assert state["versions"].keys() == self.lines.keys(), "no version that was never champion"
        assert {(each["state"], each["decided"]) for each in state["versions"].values()} <= {("complete", False)}
        assert list(state["models"].values()) == ["complete"] * len(self.lines)


def check(actions: list[dict[str, Any]], folder: Path) -> Counter[str]:
    """Follows every action; how many were killed where."""
    ledger, exists = Ledger(), False
    passed = {action["run_id"] for action in actions if action["kind"] == BETTER}
    for action in actions:
        ledger.follow(action, exists=exists)
        exists = action["state"]["exists"]
        champions = [each for number, each in action["state"]["versions"].items() if number == ledger.champion]
        assert all(each["run_id"] in passed for each in champions)
    _check_runs(actions, folder)
    return Counter(action["call"] for action in actions if action["code"] == KILLED)


def _check_runs(actions: list[dict[str, Any]], folder: Path) -> None:
    """Every promotion is in its run too, whole, also where it was killed before it was recorded."""
    for decision in actions[-1]["state"]["decisions"]:
        if decision["result"].startswith("promoted"):
            [file] = folder.glob(f"project/mlruns/{decision['run_id']}/artifacts/promotion/{decision['when']}.json")
            whole = json.loads(file.read_text())
            assert {key: value for key, value in whole.items() if key != "gates"} == decision
            assert all(verdict["passed"] for verdict in whole["gates"])


def test_a_few_actions_leave_one_champion_and_a_whole_history(tmp_path: Path) -> None:
    killed = check(told(16, os.environ.get("DARKROOM_SEED", "0"), tmp_path), tmp_path)
    assert killed.total() >= 3


@pytest.mark.soak
def test_a_kill_beside_each_call_of_the_client_is_put_in_order(tmp_path: Path) -> None:
    actions = told(0, "points", tmp_path)
    missed = [action for action in actions if action["call"] and action["code"] != KILLED]
    assert not missed, "each point is one that the action comes by"
    assert check(actions, tmp_path).total() == sum(bool(action.call) for action in points()) == 70


@pytest.mark.soak
def test_a_hundred_actions_leave_one_champion_and_a_whole_history(tmp_path: Path) -> None:
    killed = check(told(100, os.environ.get("DARKROOM_SEED", "1"), tmp_path), tmp_path)
    assert killed["any time"] >= 8
    assert killed.total() - killed["any time"] >= 12
    print(f"\n100 actions, {killed.total()} killed: {dict(killed)}")

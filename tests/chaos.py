"""Promotions and rollbacks in random order, some of them killed, each in a process of its own.

    python tests/chaos.py COUNT SEED FOLDER      prints a line of JSON an action: what was asked, how it ended, what the database holds
    python tests/chaos.py 0 points FOLDER        the same for `points()`: each call of the client in turn instead of random ones

One process imports everything and forks for each action; it looks at the database with sqlite alone and never opens the
store of the actions, so no connection is shared. A kill falls at any time, or right before or after a call of MLflow's
client, also of those that put in order what the kill before it left. The last action is never killed.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

BETTER, WORSE, FAILED, OTHER_DATA, ROLLBACK = "better", "worse", "failed run", "other data", "rollback"
SIDES = ("before", "after")
RECORD = ("log_dict", "set_tag", "set_registered_model_tag")
ROLL = ("set_model_version_tag", "set_registered_model_alias", *RECORD[2:], "delete_model_version_tag")
CROWN = ("create_registered_model", "create_logged_model", "log_model_artifacts", "finalize_logged_model",
         "create_model_version", "set_logged_model_tags", *ROLL, *RECORD[:2])  # fmt: skip
TIDY = ("delete_logged_model", "delete_model_version", "delete_registered_model_alias", *ROLL, *RECORD[:2])
CALLS = {BETTER: CROWN, WORSE: RECORD, FAILED: RECORD, OTHER_DATA: RECORD, ROLLBACK: ROLL}
"""of MlflowClient, at which an action may be killed; TIDY where the action before it was"""
HIGHEST = 100
"""test pictures: a candidate that is right on all of them is never beaten"""


@dataclass(frozen=True)
class Action:
    """What is asked, and where it is killed."""

    kind: str
    right: int
    """test pictures of a hundred that the candidate gets right; 0 for a rollback"""
    call: str = ""
    """the client's method that the kill stands beside; "any time"; empty where nothing is killed"""
    side: str = "before"
    turn: int = 1
    """which call of that method, from 1"""
    share: float = 0.0
    """of the time that an action takes, where the kill falls at any time"""


def draw(rng: random.Random, champion: int, *, killed_before: bool) -> Action:
    """An action to follow a champion that is right on so many pictures (0: there is none)."""
    kind = rng.choices([BETTER, ROLLBACK, WORSE, FAILED, OTHER_DATA], [10, 5, 2, 1, 1])[0]
    if champion == HIGHEST:
        kind = ROLLBACK
    if not champion and kind == WORSE:
        kind = BETTER
    better = min(HIGHEST, max(60, champion) + rng.randint(1, 4))
    right = {ROLLBACK: 0, WORSE: champion - rng.randint(0, 5)}.get(kind, better)
    calls, side, turn, share = CALLS[kind], rng.choice(SIDES), rng.choice((1, 1, 2)), rng.random()
    if killed_before and rng.random() < 0.5:
        return Action(kind, right, rng.choice(TIDY), side, turn)
    if rng.random() < 0.45:
        return Action(kind, right, rng.choice((*calls, *["any time"] * len(calls))), side, turn, share)
    return Action(kind, right)


def points() -> list[Action]:
    """A kill right before and right after each call of a promotion, of a rollback and of what puts one in order.

    Each is followed by an action that is not killed. `right` is left to `main`.
    """
    twice = ("set_registered_model_alias", "set_model_version_tag")  # champion, then previous; decided, then complete
    in_promotion = [*((call, 1) for call in CROWN), *((call, 2) for call in twice)]
    in_rollback = [*((call, 1) for call in ROLL), ("set_registered_model_alias", 2)]
    begun, moved = Action(BETTER, 0, "set_logged_model_tags", "after"), Action(BETTER, 0, twice[0], "after")
    in_order = [(begun, call) for call in TIDY[:2]] + [(moved, call) for call in (*twice, *RECORD, ROLL[-1])]
    plan = [Action(BETTER, 0), Action(BETTER, 0)]
    for side in SIDES:
        for call, turn in in_promotion:
            plan += [Action(BETTER, 0, call, side, turn), Action(ROLLBACK, 0), Action(BETTER, 0)]
        for call, turn in in_rollback:
            plan += [Action(BETTER, 0), Action(ROLLBACK, 0, call, side, turn), Action(WORSE, 0)]
        for before, call in in_order:
            plan += [before, Action(WORSE, 0, call, side), Action(ROLLBACK, 0)]
    return plan


def _die_at(action: Action) -> None:
    """Patches the client, so that this process dies beside that call."""
    from mlflow import MlflowClient

    plain, calls = getattr(MlflowClient, action.call), 0

    def method(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == action.turn and action.side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        turn = calls
        try:
            return plain(*args, **kwargs)
        finally:
            if turn == action.turn:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(MlflowClient, action.call, method)


def _work(action: Action, root: Path, packed: Any, place: Path, ready: Callable[[str], None]) -> None:
    """The action itself. Calls `ready` with the candidate's run when all is there and the action begins."""
    from champions import candidate
    from darkroom.params import read_params
    from darkroom.tracking.registry import Registry
    from promote import _rollback, promote
    from stores import store_at

    store = store_at(root)
    asked = None
    if action.kind != ROLLBACK:
        changed = {"data": "e" * 64} if action.kind == OTHER_DATA else {}
        asked = candidate(store, place, right=action.right, **changed)
        if action.kind == FAILED:
            store.client.set_terminated(asked.run_ids["train"], "FAILED")
    if action.call not in ("", "any time"):
        _die_at(action)
    ready(asked.run_ids["train"] if asked else "")
    if asked is None:
        _rollback(Registry(store, "darkroom"))
        return
    settings = read_params(Path(__file__).resolve().parents[1] / "params.yaml").promote
    promote(packed, asked, promote=settings.model_copy(update={"minimum": 0.3}), store=store)


def _forked(work: Callable[[Callable[[str], None]], None], kill_after: float | None) -> tuple[int, str, float]:
    """Runs `work` in a fork, killed so many seconds after it is ready: exit code (-9 if killed), candidate's run, seconds."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(work, lambda run_id: os.write(writing, f"{run_id}\n".encode()))
    os.close(writing)
    with os.fdopen(reading) as pipe:
        run_id = pipe.readline().strip()
        started = time.monotonic()
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, run_id, time.monotonic() - started


def _child(work: Callable[[Callable[[str], None]], None], ready: Callable[[str], Any]) -> None:
    from darkroom.errors import UserError

    code = 70
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        work(ready)
        code = 0
    except UserError as error:
        print(error, file=sys.stderr)
        code = 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def held(root: Path) -> dict[str, Any]:
    """What the database holds of the registered model, read without the program under test."""
    with closing(sqlite3.connect(root / "mlflow.db")) as database:

        def rows(query: str) -> list[tuple[Any, ...]]:
            return database.execute(query).fetchall()

        tags: dict[int, dict[str, str]] = {}
        for number, key, value in rows("select version, key, value from model_version_tags"):
            tags.setdefault(number, {})[key] = value
        versions = rows("select version, run_id from model_versions where current_stage != 'Deleted_Internal'")
        kept = "select value from registered_model_tags where key like 'darkroom.decision.%' order by key"
        models = (
            "select model_id, tag_value from logged_models join logged_model_tags using (model_id)"
            " where lifecycle_stage = 'active' and tag_key = 'darkroom.state'"
        )
        return {
            "exists": bool(rows("select 1 from registered_models")),
            "aliases": {alias: str(number) for alias, number in rows("select alias, version from registered_model_aliases")},
            "versions": {
                str(number): {
                    "run_id": run_id,
                    "state": tags[number].get("darkroom.state"),
                    "decided": "darkroom.decided" in tags[number],
                }
                for number, run_id in versions
            },
            "decisions": [json.loads(text) for (text,) in rows(kept)],
            "models": dict(rows(models)),
        }  # fmt: skip


def _champions_right(state: dict[str, Any], rights: dict[str, int]) -> int:
    number = state["aliases"].get("champion")
    return rights[state["versions"][number]["run_id"]] if number else 0


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stages"))
    from champions import packed_set
    from stores import project

    seed, folder = sys.argv[2], Path(sys.argv[3])
    plan = points() if seed == "points" else []
    count = len(plan) or int(sys.argv[1])
    packed = packed_set(folder / "packed")
    # here, so that the forks find everything imported; its store is another
    for right in (70, 80):
        _work(Action(BETTER, right), folder / "warm", packed, folder / f"warm-{right}", lambda _: None)
    _work(Action(ROLLBACK, 0), folder / "warm", packed, folder, lambda _: None)
    gc.freeze()  # so that a fork's collector does not copy all that is imported
    root = project(folder / "project")
    rights: dict[str, int] = {}
    typical, killed_before = 0.5, False
    for number in range(count):
        champion = _champions_right(held(root), rights)
        action = draw(random.Random(f"{seed}-{number}"), champion, killed_before=killed_before)
        if plan:
            steps = {BETTER: 1, WORSE: -1, ROLLBACK: -champion}
            action = replace(plan[number], right=max(champion, 30) + steps[plan[number].kind])
        elif number == count - 1:
            action = Action(action.kind, action.right)
        late = action.share * typical if action.call == "any time" else None

        def work(ready: Callable[[str], None], action: Action = action, number: int = number) -> None:
            _work(action, root, packed, folder / f"candidate-{number}", ready)

        code, run_id, seconds = _forked(work, late)
        rights[run_id] = action.right
        killed_before = code == -signal.SIGKILL
        typical = typical if killed_before or action.kind != BETTER else seconds
        told = {"run_id": run_id, "code": code, "seconds": round(seconds, 3), "state": held(root)}
        print(json.dumps(asdict(action) | told), flush=True)


if __name__ == "__main__":
    main()

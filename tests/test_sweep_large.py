"""A study of a thousand trials: neither the next point nor the pictures keep anybody waiting."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.trial import FrozenTrial, TrialState, create_trial

from darkroom.params import Params
from darkroom.sweeping.pictures import PICTURES, draw
from darkroom.sweeping.space import Space, distribution, identity
from darkroom.sweeping.standing import num_by_state
from test_sweep_study import ledger_of, section

NUM_TRIALS = 1000
LIMIT_SECONDS = 2.0
"""of a core, which other programs do not lengthen"""


def trials_of(space: Space, num: int) -> list[FrozenTrial]:
    """As a sweep leaves them: two in three pruned after three epochs, best near train.lr 0.003 and width 40."""
    rng = random.Random(0)
    kinds = {key: distribution(key, dimension) for key, dimension in space.dimensions.items()}
    points = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    found = []
    for place in range(num):
        params = points.ask(kinds).params
        score = 1 - abs(math.log10(params["train.lr"]) + 2.5) / 4 - abs(params["model.width"] - 40) / 200
        score += rng.gauss(0, 0.02)
        complete = place % 3 == 0
        found.append(
            create_trial(
                state=TrialState.COMPLETE if complete else TrialState.PRUNED,
                value=score,
                params=params,
                distributions=kinds,
                intermediate_values={epoch: score * (1 - 0.5**epoch) for epoch in ((3, 9, 30) if complete else (3,))},
                user_attrs={"place": place, "coordinator": "elsewhere 7 1"},
            )
        )
    return found


def store_quickly(url: str, trials: list[FrozenTrial]) -> None:
    """Into the study darkroom, without waiting for the disk after each of ten thousand rows."""
    storage = optuna.storages.RDBStorage(url)

    @sqlalchemy.event.listens_for(storage.engine, "connect")
    def hurry(connection: Any, _record: Any) -> None:
        connection.execute("pragma synchronous = off")
        connection.execute("pragma journal_mode = memory")

    storage.engine.dispose()
    optuna.load_study(study_name="darkroom", storage=storage).add_trials(trials)
    storage.engine.dispose()


def core_seconds(do: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    result = do()
    return result, time.process_time() - began


def test_a_thousand_trials(params: Params, tmp_path: Path) -> None:
    wanted = section(params, trials=NUM_TRIALS + 100)
    with ledger_of(wanted, tmp_path) as ledger:
        trials = trials_of(ledger.space, NUM_TRIALS)
    t = time.perf_counter()
    store_quickly(f"sqlite:///{tmp_path / 'optuna.db'}", trials)
    print("stored", time.perf_counter() - t)
    with ledger_of(wanted, tmp_path) as ledger:
        claims, seconds = zip(*(core_seconds(ledger.claim) for _ in range(3)), strict=True)
        assert max(seconds) < LIMIT_SECONDS, "the first one reads all trials"
        assert [claim.attributes["place"] for claim in claims] == [NUM_TRIALS + i for i in range(3)]
        assert len({identity(claim.point) for claim in claims}) == 3
        assert all(1e-3 < claim.point["train.lr"] < 1e-2 for claim in claims), "TPE knows where the good ones are"
        assert num_by_state(ledger.study) == {"complete": 334, "pruned": 666, "failed": 0}
        _, drawing = core_seconds(lambda: draw(ledger.study, ledger.space, ledger.sweep, tmp_path))
        print(seconds, drawing)
        assert drawing < LIMIT_SECONDS
        assert all((tmp_path / f"{name}.png").stat().st_size > 10_000 for name in PICTURES)
        assert len((tmp_path / "trials.csv").read_text().splitlines()) == 1 + NUM_TRIALS + 3

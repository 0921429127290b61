"""The best trials trained again with other seeds: a trial that was lucky with its seed is not applied.

The repeats are a study of their own beside the sweep's, with a trial for each best trial and seed. So they are claimed,
killed and gone on with as all trials are, by any number of workers and machines.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from darkroom.errors import UserError
from darkroom.files import sha256_bytes
from darkroom.params import Dimension, Sweep
from darkroom.sweeping.ledger import Ledger
from darkroom.sweeping.objective import gain
from darkroom.sweeping.space import Point, Space
from darkroom.sweeping.standing import ranked, value_of

TRIAL, SEED = "trial", "train.seed"


@dataclass(frozen=True)
class Confirmed:
    """A trial's settings over fresh seeds."""

    trial: FrozenTrial
    values: tuple[float, ...]
    """of the metric, a seed each; empty where nothing is confirmed"""

    @property
    def mean(self) -> float:
        return statistics.mean(self.values) if self.values else float(value_of(self.trial) or 0)

    @property
    def spread(self) -> float:
        """standard deviation"""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def best_trials(ledger: Ledger) -> list[FrozenTrial]:
    """Those that are to be confirmed, the best first; none where sweep.confirm is off."""
    return ranked(ledger.study, ledger.sweep)[: ledger.sweep.confirm.top]


def name_of(sweep: Sweep, trials: list[FrozenTrial]) -> str:
    """The repeats' study: another one where others are the best, since the sweep went on."""
    numbers = " ".join(str(number) for number in sorted(trial.number for trial in trials))
    return f"{sweep.study} again {sha256_bytes(f'{numbers} {sweep.confirm.seeds}'.encode())[:6]}"


def repeats(ledger: Ledger, study: Study, trials: list[FrozenTrial], seed: int) -> Ledger:
    """The ledger of the repeats: each of `trials` with the seeds after `seed`, which the trials had."""
    seeds = range(seed + 1, seed + 1 + ledger.sweep.confirm.seeds)
    space = Space({TRIAL: Dimension(choices=[trial.number for trial in trials]), SEED: Dimension(choices=[*seeds])})
    total = len(trials) * len(seeds)
    sweep = ledger.sweep.model_copy(
        update={"study": study.study_name, "trials": total, "sampler": "grid", "pruner": "none"}
    )
    return Ledger(study, space, sweep)


def point_of(ledger: Ledger, repeat: Point) -> Point:
    """What a repeat trains: its trial's point with another seed."""
    trial = ledger.trials()[repeat[TRIAL]]
    return {**ledger.space.decode(trial.params), SEED: repeat[SEED]}


def confirmed(ledger: Ledger, again: Ledger | None, trials: list[FrozenTrial]) -> list[Confirmed]:
    """The trials by their mean over fresh seeds, the best first; by their own value where none were trained.

    Raises UserError where a trial's every repeat failed.
    """
    if again is None:
        return [Confirmed(trial, ()) for trial in ranked(ledger.study, ledger.sweep)[:1]]
    values: dict[int, list[float]] = {trial.number: [] for trial in trials}
    for each in again.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        values[each.params[TRIAL]].append(float(value_of(each) or 0))
    if failed := [number for number, found in values.items() if not found]:
        raise UserError(
            f"trial {failed[0]} of study {ledger.sweep.study} could not be trained with another seed: "
            f"{_errors(again.study)}; -S sweep.confirm.top=0 takes the best as it is"
        )
    found = [Confirmed(trial, tuple(values[trial.number])) for trial in trials]
    return sorted(found, key=lambda each: -gain(ledger.sweep.first, each.mean))


def told(found: list[Confirmed], metric: str) -> list[str]:
    """A line for each, where there were fresh seeds."""
    return [
        f"  trial {each.trial.number}: {metric} {each.mean:.4f} ± {each.spread:.4f} over {len(each.values)} fresh seeds "
        f"({value_of(each.trial):.4f} in the sweep)"
        for each in found
        if each.values
    ]


def table_of(found: list[Confirmed]) -> str:
    """As CSV."""
    rows = [(each.trial.number, value_of(each.trial), each.mean, each.spread, len(each.values)) for each in found]
    return "\n".join(["trial,value,mean,spread,num_seeds", *(",".join(map(str, row)) for row in rows)]) + "\n"


def _errors(study: Study) -> str:
    errors: list[Mapping[str, Any]] = [trial.user_attrs for trial in study.get_trials(deepcopy=False)]
    return next((str(each["error"]) for each in reversed(errors) if "error" in each), "no repeat is complete")

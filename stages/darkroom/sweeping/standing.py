"""Where a study stands: which trials count, which is the best, and the whole in a line."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from darkroom.errors import UserError
from darkroom.params import Sweep
from darkroom.sweeping.objective import OTHER, gain

_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


NOT_COUNTED = {"lost", "duplicate_of", "surplus"}
"""Attributes of a trial that failed without being one of the study's total (see `ledger`)."""


def counts(trial: FrozenTrial) -> bool:
    """Whether the trial is one of the study's total: complete, pruned, or failed by itself (see `ledger`)."""
    does_not = trial.state == TrialState.FAIL and not NOT_COUNTED.isdisjoint(trial.user_attrs)
    return trial.state in _STATES and not does_not


def num_by_state(study: Study) -> dict[str, int]:
    """{"complete": 5, "pruned": 14, "failed": 1}, of those that count."""
    states = [trial.state for trial in study.get_trials(deepcopy=False) if counts(trial)]
    return {name: states.count(state) for state, name in _STATES.items()}


def value_of(trial: FrozenTrial) -> float | None:
    """By the first metric; of a pruned trial the best that it reached, of one with folds that of the last."""
    return trial.values[0] if trial.values else None


def scored(sweep: Sweep, trial: FrozenTrial) -> str:
    """A complete trial's values: "val_accuracy 0.9931, num_parameters 12,345"."""

    def shown(value: float) -> str:
        return f"{value:,.0f}" if value.is_integer() and value > 1 else f"{value:.4f}"

    pairs = zip(sweep.metrics, trial.values, strict=True)
    of_folds = f" (mean of {sweep.folds} folds)" if sweep.folds else ""
    return ", ".join(f"{metric} {shown(value)}" for metric, value in pairs) + of_folds


def reached(sweep: Sweep, trial: FrozenTrial) -> str:
    """How far a pruned trial came, and to what: "epoch 1.25 at 0.9312"."""
    values = trial.intermediate_values
    if sweep.folds:
        return f"fold {trial.last_step} at a mean of {statistics.mean(values.values()):.4f}"
    return f"epoch {(trial.last_step or 0) / sweep.reports:g} at {value_of(trial):.4f}"


def ranked(study: Study, sweep: Sweep) -> list[FrozenTrial]:
    """Complete trials, the best first; of equals the better one by the other score, then the earlier. A pruned one never wins.

    Of several metrics the first leads, but among trials within `sweep.tolerance` of the best the others do, in their order.
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    losses = {trial.number: _losses(sweep, trial) for trial in complete}
    enough = min((found[0] for found in losses.values()), default=0.0) + sweep.tolerance

    def rank(trial: FrozenTrial) -> tuple[bool, Sequence[float], float, float]:
        first, *others = losses[trial.number]
        other = trial.user_attrs.get(OTHER[sweep.first])
        tie = math.inf if other is None else -gain(OTHER[sweep.first], other)
        return first > enough, others if first <= enough else [], first, tie

    return sorted(complete, key=rank)


def _losses(sweep: Sweep, trial: FrozenTrial) -> list[float]:
    """Of a complete trial, a metric each: less is better."""
    return [-gain(metric, value) for metric, value in zip(sweep.metrics, trial.values, strict=True)]


def front(study: Study, sweep: Sweep) -> list[FrozenTrial]:
    """Of several metrics: the ranked trials that no other is better than by one and not worse than by the rest."""
    found = ranked(study, sweep)
    losses = {trial.number: _losses(sweep, trial) for trial in found}

    def is_beaten(own: list[float]) -> bool:
        return any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in losses.values())

    return [trial for trial in found if not is_beaten(losses[trial.number])]


def best(study: Study, sweep: Sweep) -> FrozenTrial | None:
    """The first of the ranked."""
    return next(iter(ranked(study, sweep)), None)


def winner(study: Study, sweep: Sweep) -> FrozenTrial:
    """The best trial. Raises UserError where none is complete."""
    found = best(study, sweep)
    if found is None:
        trials = study.get_trials(deepcopy=False)
        errors = [trial.user_attrs["error"] for trial in trials if "error" in trial.user_attrs]
        advice = (
            f"the last failed: {errors[-1]}" if errors else "the pruner stopped all (-S sweep.pruner=none stops none)"
        )
        raise UserError(f"no winner in {summary(study)}; {advice}; a new beginning: --study {study.study_name}-2")
    return found


def summary(study: Study) -> str:
    """The study in a line."""
    numbers = num_by_state(study)
    parts = ", ".join(f"{number} {name}" for name, number in numbers.items() if number)
    return f"study {study.study_name}: {sum(numbers.values())} trials ({parts or 'none done'})"

"""Where a study stands: which trials count, which is the best, and the whole in a line."""

from __future__ import annotations

import math

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from darkroom.errors import UserError
from darkroom.sweeping.objective import OTHER, gain

_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def counts(trial: FrozenTrial) -> bool:
    """Whether the trial is one of the study's total: complete, pruned, or failed by itself (see `ledger`)."""
    does_not = trial.state == TrialState.FAIL and ("lost" in trial.user_attrs or "duplicate_of" in trial.user_attrs)
    return trial.state in _STATES and not does_not


def num_by_state(study: Study) -> dict[str, int]:
    """{"complete": 5, "pruned": 14, "failed": 1}, of those that count."""
    states = [trial.state for trial in study.get_trials(deepcopy=False) if counts(trial)]
    return {name: states.count(state) for state, name in _STATES.items()}


def best(study: Study, metric: str) -> FrozenTrial | None:
    """The best complete trial; of equals the better one by the other metric, then the earlier. A pruned one never wins."""

    def rank(trial: FrozenTrial) -> tuple[float, float]:
        other = trial.user_attrs.get(OTHER[metric])
        return gain(metric, float(trial.value or 0)), -math.inf if other is None else gain(OTHER[metric], other)

    return max(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)), key=rank, default=None)


def winner(study: Study, metric: str) -> FrozenTrial:
    """The best trial. Raises UserError where none is complete."""
    found = best(study, metric)
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

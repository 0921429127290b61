"""Attempts that were killed or interrupted, and the ones that go on with them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from optuna import Trial
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

MOST_KILLS = 3
"""A trial whose worker dies so often, by want of memory for one, has failed by itself."""


def end_attempt(study: Study, trial: FrozenTrial, why: str, kills: int) -> bool:
    """Ends a RUNNING trial that is trained no more; whether a successor waits in the study: not after MOST_KILLS."""
    kills += trial.user_attrs.get("kills", 0)
    goes_on = kills < MOST_KILLS
    with suppress(UpdateFinishedTrialError):  # two machines that both take a third for gone
        if goes_on:
            # The successor goes first: a sweep killed between these lines finds it by its retry_of.
            _set(study, trial, "successor", _successor(study, trial, kills))
            _set(study, trial, "lost", why)
        else:
            _set(study, trial, "error", f"{why}, {kills} times")
    study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
    return goes_on


def _successor(study: Study, trial: FrozenTrial, kills: int) -> int:
    """Number of the attempt after `trial`, which waits in the study."""
    for _ in range(2):
        for other in study.get_trials(deepcopy=False):
            if other.user_attrs.get("retry_of") == trial.number:
                return other.number
        kept: dict[str, Any] = {
            name: trial.user_attrs[name] for name in ("place", "mlflow_run_id") if name in trial.user_attrs
        }
        # One that was killed in the middle of being asked for has not got all values of its own enqueued point yet.
        point = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        study.enqueue_trial(point, user_attrs=kept | {"retry_of": trial.number, "kills": kills})
    raise AssertionError("an enqueued trial is among the study's trials")


def _set(study: Study, trial: FrozenTrial, name: str, value: Any) -> None:
    Trial(study, trial._trial_id).set_user_attr(name, value)  # noqa: SLF001 - there is no public handle on a trial that another process asked for

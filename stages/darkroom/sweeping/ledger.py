"""Which trials count: the study's total, kept through kills, restarts and any number of workers and machines.

A trial counts when it is complete, pruned, or failed by itself. An attempt that was killed or interrupted is FAIL with the
attribute `lost`, and its successor, with the same point and place, waits in the study to be asked next. A point that was
drawn before is FAIL with `duplicate_of`, one too many with `surplus`; neither is trained. Attributes of a trial in Optuna's
storage:

    place                 its number among those that count, 0 … trials-1; the sampler's random numbers follow from it
    coordinator           "host pid started" of the process that asked for it; the trial is settled when it stands there
    lost, duplicate_of, surplus    why it does not count
    retry_of, successor   numbers of the attempts before and after this one
    kills                 how many of the attempts before this one lost their worker
    mlflow_run_id, error, val_accuracy, val_loss

Several coordinators may ask at once, with no lock between their machines. The storage gives each trial its own number, and
who has one waits until all lower ones are settled before it looks for a free place (Lamport's bakery). So no two have the
same place, none trains what another trains, and together they never go beyond the total.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from optuna import Trial
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from darkroom.params import Sweep
from darkroom.sweeping.attempts import end_attempt
from darkroom.sweeping.liveness import Roll, age, own_name
from darkroom.sweeping.objective import OTHER, best_of
from darkroom.sweeping.sampling import Placed, make_sampler
from darkroom.sweeping.space import Point, Space, identity
from darkroom.sweeping.standing import counts

MOST_TRIES = 100
"""Draws of points that were drawn before, in a space too large to list, until it counts as tried out."""
SETTLE_SECONDS = 20.0
"""How long a trial may be unsettled, which takes milliseconds: longer, and the process that asked for it died there."""
GOING = (TrialState.RUNNING, TrialState.WAITING)


@dataclass(frozen=True)
class Claim:
    """One trial to be trained."""

    trial: Trial
    point: Point
    attributes: dict[str, Any]
    """as in the storage when it was asked for"""

    @property
    def number(self) -> int:
        return self.trial.number

    @property
    def retry_of(self) -> int | None:
        return self.attributes.get("retry_of")

    @property
    def run_id(self) -> str | None:
        """The MLflow run of an attempt before, which this one goes on with."""
        return self.attributes.get("mlflow_run_id")


@dataclass(frozen=True)
class Ledger:
    """Asks and tells, for one of the study's coordinators."""

    study: Study
    space: Space
    sweep: Sweep
    roll: Roll = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "roll", Roll(self.study))

    def trials(self) -> list[FrozenTrial]:
        """All of the study, at the index of their number."""
        return self.study.get_trials(deepcopy=False)

    def num_done(self) -> int:
        return sum(map(counts, self.trials()))

    def is_open(self) -> bool:
        """Whether trials are missing, and there are points left for them."""
        done = self._tried([trial for trial in self.trials() if counts(trial)])
        return len(done) < self.sweep.trials and not self._is_tried_out(done.values())

    def is_going(self) -> bool:
        """Whether a trial runs somewhere, or waits for a worker."""
        return any(trial.state in GOING for trial in self.trials())

    def recover(self, *, alone: bool = False) -> int:
        """Ends the attempts of coordinators that are gone; how many there were. Their successors wait in the study.

        `alone` says that nobody else can be at work on the study: then nobody settles what is unsettled.
        """
        running = [trial for trial in self.trials() if trial.state == TrialState.RUNNING]
        left = [trial for trial in running if self._is_orphan(trial) or (alone and not _is_settled(trial))]
        for trial in left:
            end_attempt(self.study, trial, "the sweep was killed", kills=0)
        return len(left)

    def _is_orphan(self, trial: FrozenTrial) -> bool:
        if coordinator := trial.user_attrs.get("coordinator"):
            return self.roll.is_gone(str(coordinator))
        return trial.datetime_start is None or age(trial) > SETTLE_SECONDS

    def claim(self) -> Claim | None:
        """The next trial, or None when the total is reached (with those that run) or no point is left."""
        for tries in range(MOST_TRIES):
            tried = self._tried(self.trials())
            if len(tried) >= self.sweep.trials or self._is_tried_out(tried.values()):
                return None
            claim = self._ask(tries)
            others = [trial for trial in self.trials() if trial.number != claim.number and _is_settled(trial)]
            tried = self._tried(others)
            if claim.attributes["place"] >= self.sweep.trials:
                self._dismiss(claim, "surplus", claim.attributes["place"])
            elif (twin := self._twin(claim, others, tried)) is not None:
                self._dismiss(claim, "duplicate_of", twin)
                self._ask_for_untried(claim, tried.values())
            else:
                for name in ("place", "coordinator"):
                    claim.trial.set_user_attr(name, claim.attributes[name])
                return claim
        return None

    def _ask(self, tries: int) -> Claim:
        sampler = Placed(lambda place: make_sampler(self.sweep, self.space, place, tries), self._find_place)
        self.study.sampler = sampler
        trial = self.study.ask()
        attributes = {**trial.user_attrs, "place": sampler.place, "coordinator": own_name()}
        return Claim(trial, self.space.suggest(trial), attributes)

    def _find_place(self, trial: FrozenTrial) -> int:
        """The place that an enqueued trial has, or the first that no other has, once all trials before it are settled."""
        if "place" in trial.user_attrs:
            return int(trial.user_attrs["place"])
        while any(self._may_settle(each) and each.number < trial.number for each in self.trials()):
            time.sleep(0.01)
        taken = {each.user_attrs.get("place") for each in self.trials() if counts(each) or each.state in GOING}
        return next(place for place in range(len(taken) + 1) if place not in taken)

    def _may_settle(self, trial: FrozenTrial) -> bool:
        unsettled = trial.state == TrialState.RUNNING and "coordinator" not in trial.user_attrs
        return unsettled and age(trial) < SETTLE_SECONDS

    def _tried(self, trials: list[FrozenTrial]) -> dict[int, str]:
        """Numbers and points of the trials that count, or run."""
        taken = [trial for trial in trials if counts(trial) or trial.state == TrialState.RUNNING]
        return {trial.number: identity(self.space.decode(trial.params)) for trial in taken}

    def _twin(self, claim: Claim, others: list[FrozenTrial], tried: Mapping[int, str]) -> int | None:
        """Number of the trial that makes this one needless: of the same point, or the same attempt's successor."""
        if claim.retry_of is not None:
            return next((each.number for each in others if each.user_attrs.get("retry_of") == claim.retry_of), None)
        return next((number for number, point in tried.items() if point == identity(claim.point)), None)

    def _is_tried_out(self, tried: Collection[str]) -> bool:
        points = self.space.points
        return points is not None and all(identity(point) in tried for point in points)

    def _dismiss(self, claim: Claim, why: str, value: Any) -> None:
        """Tells off a trial that is not to be trained."""
        claim.trial.set_user_attr(why, value)
        self.study.tell(claim.number, state=TrialState.FAIL)

    def _ask_for_untried(self, claim: Claim, tried: Collection[str]) -> None:
        """Where the space can be listed, a point that was not drawn is asked next, in the place of one that was."""
        untried = [point for point in self.space.points or [] if identity(point) not in tried]
        if untried and claim.retry_of is None:
            place = claim.attributes["place"]
            chosen = random.Random(f"{self.sweep.seed} {place}").choice(untried)
            self.study.enqueue_trial(self.space.encode(chosen), user_attrs={"place": place})

    def started(self, claim: Claim, run_id: str) -> None:
        claim.trial.set_user_attr("mlflow_run_id", run_id)

    def report(self, claim: Claim, step: int, value: float) -> bool:
        """Records the best value up to `step`, which counts reports from 1; whether the trial is to stop.

        The best so far, since Optuna takes a pruned trial's last report as its value, and since one bad epoch is no
        reason to stop. Of folds each has its own value.
        """
        earlier = self._now(claim).intermediate_values
        if claim.retry_of is not None and not earlier:
            earlier = self._repeat(claim, claim.retry_of, step)
        if not self.is_ours(claim):
            return True
        if len(self.sweep.metrics) > 1:  # Optuna takes no reports of such trials
            return False
        reached = value if self.sweep.folds else best_of(self.sweep.first, [value, *earlier.values()])
        claim.trial.report(reached, step)
        return claim.trial.should_prune()

    def is_ours(self, claim: Claim) -> bool:
        """Whether the trial still runs: another machine that took this one for gone has ended it, and trains its successor."""
        return self._now(claim).state == TrialState.RUNNING

    def _repeat(self, claim: Claim, retry_of: int, before: int) -> dict[int, float]:
        """Reports what the killed attempt did before the checkpoint that this one goes on from."""
        values = self.trials()[retry_of].intermediate_values
        repeated = {step: value for step, value in sorted(values.items()) if step < before}
        for step, value in repeated.items():
            claim.trial.report(value, step)
            claim.trial.should_prune()  # successive halving notes here which rungs were passed
        return repeated

    def complete(self, claim: Claim, scores: Mapping[str, float]) -> float:
        """Ends a trial that was trained to its end; its value."""
        with suppress(UpdateFinishedTrialError):  # another machine ended it a moment ago
            for metric in set(OTHER) & set(scores):
                claim.trial.set_user_attr(metric, scores[metric])
        values = [scores[metric] for metric in self.sweep.metrics]
        self.study.tell(claim.trial, values, skip_if_finished=True)
        return values[0]

    def prune(self, claim: Claim) -> FrozenTrial:
        return self.study.tell(claim.trial, state=TrialState.PRUNED, skip_if_finished=True)

    def fail(self, claim: Claim, error: str) -> None:
        claim.trial.set_user_attr("error", error)
        self.study.tell(claim.trial, state=TrialState.FAIL, skip_if_finished=True)

    def interrupt(self, claim: Claim) -> None:
        """Ends an attempt that was told to stop; its successor waits."""
        end_attempt(self.study, self._now(claim), "interrupted", kills=0)

    def lose(self, claim: Claim, why: str) -> bool:
        """Ends an attempt whose worker died; whether a successor waits: not after MOST_KILLS of them."""
        return end_attempt(self.study, self._now(claim), why, kills=1)

    def _now(self, claim: Claim) -> FrozenTrial:
        return self.trials()[claim.number]


def _is_settled(trial: FrozenTrial) -> bool:
    return "coordinator" in trial.user_attrs

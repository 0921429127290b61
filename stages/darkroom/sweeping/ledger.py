"""Which trials count: the study's total, kept through kills, restarts and any number of workers.

A trial counts when it is complete, pruned, or failed by itself. An attempt that was killed or interrupted is FAIL with the
attribute `lost`, and its successor, with the same point and place, waits in the study to be asked next. A point that was
drawn before is FAIL with `duplicate_of`, and is not trained. Attributes of a trial in Optuna's storage:

    place                 its number among those that count, 0 … trials-1; the sampler's random numbers follow from it
    coordinator           "host pid started" of the process that asked for it
    lost, duplicate_of    why it does not count
    retry_of, successor   numbers of the attempts before and after this one
    kills                 how many of the attempts before this one lost their worker
    mlflow_run_id, error, val_accuracy, val_loss
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import psutil
from optuna import Trial
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from darkroom.params import Sweep
from darkroom.sweeping.objective import OTHER, best_of
from darkroom.sweeping.sampling import make_sampler
from darkroom.sweeping.space import Point, Space, identity
from darkroom.sweeping.standing import counts

MOST_KILLS = 3
"""A trial whose worker dies so often, by want of memory for one, has failed by itself."""
MOST_TRIES = 100
"""Draws of points that were drawn before, in a space too large to list, until it counts as tried out."""


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
    """Asks and tells. One process at a time holds a study's ledger."""

    study: Study
    space: Space
    sweep: Sweep

    def trials(self) -> list[FrozenTrial]:
        """All of the study, at the index of their number."""
        return self.study.get_trials(deepcopy=False)

    def num_done(self) -> int:
        return sum(map(counts, self.trials()))

    def is_open(self) -> bool:
        """Whether trials are missing, and there are points left for them."""
        done = list(filter(counts, self.trials()))
        return len(done) < self.sweep.trials and not self._is_tried_out(self._numbers(done))

    def recover(self) -> int:
        """Ends the attempts that a coordinator on this machine left when it was killed; how many there were."""
        left = [trial for trial in self.trials() if trial.state == TrialState.RUNNING and _is_orphan(trial)]
        for trial in left:
            self._lose(trial, "the sweep was killed", kills=0)
        return len(left)

    def claim(self) -> Claim | None:
        """The next trial, or None when the total is reached (with those that run) or no point is left."""
        for tries in range(MOST_TRIES):
            trials = self.trials()
            taken = [trial for trial in trials if counts(trial) or trial.state == TrialState.RUNNING]
            tried = self._numbers(taken)
            if len(taken) >= self.sweep.trials or self._is_tried_out(tried):
                return None
            claim = self._ask(trials, tries)
            twin = tried.get(identity(claim.point))
            if twin is None or claim.retry_of is not None:
                return claim
            self._dismiss(claim, twin, tried)
        return None

    def _ask(self, trials: list[FrozenTrial], tries: int) -> Claim:
        place = _free_place(trials)
        self.study.sampler = make_sampler(self.sweep, place, tries)
        trial = self.study.ask()
        attributes = {"place": place, **trial.user_attrs, "coordinator": _coordinator()}
        for name in ("place", "coordinator"):
            trial.set_user_attr(name, attributes[name])
        return Claim(trial, self.space.suggest(trial), attributes)

    def _numbers(self, trials: list[FrozenTrial]) -> dict[str, int]:
        """Numbers of trials by their point."""
        return {identity(self.space.decode(trial.params)): trial.number for trial in trials}

    def _is_tried_out(self, tried: Collection[str]) -> bool:
        points = self.space.points
        return points is not None and all(identity(point) in tried for point in points)

    def _dismiss(self, claim: Claim, twin: int, tried: Collection[str]) -> None:
        """Tells off a point drawn before; where the space can be listed, one that was not drawn is asked next."""
        claim.trial.set_user_attr("duplicate_of", twin)
        self.study.tell(claim.number, state=TrialState.FAIL)
        untried = [point for point in self.space.points or [] if identity(point) not in tried]
        if untried:
            numbers = random.Random(f"{self.sweep.seed} {claim.attributes['place']}")
            self.study.enqueue_trial(self.space.encode(numbers.choice(untried)))

    def started(self, claim: Claim, run_id: str) -> None:
        claim.trial.set_user_attr("mlflow_run_id", run_id)

    def report(self, claim: Claim, epoch: int, value: float) -> bool:
        """Records the best value up to `epoch`, which counts from 1; whether the trial is to stop.

        The best so far, since Optuna takes a pruned trial's last report as its value, and since one bad epoch is no
        reason to stop.
        """
        earlier = self._now(claim).intermediate_values
        if claim.retry_of is not None and not earlier:
            earlier = self._repeat(claim, claim.retry_of, epoch)
        claim.trial.report(best_of(self.sweep.metric, [value, *earlier.values()]), epoch)
        return claim.trial.should_prune()

    def _repeat(self, claim: Claim, retry_of: int, epoch: int) -> dict[int, float]:
        """Reports what the killed attempt did before the checkpoint that this one goes on from."""
        before = self.trials()[retry_of].intermediate_values
        repeated = {step: value for step, value in sorted(before.items()) if step < epoch}
        for step, value in repeated.items():
            claim.trial.report(value, step)
            claim.trial.should_prune()  # successive halving notes here which rungs were passed
        return repeated

    def complete(self, claim: Claim, scores: Mapping[str, float]) -> float:
        """Ends a trial that was trained to its end; its value."""
        for metric in OTHER:
            if metric in scores:
                claim.trial.set_user_attr(metric, scores[metric])
        value = scores[self.sweep.metric]
        self.study.tell(claim.trial, value)
        return value

    def prune(self, claim: Claim) -> FrozenTrial:
        return self.study.tell(claim.trial, state=TrialState.PRUNED)

    def fail(self, claim: Claim, error: str) -> None:
        claim.trial.set_user_attr("error", error)
        self.study.tell(claim.trial, state=TrialState.FAIL)

    def interrupt(self, claim: Claim) -> None:
        """Ends an attempt that was told to stop; its successor waits."""
        self._lose(self._now(claim), "interrupted", kills=0)

    def lose(self, claim: Claim, why: str) -> bool:
        """Ends an attempt whose worker died; whether a successor waits: not after MOST_KILLS of them."""
        return self._lose(self._now(claim), why, kills=1)

    def _lose(self, trial: FrozenTrial, why: str, kills: int) -> bool:
        kills += trial.user_attrs.get("kills", 0)
        goes_on = kills < MOST_KILLS
        if goes_on:
            # The successor goes first: a sweep killed between these lines finds it by its retry_of.
            self._set(trial, "successor", self._successor(trial, kills))
            self._set(trial, "lost", why)
        else:
            self._set(trial, "error", f"{why}, {kills} times")
        self.study.tell(trial.number, state=TrialState.FAIL)
        return goes_on

    def _successor(self, trial: FrozenTrial, kills: int) -> int:
        """Number of the attempt after `trial`, which waits in the study."""
        for _ in range(2):
            for other in self.trials():
                if other.user_attrs.get("retry_of") == trial.number:
                    return other.number
            kept: dict[str, Any] = {
                name: trial.user_attrs[name] for name in ("place", "mlflow_run_id") if name in trial.user_attrs
            }
            self.study.enqueue_trial(trial.params, user_attrs=kept | {"retry_of": trial.number, "kills": kills})
        raise AssertionError("an enqueued trial is among the study's trials")

    def _set(self, trial: FrozenTrial, name: str, value: Any) -> None:
        Trial(self.study, trial._trial_id).set_user_attr(name, value)  # noqa: SLF001 - there is no public handle on a trial that another process asked for

    def _now(self, claim: Claim) -> FrozenTrial:
        return self.trials()[claim.number]


def _free_place(trials: list[FrozenTrial]) -> int:
    """The first place that no trial has, of those that count, run or wait."""
    going = (TrialState.RUNNING, TrialState.WAITING)
    taken = {trial.user_attrs.get("place") for trial in trials if counts(trial) or trial.state in going}
    return next(place for place in range(len(trials) + 1) if place not in taken)


def _coordinator() -> str:
    process = psutil.Process()
    return f"{socket.gethostname()} {os.getpid()} {process.create_time():.0f}"


def _is_orphan(trial: FrozenTrial) -> bool:
    """Whether nobody works on this RUNNING trial; one of another machine is that machine's to judge."""
    host, pid, started = str(trial.user_attrs.get("coordinator", f"{socket.gethostname()} 0 0")).split()
    if host != socket.gethostname():
        return False
    try:
        return f"{psutil.Process(int(pid)).create_time():.0f}" != started
    except psutil.NoSuchProcess:
        return True

"""Who proposes the next point, and who stops a hopeless trial."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, QMCSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from darkroom.params import Sweep, Train

REDUCTION = 3
"""One trial in three goes on at each rung of successive halving."""
FIRST_RUNG = 1 / 10
"""Share of the epochs after which a trial is first judged, and never before an epoch at the full learning rate."""


def make_sampler(sweep: Sweep, place: int, tries: int) -> BaseSampler:
    """A new sampler for each point, its random numbers a function of the sweep's seed and the point's place alone.

    So a sweep that is stopped and goes on proposes what it would have proposed. TPE is the multivariate one, on groups of
    keys that occur together (`when`), and treats running trials as bad ones, so that workers spread out
    (https://arxiv.org/abs/2304.11127).
    """
    seed = int(np.random.SeedSequence([sweep.seed, place, tries]).generate_state(1)[0])
    with _experimental():
        if sweep.sampler == "random":
            return RandomSampler(seed=seed)
        if sweep.sampler == "qmc":  # its sequence is one: the scrambling keeps its seed, the storage its position
            fallback = RandomSampler(seed=seed)
            return QMCSampler(
                scramble=True, seed=sweep.seed, independent_sampler=fallback, warn_independent_sampling=False
            )
        return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)


def make_pruner(sweep: Sweep, train: Train) -> BasePruner:
    """The pruner for trials of train.epochs, or of what `sweep.space` says for it."""
    swept = sweep.space.get("train.epochs")
    lengths = [train.epochs, *(int(cast(float, end)) for end in (swept.extremes() if swept else []))]
    first = max(round(min(lengths) * FIRST_RUNG), math.ceil(train.warmup_epochs) + 1)
    match sweep.pruner:
        case "successive_halving":
            return WithoutLost(SuccessiveHalvingPruner(min_resource=first, reduction_factor=REDUCTION))
        case "hyperband":
            return HyperbandPruner(min_resource=first, max_resource=max(lengths), reduction_factor=REDUCTION)
        case "median":
            return MedianPruner(n_startup_trials=5, n_warmup_steps=first)
        case "none":
            return NopPruner()


class WithoutLost(BasePruner):
    """Successive halving that leaves out attempts which were killed: their successor competes, not both."""

    def __init__(self, pruner: BasePruner) -> None:
        self._pruner = pruner

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        return self._pruner.prune(cast(Study, _StudyWithoutLost(study)), trial)


class _StudyWithoutLost:
    def __init__(self, study: Study) -> None:
        self._study = study

    def __getattr__(self, name: str) -> Any:
        return getattr(self._study, name)

    def get_trials(self, *args: Any, **options: Any) -> list[FrozenTrial]:
        return [trial for trial in self._study.get_trials(*args, **options) if "lost" not in trial.user_attrs]


@contextmanager
def _experimental() -> Iterator[None]:
    """Grouped TPE and quasi-random points are marked as experimental; both are what is wanted here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield

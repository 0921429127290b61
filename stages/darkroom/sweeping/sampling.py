"""Who proposes the next point, and who stops a hopeless trial."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.pruners import (
    BasePruner,
    HyperbandPruner,
    MedianPruner,
    NopPruner,
    SuccessiveHalvingPruner,
    WilcoxonPruner,
)
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    GPSampler,
    NSGAIISampler,
    PartialFixedSampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.study import Study
from optuna.trial import FrozenTrial

from darkroom.params import Sweep, Train
from darkroom.sweeping.space import Space, distribution

REDUCTION = 3
"""One trial in three goes on at each rung of successive halving."""
FIRST_RUNG = 1 / 10
"""Share of the reports after which a trial is first judged, and never before one at the full learning rate."""
WORSE = 0.1
"""Level of Wilcoxon's test, one-sided, that a trial is worse than the best one on the same folds."""
GENERATION = 50
"""Most trials in a generation of NSGA-II; a sweep has at least five generations."""


class Placed(BaseSampler):
    """Proposes for a place of the study, which is found when the trial has its number.

    A new sampler for each point, its random numbers a function of the sweep's seed and the point's place alone: so a sweep
    that is stopped and goes on proposes what it would have proposed.
    """

    place: int

    def __init__(self, make: Callable[[int], BaseSampler], find_place: Callable[[FrozenTrial], int]) -> None:
        self._make, self._find_place = make, find_place

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.place = self._find_place(trial)
        self._sampler = self._make(self.place)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        with _experimental():
            return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)


def make_sampler(sweep: Sweep, space: Space, place: int, tries: int) -> BaseSampler:
    """What proposes the point for a place.

    TPE is the multivariate one, on groups of keys that occur together (`when`), and treats running trials as bad ones, so
    that workers spread out (https://arxiv.org/abs/2304.11127).
    """
    seed = int(np.random.SeedSequence([sweep.seed, place, tries]).generate_state(1)[0])
    fallback = RandomSampler(seed=seed)
    with _experimental():
        match sweep.sampler:
            case "tpe":
                return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)
            case "gp":
                return GPSampler(seed=seed, independent_sampler=fallback)
            case "cmaes":
                return CmaEsSampler(seed=seed, independent_sampler=fallback, warn_independent_sampling=False)
            case "random":
                return fallback
            case "qmc":  # its sequence is one: the scrambling keeps its seed, the storage its position
                return QMCSampler(
                    scramble=True, seed=sweep.seed, independent_sampler=fallback, warn_independent_sampling=False
                )
            case "nsga2":
                return NSGAIISampler(population_size=max(2, min(GENERATION, sweep.trials // 5)), seed=seed)
            case "grid":
                points = space.points or []
                return PartialFixedSampler(space.encode(points[place % len(points)]), fallback)


def at_random(sweep: Sweep, space: Space) -> list[str]:
    """Keys that the sampler knows nothing of and draws at random: a space that changes from trial to trial, or choices."""
    if sweep.sampler not in ("gp", "cmaes", "qmc"):
        return []
    kinds = {key: distribution(key, dimension) for key, dimension in space.dimensions.items()}
    choices = [key for key, kind in kinds.items() if isinstance(kind, CategoricalDistribution)]
    return sorted({*space.conditional, *(choices if sweep.sampler == "cmaes" else [])})


def make_pruner(sweep: Sweep, train: Train) -> BasePruner:
    """The pruner for trials of train.epochs, or of what `sweep.space` says for it."""
    swept = sweep.space.get("train.epochs")
    lengths = [train.epochs, *(int(cast(float, end)) for end in (swept.extremes() if swept else []))]
    reports = sweep.reports
    first = max(round(min(lengths) * reports * FIRST_RUNG), math.ceil(train.warmup_epochs * reports) + 1)
    match sweep.pruner:
        case "successive_halving":
            return WithoutLost(SuccessiveHalvingPruner(min_resource=first, reduction_factor=REDUCTION))
        case "hyperband":
            return HyperbandPruner(min_resource=first, max_resource=max(lengths) * reports, reduction_factor=REDUCTION)
        case "median":
            return MedianPruner(n_startup_trials=5, n_warmup_steps=first)
        case "wilcoxon":
            with _experimental():
                return WilcoxonPruner(p_threshold=WORSE)
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

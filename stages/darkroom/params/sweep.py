"""Section `sweep`: the search for better hyperparameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import Field

from darkroom.params.base import Count, Fault, Section, key

Scalar = bool | int | float | str
Choice = Scalar | list[int]

Metric = Literal["val_accuracy", "val_loss"]
Objective = Metric | Literal["num_parameters", "seconds"]
FEWEST_FOLDS = 5
"""With fewer no Wilcoxon test of two trials comes to its level of 0.1 before the last fold."""

STORAGE_VARIABLE = "OPTUNA_STORAGE"
"""What `sweep.storage` is where it is empty, as on optuna's own command line: a password there is seen by nobody."""
SBATCH_OPTION = re.compile(r"[a-z][a-z0-9-]*")
SET_BY_SWEEP = ("array", "chdir", "error", "export", "export-file", "open-mode", "output", "parsable", "wait", "wrap")
"""Options of sbatch that the sweep itself gives each job."""


class Dimension(Section):
    """One key's range (low, high, log, step) or its choices; `when` asks for another key's value first."""

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    choices: list[Choice] | None = None
    when: dict[str, Scalar] | None = None

    def problem(self) -> str | None:
        """What is wrong with this dimension by itself, or None."""
        if (self.choices is None) == (self.low is None and self.high is None):
            return "takes either choices: [...] or low: and high:"
        return self._range_problem() if self.choices is None else self._choices_problem(self.choices)

    def _choices_problem(self, choices: list[Choice]) -> str | None:
        if self.log or self.step is not None:
            return "log and step mean nothing with choices"
        twice = [choice for place, choice in enumerate(choices) if choice in choices[:place]]
        if twice:
            return f"choices: {choices} holds {twice[0]} twice"
        return None if choices else "choices: [] leaves nothing to choose from"

    def _range_problem(self) -> str | None:
        if self.low is None or self.high is None:
            return "takes both low: and high:"
        if self.low >= self.high:
            return f"low: {self.low} is not below high: {self.high}"
        if self.log and self.step is not None:
            return "log and step exclude each other"
        if self.log and self.low <= 0:
            return f"low: {self.low} must be above 0 with log: true"
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            return f"step: {self.step} must be above 0 and at most high - low"
        return None

    def extremes(self) -> list[Choice]:
        """Values that the key itself must allow: all choices, or both ends and the first step between them."""
        if self.choices is not None:
            return self.choices
        ends = [end for end in (self.low, self.high) if end is not None]
        return [*ends, ends[0] + self.step] if self.step is not None else [*ends]

    def holds(self, value: Scalar) -> bool:
        """Whether `value` is one of the choices, or lies in the range."""
        if self.choices is not None:
            return value in self.choices
        if isinstance(value, str) or self.low is None or self.high is None:
            return False
        return self.low <= value <= self.high


class Confirm(Section):
    """Before a winner is named."""

    top: Annotated[int, Field(ge=0, le=20)] = key("best trials that are trained again with other seeds; 0: off")
    seeds: Annotated[int, Field(ge=2, le=20)] = key("seeds that each of them is trained with")


class Sweep(Section):
    """Optuna's study: metric on validation data, never on test data."""

    study: Annotated[str, Field(min_length=1)] = key(
        "name of the study; the same name goes on with it", also=("study_name", "name")
    )
    metric: Metric | Annotated[list[Objective], Field(min_length=2)] = key(
        "validation metric to improve: accuracy upwards, all others downwards; a list: several at once",
        also=("objective",),
    )
    tolerance: Annotated[float, Field(ge=0)] = key(
        "several metrics: of the trials so close to the best by the first, the best by the next wins"
    )
    trials: Count = key("trials in the study in all, also after a restart", also=("n_trials", "num_trials"))
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = key(
        "processes that train side by side; auto: one a physical core, at most 4", also=("n_jobs",)
    )
    sampler: Literal["tpe", "gp", "cmaes", "random", "qmc", "grid", "nsga2"] = key("what proposes the next point")
    pruner: Literal["successive_halving", "hyperband", "median", "wilcoxon", "none"] = key(
        "what stops a hopeless trial: at a report, or wilcoxon after a fold"
    )
    report_every: Annotated[float, Field(gt=0, le=1)] = key(
        "epochs between the scores that the pruner sees: 1, or a whole part of one, such as 0.25"
    )
    folds: Literal[0] | Annotated[int, Field(ge=2, le=20)] = key(
        "a trial's value is its mean over so many folds of train and val pictures; 0: the val split"
    )
    timeout: Annotated[float, Field(ge=0)] = key("seconds after which no trial is begun any more; 0: never")
    seed: Annotated[int, Field(ge=0, lt=2**31)] = key("seed of the sampler")
    confirm: Confirm = key("the winner is the one with the best mean over fresh seeds, so that luck is not applied")
    storage: str = key("Optuna storage URL; empty: OPTUNA_STORAGE where set, else optuna.db beside this file")
    launcher: Literal["local", "slurm"] = key("where workers run: on this machine, or in jobs of a Slurm cluster")
    jobs: Literal["auto"] | Annotated[int, Field(ge=1, le=1000)] = key(
        "slurm: jobs side by side, each with its own workers; auto: as many as trials are missing, at most 4"
    )
    slurm: dict[str, Scalar] = key("slurm: sbatch's options for each job, by their long names")
    space: Annotated[dict[str, Dimension], Field(min_length=1)] = key(
        "keys of augment, model and train, each with its range or choices"
    )

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.metric,) if isinstance(self.metric, str) else tuple(self.metric)

    @property
    def first(self) -> str:
        """The metric that trials are told apart by."""
        return self.metrics[0]

    @property
    def reports(self) -> int:
        """of a trial to the pruner, an epoch"""
        return round(1 / self.report_every)

    def faults(self) -> Iterator[Fault]:
        yield from self._space_faults()
        yield from self._metric_faults()
        yield from self._pruner_faults()
        if self.storage and "://" not in self.storage:
            yield (
                "sweep.storage",
                f"{self.storage!r} is no storage URL (sqlite:////absolute/path.db, postgresql://…; empty: optuna.db)",
            )
        yield from self._slurm_faults()

    def _metric_faults(self) -> Iterator[Fault]:
        if len(self.metrics) == 1:
            if self.tolerance:
                yield "sweep.tolerance", f"{self.tolerance} means nothing to one metric: 0"
            return
        if len(set(self.metrics)) < len(self.metrics):
            yield "sweep.metric", f"{list(self.metrics)} names one twice"
        if self.first not in get_args(Metric):
            yield (
                "sweep.metric",
                f"{self.first} is no score to be the first of several: {' or '.join(get_args(Metric))}",
            )
        if self.pruner != "none":
            yield "sweep.pruner", f"{self.pruner} judges by one metric: none with several"
        if self.sampler == "cmaes":
            yield "sweep.sampler", "cmaes improves one metric: nsga2, tpe, gp, qmc, random or grid with several"
        if self.confirm.top:
            yield "sweep.confirm.top", f"{self.confirm.top} trials are compared by one metric: 0 with several"

    def _pruner_faults(self) -> Iterator[Fault]:
        if abs(self.reports * self.report_every - 1) > 1e-3:
            yield "sweep.report_every", f"{self.report_every} is no whole part of an epoch: 1, 0.5, 0.25, 0.2, 0.1, …"
        if self.folds and self.pruner not in ("wilcoxon", "none"):
            yield (
                "sweep.pruner",
                f"{self.pruner} judges by epochs, sweep.folds: {self.folds} by folds: wilcoxon or none",
            )
        if self.folds and self.reports > 1:
            yield "sweep.report_every", f"{self.report_every} means nothing to folds, which report at their end: 1"
        if self.pruner == "wilcoxon" and self.folds < FEWEST_FOLDS:
            yield "sweep.folds", f"{self.folds} are too few for the pruner wilcoxon: {FEWEST_FOLDS} or more"

    def _space_faults(self) -> Iterator[Fault]:
        for name, dimension in self.space.items():
            if problem := dimension.problem():
                yield f"sweep.space.{name}", problem
            for other, value in (dimension.when or {}).items():
                if other not in self.space or other == name:
                    yield f"sweep.space.{name}.when", f"{other} is no other key of sweep.space"
                elif not self.space[other].holds(value):
                    yield f"sweep.space.{name}.when", f"{other}: {value} is never drawn (see sweep.space.{other})"
        if circle := self._circle():
            yield "sweep.space", f"{' and '.join(circle)} wait for each other (when)"

    def _slurm_faults(self) -> Iterator[Fault]:
        for name in self.slurm:
            if name in SET_BY_SWEEP:
                yield "sweep.slurm", f"{name} is set by the sweep itself"
            elif not SBATCH_OPTION.fullmatch(name):
                yield (
                    "sweep.slurm",
                    f"{name!r} is no long option of sbatch (such as time, partition, cpus-per-task, mem)",
                )

    def _circle(self) -> list[str]:
        """Keys whose `when` can never be met, since each waits for another of them."""
        waiting = {name: set(dimension.when or {}) & set(self.space) for name, dimension in self.space.items()}
        while ready := [name for name, others in waiting.items() if not others & set(waiting)]:
            for name in ready:
                del waiting[name]
        return list(waiting)

"""Section `sweep`: the search for better hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from darkroom.params.base import Count, Fault, Section, key

Scalar = bool | int | float | str
Choice = Scalar | list[int]


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


class Sweep(Section):
    """Optuna's study: metric on validation data, never on test data."""

    study: Annotated[str, Field(min_length=1)] = key(
        "name of the study; the same name goes on with it", also=("study_name", "name")
    )
    metric: Literal["val_accuracy", "val_loss"] = key(
        "validation metric to improve; accuracy upwards, loss downwards", also=("objective",)
    )
    trials: Count = key("trials in the study in all, also after a restart", also=("n_trials", "num_trials"))
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = key(
        "processes that train side by side; auto: one a physical core, at most 4", also=("n_jobs", "jobs")
    )
    sampler: Literal["tpe", "random", "qmc"] = key("what proposes the next point")
    pruner: Literal["successive_halving", "hyperband", "median", "none"] = key(
        "what stops a hopeless trial after an epoch"
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = key("seed of the sampler")
    storage: str = key("Optuna storage URL; empty: optuna.db beside this file")
    space: Annotated[dict[str, Dimension], Field(min_length=1)] = key(
        "keys of augment, model and train, each with its range or choices"
    )

    def faults(self) -> Iterator[Fault]:
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
        if self.storage and "://" not in self.storage:
            yield (
                "sweep.storage",
                f"{self.storage!r} is no storage URL (sqlite:////absolute/path.db, postgresql://…; empty: optuna.db)",
            )

    def _circle(self) -> list[str]:
        """Keys whose `when` can never be met, since each waits for another of them."""
        waiting = {name: set(dimension.when or {}) & set(self.space) for name, dimension in self.space.items()}
        while ready := [name for name, others in waiting.items() if not others & set(waiting)]:
            for name in ready:
                del waiting[name]
        return list(waiting)

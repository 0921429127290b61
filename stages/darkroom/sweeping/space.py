"""The search space: params.yaml's ranges as Optuna's distributions, with conditions, and points as dotted keys."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, get_args

from optuna import Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from darkroom.params import SECTIONS, Dimension

Point = dict[str, Any]
"""Dotted keys of params.yaml with the values of one trial: {"train.lr": 0.1}; keys whose `when` is not met are absent."""

MOST_POINTS = 10_000
"""A finite space beyond this is treated as if it were infinite: it is never tried out in full."""


@dataclass(frozen=True)
class Space:
    """`sweep.space`, ordered so that a key comes after those that its `when` names."""

    dimensions: dict[str, Dimension]

    def suggest(self, trial: Trial) -> Point:
        """The point that the study's sampler proposes for `trial`, recorded in the storage."""
        point: Point = {}
        for key, dimension in self.dimensions.items():
            if _is_met(dimension, point):
                point[key] = _decoded(dimension, _draw(trial, key, distribution(key, dimension)))
        return point

    def decode(self, params: Mapping[str, Any]) -> Point:
        """Optuna's parameters of a trial as params.yaml's values: lists are text there."""
        return {key: _decoded(dimension, params[key]) for key, dimension in self.dimensions.items() if key in params}

    def encode(self, point: Point) -> dict[str, Any]:
        return {key: _encoded(value) for key, value in point.items()}

    @cached_property
    def points(self) -> list[Point] | None:
        """Every point of a finite space, conditions resolved, in order; None where there are too many."""
        sizes = [_num_values(key, dimension) for key, dimension in self.dimensions.items()]
        if math.prod(sizes) > MOST_POINTS:
            return None
        axes = [_values(key, dimension) for key, dimension in self.dimensions.items()]
        found: dict[str, Point] = {}
        for values in itertools.product(*axes):
            point: Point = {}
            for (key, dimension), value in zip(self.dimensions.items(), values, strict=True):
                if _is_met(dimension, point):
                    point[key] = value
            found.setdefault(identity(point), point)
        return list(found.values())

    @property
    def conditional(self) -> list[str]:
        return [key for key, dimension in self.dimensions.items() if dimension.when]

    def described(self) -> dict[str, Any]:
        """As JSON and for people: {"train.lr": {"low": 0.01, "high": 1.0, "log": true}}."""
        return {
            key: dimension.model_dump(exclude_defaults=True, exclude_none=True)
            for key, dimension in sorted(self.dimensions.items())
        }


def make_space(dimensions: Mapping[str, Dimension]) -> Space:
    """The space with every key after those that it waits for (`sweep.space` has no circles: the schema refuses them)."""
    ordered: dict[str, Dimension] = {}
    while len(ordered) < len(dimensions):
        for key, dimension in dimensions.items():
            if set(dimension.when or {}) <= set(ordered):
                ordered.setdefault(key, dimension)
    return Space(ordered)


def identity(point: Point) -> str:
    """The same text for the same point."""
    return json.dumps(point, sort_keys=True)


def distribution(key: str, dimension: Dimension) -> BaseDistribution:
    """Optuna's distribution: of whole numbers where the key takes no fractions, whatever the ends look like."""
    if dimension.choices is not None:
        return CategoricalDistribution([_encoded(choice) for choice in dimension.choices])
    assert dimension.low is not None
    high = _reachable(dimension)
    if _takes_fractions(_annotation(key)):
        return FloatDistribution(float(dimension.low), float(high), log=dimension.log, step=dimension.step)
    return IntDistribution(int(dimension.low), int(high), log=dimension.log, step=int(dimension.step or 1))


def _draw(trial: Trial, key: str, kind: BaseDistribution) -> Any:
    match kind:
        case CategoricalDistribution(choices=choices):
            return trial.suggest_categorical(key, choices)
        case IntDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_int(key, low, high, step=step, log=log)
        case FloatDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_float(key, low, high, step=step, log=log)
    raise AssertionError(f"{kind} is none of Optuna's distributions")


def _is_met(dimension: Dimension, point: Point) -> bool:
    return all(other in point and point[other] == value for other, value in (dimension.when or {}).items())


def _annotation(key: str) -> Any:
    section, _, field = key.partition(".")
    return SECTIONS[section].model_fields[field].annotation


def _takes_fractions(annotation: Any) -> bool:
    return annotation is float or any(_takes_fractions(part) for part in get_args(annotation))


def _reachable(dimension: Dimension) -> float:
    """The last value at or below `high` that whole steps from `low` lead to."""
    assert dimension.low is not None
    assert dimension.high is not None
    if dimension.step is None:
        return dimension.high
    low, high, step = (Decimal(str(value)) for value in (dimension.low, dimension.high, dimension.step))
    last = low + (high - low) // step * step
    return float(last)


def _num_values(key: str, dimension: Dimension) -> float:
    match distribution(key, dimension):
        case CategoricalDistribution(choices=choices):
            return len(choices)
        case IntDistribution(low=low, high=high, step=step):
            return (high - low) // step + 1
        case FloatDistribution(low=low, high=high, step=float(step)):
            return round((high - low) / step) + 1
    return math.inf


def _values(key: str, dimension: Dimension) -> list[Any]:
    match distribution(key, dimension):
        case CategoricalDistribution():
            return list(dimension.choices or [])
        case IntDistribution(low=low, high=high, step=step):
            return list(range(low, high + 1, step))
        case FloatDistribution(low=low, high=high, step=float(step)):
            return list(_steps(low, high, step))
    raise AssertionError(f"{key} is not finite")


def _steps(low: float, high: float, step: float) -> Iterator[float]:
    for place in range(round((high - low) / step) + 1):
        yield float(Decimal(str(low)) + place * Decimal(str(step)))


def _encoded(value: Any) -> Any:
    """Optuna stores categories that are text, numbers or booleans; a list becomes its JSON."""
    return json.dumps(value) if isinstance(value, list) else value


def _decoded(dimension: Dimension, value: Any) -> Any:
    for choice in dimension.choices or []:
        if isinstance(choice, list) and json.dumps(choice) == value:
            return choice
    if dimension.step is not None and isinstance(value, float):
        return float(f"{value:.12g}")  # 0.8 + 0.05 is 0.8500000000000001, which nobody wants in params.yaml
    return value

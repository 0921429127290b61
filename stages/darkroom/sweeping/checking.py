"""Is the search possible at all? Told before the first trial."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import optuna

from darkroom.errors import UserError
from darkroom.packed import Meta
from darkroom.params import Params, with_values
from darkroom.sweeping.space import MOST_POINTS, Space

DRAWS = 64
"""Points that are looked at; a choice is among them unless the space has dozens."""


def check_space(params: Params, space: Space) -> None:
    """Raises UserError where params.yaml allows no point at all, or none with one of the choices.

    Single values were checked with params.yaml; here it is about keys that contradict each other: model.name: mlp with
    model.blocks. A point now and then that is not allowed is no fault: its trial fails and the rest run.
    """
    if params.train.devices != 1:
        raise UserError(
            f"train.devices: {params.train.devices} means nothing to a sweep, whose trials train side by side in a process each "
            "(sweep.workers): -S train.devices=1"
        )
    if params.sweep.sampler == "grid" and space.points is None:
        endless = [
            key for key, dimension in space.dimensions.items() if dimension.choices is None and not dimension.step
        ]
        raise UserError(
            f"sweep.sampler: grid takes {'choices or a step for ' + ', '.join(endless) if endless else f'{MOST_POINTS:,} points at most'}"
        )
    outcomes: dict[str, list[str]] = defaultdict(list)
    for point in _draw(space):
        problem = _problem(params, point)
        outcomes["no point"].append(problem)
        for key, dimension in space.dimensions.items():
            if dimension.choices is not None and key in point:
                outcomes[f"no point with {key}: {point[key]}"].append(problem)
    hopeless = {what: found[0] for what, found in outcomes.items() if all(found)}
    if hopeless:
        whats = list(hopeless)[:1] if "no point" in hopeless else list(hopeless)
        lines = [f"  {what} can be trained: {hopeless[what]}" for what in whats]
        raise UserError("\n".join(["sweep.space: keys contradict each other", *lines]))


def _draw(space: Space) -> list[dict[str, Any]]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [space.suggest(study.ask()) for _ in range(DRAWS)]


def _problem(params: Params, point: dict[str, Any]) -> str:
    """What params.yaml has against the point, in a line; empty where it has nothing."""
    try:
        with_values(params, point)
    except UserError as error:
        return "; ".join(line.strip() for line in str(error).splitlines()[1:])
    return ""


def check_packed(params: Params, meta: Meta) -> None:
    """Raises UserError where data/packed holds other pictures than params.yaml says: it was changed without `dvc repro`."""
    data = params.data
    wanted = {"name": data.name, "image_size": data.image_size, "channels": data.channels, "resize": data.resize}
    for key, value in wanted.items():
        packed = getattr(meta, key)
        if value not in ("auto", packed):
            raise UserError(f"data.{key} is {value}, but data/packed was made with {packed}: run dvc repro prepare")

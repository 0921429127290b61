"""params.yaml as typed, frozen values: `read_params()`.

The schema holds no defaults and derives nothing: every key stands in params.yaml, where DVC tracks its value.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from darkroom.errors import UserError
from darkroom.params.augment import Augment
from darkroom.params.base import Fault, Section
from darkroom.params.data import Data
from darkroom.params.evaluate import Evaluate
from darkroom.params.explain import explain, unknown_key
from darkroom.params.export import Export
from darkroom.params.model import Model
from darkroom.params.promote import Promote
from darkroom.params.reading import as_yaml, parse_yaml, read_yaml
from darkroom.params.sweep import Dimension, Sweep
from darkroom.params.tracking import Tracking
from darkroom.params.train import Train

__all__ = [
    "SECTIONS", "Augment", "Data", "Dimension", "Evaluate", "Export", "Model", "Params", "Promote", "Sweep", "Tracking", "Train",
    "as_yaml", "check_params", "flatten", "parse_yaml", "read_params", "with_values",
]  # fmt: skip

SWEPT_SECTIONS = ("augment", "model", "train")
"""Sections that a sweep may vary: what the train stage takes."""


class Params(BaseModel):
    """All of params.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    data: Data
    augment: Augment
    model: Model
    train: Train
    evaluate: Evaluate
    export: Export
    tracking: Tracking
    promote: Promote
    sweep: Sweep


SECTIONS: dict[str, type[Section]] = {name: field.annotation for name, field in Params.model_fields.items()}  # type: ignore[misc]  # every field is a Section


LEFT_BY_DVC = "dvc exp run leaves its -S values in params.yaml when a stage fails: git diff params.yaml shows them"


def read_params(path: Path = Path("params.yaml")) -> Params:
    """The parameters in `path`. Raises UserError that names every fault at once."""
    try:
        return check_params(read_yaml(path), path.name)
    except UserError as error:
        if os.environ.get("DVC_EXP_NAME") and os.environ.get("DVC_ROOT") == str(Path.cwd()):
            raise UserError(f"{error}\n{LEFT_BY_DVC}") from None
        raise


def check_params(values: Any, name: str = "params.yaml") -> Params:
    """Typed parameters from nested mappings. Raises UserError that names every fault at once."""
    if not isinstance(values, Mapping):
        found = "is empty" if values is None else f"holds a {type(values).__name__}"
        raise UserError(
            f"{name} {found}; it needs the sections {', '.join(SECTIONS)} (git checkout {name} brings it back)"
        )
    faults = list(_all_faults(values))
    if faults:
        count = f"{len(faults)} faults" if len(faults) > 1 else "1 fault"
        raise UserError("\n".join([f"{name}: {count}", *(f"  {key}: {problem}" for key, problem in faults)]))
    return Params.model_validate(dict(values))


def _all_faults(values: Mapping[str, Any]) -> Iterator[Fault]:
    checked: dict[str, Section] = {}
    for name, schema in SECTIONS.items():
        section, faults = _check_section(name, schema, values)
        yield from faults
        if section is not None:
            checked[name] = section
    for name in values:
        if name not in SECTIONS:
            yield str(name), unknown_key(str(name), SECTIONS)
    if isinstance(sweep := checked.get("sweep"), Sweep):
        yield from _space_faults(sweep, values)


def _check_section(name: str, schema: type[Section], values: Mapping[str, Any]) -> tuple[Section | None, list[Fault]]:
    if name not in values:
        return None, [(name, "the section is missing (git diff params.yaml shows what it held)")]
    if not isinstance(values[name], Mapping):
        return None, [
            (name, f"{values[name]!r} is no section (keys with values below it: {', '.join(schema.model_fields)})")
        ]
    faults = explain(name, schema, dict(values[name]), SECTIONS)
    if faults:
        return None, faults
    section = schema.model_validate(dict(values[name]))
    return section, list(section.faults())


def _space_faults(sweep: Sweep, values: Mapping[str, Any]) -> Iterator[Fault]:
    """A space that leads out of what params.yaml allows is told before the first trial."""
    for key, dimension in sweep.space.items():
        section, _, field = key.partition(".")
        where = f"sweep.space.{key}"
        if field not in getattr(SECTIONS.get(section), "model_fields", {}):
            yield where, unknown_key(key, {name: SECTIONS[name] for name in SWEPT_SECTIONS})
        elif section not in SWEPT_SECTIONS:
            yield where, "a sweep varies keys of augment, model and train alone"
        elif dimension.problem() is None and isinstance(values.get(section), Mapping):
            for value in dimension.extremes():
                for _, problem in explain(
                    section, SECTIONS[section], {**values[section], field: value}, SECTIONS, only=field
                ):
                    yield where, problem


def flatten(params: BaseModel | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"train.lr": 0.1, ...}: nested mappings as dotted keys; lists stay values."""
    values = params.model_dump() if isinstance(params, BaseModel) else params
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def with_values(params: Params, changes: Mapping[str, Any]) -> Params:
    """`params` with {"train.lr": 0.1, ...} in place, checked as a whole. Raises UserError."""
    values = params.model_dump(exclude_none=True)
    for key, value in changes.items():
        *path, last = key.split(".")
        place = values
        for name in path:
            place = place.get(name, {}) if isinstance(place, dict) else {}
        if not isinstance(place, dict) or last not in place:
            raise UserError(f"{key}: {unknown_key(key, SECTIONS)}")
        place[last] = value
    return check_params(values, "parameters")

"""Parameters, metrics and tags in the form and the lengths that MLflow takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from mlflow.entities import Param, RunTag

METRICS_A_CALL = 1000
PARAMS_A_CALL = 100
TAGS_A_CALL = 100
PARAM_LENGTH = 6000
TAG_LENGTH = 7900
CUT = " … (cut here; whole in params.yaml)"

Item = TypeVar("Item")


def text_of(value: Any) -> str:
    """One spelling of each value: text as it is, all else as JSON (a float in the shortest form that gives it back)."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def params_of(values: Mapping[str, Any]) -> list[Param]:
    """MLflow's parameters; one that is too long is cut where one can see it."""
    return [Param(key, cut(text_of(value), PARAM_LENGTH, CUT)) for key, value in values.items()]


def tags_of(tags: Mapping[str, str]) -> list[RunTag]:
    return [RunTag(key, cut(value, TAG_LENGTH, " …")) for key, value in tags.items()]


def cut(text: str, length: int, mark: str) -> str:
    return text if len(text) <= length else text[: length - len(mark)] + mark


def same_value(recorded: str, value: Any) -> bool:
    """Whether a recorded parameter is `value`: equal as text, or as numbers (1 and 1.0)."""
    text = cut(text_of(value), PARAM_LENGTH, CUT)
    if recorded == text:
        return True
    try:
        return float(recorded) == float(text)
    except ValueError:
        return False


def metric_name(name: str) -> str:
    """`name` with each character that MLflow refuses written as -x<code>-, so that two names never become one.

    MLflow takes letters, digits, _ - . / : and spaces, up to 250 of them, and no path that a disk would fold.
    """
    clean = re.sub(r"[^\w.\- :/]|(?<=/)/|^/|/$|(?<![\w])\.(?=[./]|$)", lambda m: f"-x{ord(m[0]):x}-", name)
    return clean if len(clean) <= 250 else f"{clean[:240]}-x2026-"


def chunks(items: Iterable[Item], size: int) -> Iterator[Sequence[Item]]:
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part


def owned_tags(stage: str, names: Iterable[str]) -> dict[str, str]:
    """Tags that say which metrics `stage` logged, as many as their length needs."""
    listed = ",".join(sorted(names))
    parts = [listed[start : start + TAG_LENGTH] for start in range(0, len(listed), TAG_LENGTH)]
    return {f"darkroom.metrics.{stage}.{place}": part for place, part in enumerate(parts)}


def owned_names(stage: str, tags: Mapping[str, str]) -> set[str]:
    """The metrics that `stage` logged, as a run's tags say."""
    prefix = f"darkroom.metrics.{stage}."
    parts = sorted((int(key.removeprefix(prefix)), text) for key, text in tags.items() if key.startswith(prefix))
    return set("".join(text for _, text in parts).split(",")) - {""}

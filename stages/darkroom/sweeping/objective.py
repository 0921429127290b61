"""The metrics that a sweep improves, and which way is better."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

DIRECTIONS: dict[str, Literal["maximize", "minimize"]] = {"val_accuracy": "maximize", "val_loss": "minimize"}


def best_of(metric: str, values: Iterable[float]) -> float:
    return max(values) if DIRECTIONS[metric] == "maximize" else min(values)

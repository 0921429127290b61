"""The metrics that a sweep improves, and which way is better."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Direction = Literal["maximize", "minimize"]
DIRECTIONS: dict[str, Direction] = {
    "val_accuracy": "maximize",
    "val_loss": "minimize",
    "num_parameters": "minimize",
    "seconds": "minimize",
}
OTHER = {"val_accuracy": "val_loss", "val_loss": "val_accuracy"}
"""The metric that decides between equals: a hundred validation pictures give many equal accuracies."""


def gain(metric: str, value: float) -> float:
    """The value, or its negative: more is better."""
    return value if DIRECTIONS[metric] == "maximize" else -value


def best_of(metric: str, values: Iterable[float]) -> float:
    return max(values, key=lambda value: gain(metric, value))

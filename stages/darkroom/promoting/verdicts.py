"""What gates found: as values, and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """What one gate found."""

    gate: str
    found: str
    needed: str
    passed: bool


def table(verdicts: list[Verdict]) -> str:
    """The verdicts as lines of text, in columns."""
    rows = [("", "gate", "found", "needed")] + [
        ("ok" if verdict.passed else "NO", verdict.gate, verdict.found, verdict.needed) for verdict in verdicts
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    )


def as_values(verdicts: list[Verdict]) -> list[dict[str, Any]]:
    return [asdict(verdict) for verdict in verdicts]

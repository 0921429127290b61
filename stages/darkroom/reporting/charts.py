"""Line charts as geometry: what the template draws as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 68, 112, 14, 50
"""Pixels around the plot: for the labels of the axes, and at the right for the names of the lines."""
LINE_HEIGHT = 17
"""Pixels that the names of two lines keep between them."""

Value = float | None
"""None where a number was not finite"""


@dataclass(frozen=True)
class Line:
    """One series."""

    name: str
    pieces: list[str]
    """points of SVG polylines; more than one where a value is missing between them"""
    end: tuple[float, float]
    """of its last point"""
    label_y: float
    value: float
    """the last"""


@dataclass(frozen=True)
class Chart:
    """A line chart, in pixels from the top left."""

    title: str
    x_label: str
    y_label: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    lines: list[Line]
    mark: float | None
    """x of a line from top to bottom"""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


@dataclass(frozen=True)
class Axis:
    """From values to pixels."""

    low: float
    high: float
    start: float
    """pixel of `low`"""
    end: float
    """pixel of `high`"""

    def pixel(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 2)


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[Value]],
    mark: float | None = None,
    *,
    whole: bool = True,
) -> Chart | None:
    """A chart of `series` (each as long as `x`), with a vertical line at the value `mark`; None without a finite value.

    `whole`: x counts something, so that only whole numbers are marked there.
    """
    values = [value for each in series.values() for value in each if _finite(value)]
    if not values:
        return None
    y_ticks = ticks(min(values), max(values))
    x_ticks = [tick for tick in ticks(x[0], x[-1]) if not whole or tick == int(tick)]
    down = Axis(min(*values, *y_ticks), max(*values, *y_ticks), HEIGHT - BOTTOM, TOP)
    across = Axis(x[0], x[-1] if x[-1] > x[0] else x[0] + 1, LEFT, WIDTH - RIGHT)
    shown = [tick for tick in x_ticks if x[0] <= tick <= x[-1]]
    return Chart(
        title=title,
        x_label=x_label,
        y_label=y_label,
        x_ticks=[(across.pixel(tick), f"{tick:g}") for tick in shown],
        y_ticks=[(down.pixel(tick), f"{tick:g}") for tick in y_ticks],
        lines=_lines(x, series, across, down),
        mark=across.pixel(mark) if mark is not None else None,
    )


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values from at most `low` to at least `high`, `about` of them."""
    span = high - low or abs(high) or 1.0
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]


def _lines(x: Sequence[float], series: Mapping[str, Sequence[Value]], across: Axis, down: Axis) -> list[Line]:
    drawn = {name: _points(x, values, across, down) for name, values in series.items()}
    ends = {name: points[-1][-1] for name, points in drawn.items() if points}
    labels = _apart({name: y for name, (_, y) in ends.items()})
    last = {name: [value for value in values if _finite(value)][-1:] for name, values in series.items()}
    return [
        Line(
            name=name,
            pieces=[" ".join(f"{px:g},{py:g}" for px, py in piece) for piece in drawn[name]],
            end=end,
            label_y=labels[name],
            value=last[name][0] or 0.0,
        )
        for name, end in ends.items()
    ]


def _points(x: Sequence[float], values: Sequence[Value], across: Axis, down: Axis) -> list[list[tuple[float, float]]]:
    """Pieces of the line between missing values."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for at, value in zip(x, values, strict=True):
        if _finite(value):
            pieces[-1].append((across.pixel(at), down.pixel(value)))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _apart(heights: Mapping[str, float]) -> dict[str, float]:
    """The heights, moved down where two names would lie on each other, and up again where that leads out of the plot."""
    placed: dict[str, float] = {}
    free = float(TOP)
    for name, y in sorted(heights.items(), key=lambda item: item[1]):
        placed[name] = free = max(y, free)
        free += LINE_HEIGHT
    excess = max(0.0, free - LINE_HEIGHT - (HEIGHT - BOTTOM))
    return {name: round(y - excess, 2) for name, y in placed.items()}


def _finite(value: Value) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)

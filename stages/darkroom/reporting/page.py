"""The page: results and parameters put into the template."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from darkroom.reporting.card import card, title_of
from darkroom.reporting.charts import Chart, line_chart
from darkroom.reporting.results import Results
from darkroom.reporting.summary import summary
from darkroom.reporting.wording import duration, number, percent, size

FEW_CLASSES = 30
"""With more classes than this the page shows the worst ones, and the rest behind a fold."""
SHEETS_BYTES = 1_000_000
"""Contact sheets in the page, together: of a thousand classes they would be ten megabytes."""
LISTED = 10
"""Confused pairs and mistakes that are listed."""


def render(results: Results, parameters: Mapping[str, Mapping[str, Any]]) -> str:
    """One self-contained HTML page; `parameters` by section. The same results give the same text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "number": number, "size": size, "duration": duration, "png": png}
    return environment.get_template("page.html").render(
        results=results,
        parameters=parameters,
        title=title_of(parameters),
        charts=_training_charts(results),
        reliability=_reliability_chart(results),
        corruptions=_corruption_chart(results),
        sentences=summary(results, parameters),
        card=card(results, parameters),
        num_mistakes=len(results.mistakes),
        weakest=results.weakest,
        worst=sorted(results.per_class, key=lambda row: float(row["f1"] or 2))[:LISTED],
        few_classes=FEW_CLASSES,
        sheets=_first(results.sheets, SHEETS_BYTES),
        listed=LISTED,
    )


def _first(sheets: Mapping[str, bytes], most: int) -> dict[str, bytes]:
    """The first ones that weigh so much together, or one."""
    weights = accumulate(map(len, sheets.values()))
    return {name: png for (name, png), weight in zip(sheets.items(), weights, strict=True) if weight <= most} or dict(
        islice(sheets.items(), 1)
    )


def _training_charts(results: Results) -> list[Chart]:
    """Loss and accuracy by epoch, with the epoch whose weights became the model."""
    epochs = [row["epoch"] or 0.0 for row in results.epochs]
    if not epochs:
        return []
    columns = {name: [row.get(name) for row in results.epochs] for name in ("train_loss", "val_loss", "val_accuracy")}
    mark = results.train.get("chosen_epoch")
    losses = {"training": columns["train_loss"], "validation": columns["val_loss"]}
    drawn = (
        line_chart("Loss", "epoch", "mean loss", epochs, losses, mark),
        line_chart("Accuracy", "epoch", "share right", epochs, {"validation": columns["val_accuracy"]}, mark),
    )
    return [chart for chart in drawn if chart]


def _reliability_chart(results: Results) -> Chart | None:
    """How often the model is right where it is so sure, beside the line on which both are equal."""
    confidence = [row["confidence"] or 0.0 for row in results.reliability]
    series: dict[str, Sequence[float | None]] = {
        "if it were exact": confidence,
        "the model": [row["accuracy"] for row in results.reliability],
    }
    return line_chart("Share right", "confidence", "share right", confidence, series, whole=False)


def _corruption_chart(results: Results) -> Chart | None:
    """Accuracy by level of each corruption, from the clean pictures on."""
    if not results.corruptions:
        return None
    lines: dict[str, list[float | None]] = {}
    for row in results.corruptions:
        lines.setdefault(row["corruption"], [results.test["accuracy"]]).append(float(row["accuracy"]))
    levels = [float(level) for level in range(max(map(len, lines.values())))]
    return line_chart("Accuracy", "level of corruption (0: none)", "share right", levels, lines)


def png(content: bytes) -> str:
    """The picture as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"

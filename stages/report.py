"""Writes one self-contained HTML page of all results, and the model card.

Reads   metrics/data.json, metrics/train.json, metrics/test.json, metrics/export.json, plots/data, plots/training,
        plots/evaluation, reports/evaluation
Writes  reports/report.html, reports/model_card.md
Keys    data, augment, model, train, evaluate, export
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.door import enter, root, say
from darkroom.params import flatten, read_params

if TYPE_CHECKING:
    from darkroom.reporting.results import Results
    from darkroom.tracking.store import Store

KEYS: tuple[str, ...] = ("data", "augment", "model", "train", "evaluate", "export")
"""Shown, not used: so a change of any of them makes the page anew."""


def main() -> None:
    params = read_params()
    from darkroom.reporting.results import read_results
    from darkroom.tracking import open_store

    results = read_results(Path())
    shown = {name: values for name, values in params.model_dump(exclude_none=True).items() if name in KEYS}
    store = open_store(params.tracking, root())
    numbers = report(results, shown, store=store, out=Path())
    say(f"wrote reports/report.html ({numbers['bytes'] / 1e6:.1f} MB): open it in a browser")
    say(store.farewell(numbers["mlflow_run_id"]))


def report(results: Results, parameters: Mapping[str, Mapping[str, Any]], *, store: Store, out: Path) -> dict[str, Any]:
    """Writes the page and the card of `results` and of the `parameters` (by section) below `out`, and adds them to their run.

    The stages before training open no run: their parameters, numbers and pictures join it here, and dvc.lock with all
    hashes of the pipeline. Gives the page's bytes and the run.
    """
    from darkroom.files import write_text
    from darkroom.reporting.card import as_markdown
    from darkroom.reporting.page import render

    page, card = out / "reports/report.html", out / "reports/model_card.md"
    ids = {"run_id": results.train["mlflow_run_id"], "model_sha256": results.train["model_sha256"]}
    with store.join("report", flatten({"data": parameters["data"]}), **ids) as run:
        write_text(page, render(results, parameters))
        write_text(card, as_markdown(results, parameters))
        for path in (page, card):
            run.artifact(path, "report")
        run.artifact(out / "metrics/data.json", "metrics")
        run.artifacts(out / "plots/data", "plots/data")
        if (out / "dvc.lock").exists():
            run.artifact(out / "dvc.lock")
    return {"bytes": page.stat().st_size, "mlflow_run_id": run.run_id}


if __name__ == "__main__":
    enter(main)

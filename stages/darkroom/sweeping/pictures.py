"""The study as pictures and a table: one page to play with, PNG for reports, CSV for everything else."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import optuna
import optuna.visualization as interactive
import optuna.visualization.matplotlib as still
from matplotlib import pyplot as plt
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from darkroom.files import write_text, written_whole
from darkroom.sweeping.space import Space
from darkroom.sweeping.standing import counts

PICTURES = ("optimization_history", "param_importances", "parallel_coordinate")
"""optuna's plots, as `plot_<name>` of its two visualization modules"""
DOTS_AN_INCH = 120
PRUNED = "pruned, at its best"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body style="font-family: sans-serif; max-width: 60em; margin: auto"><h1>{title}</h1>
{figures}
</body></html>
"""


def draw(study: Study, space: Space, metric: str, folder: Path) -> None:
    """Writes `study.html` (self-contained), a PNG for each picture and `trials.csv` into `folder`.

    optuna draws complete trials alone; the history shows pruned ones too, at the best value that they reached.
    """
    with _quiet():
        figures = "\n".join(_interactive(study, name, metric, first=name == PICTURES[0]) for name in PICTURES)
        write_text(folder / "study.html", _PAGE.format(title=f"Study {study.study_name}", figures=figures))
        for name in PICTURES:
            _still(study, name, metric, folder / f"{name}.png")
    write_text(folder / "trials.csv", table(study, space))


def _interactive(study: Study, name: str, metric: str, *, first: bool) -> str:
    plot: Callable[..., Any] = getattr(interactive, f"plot_{name}")
    figure = plot(study, target_name=metric)
    if name == PICTURES[0]:
        numbers, values = _pruned(study)
        figure.add_scatter(x=numbers, y=values, mode="markers", marker={"symbol": "x", "color": "grey"}, name=PRUNED)
    return str(figure.to_html(full_html=False, include_plotlyjs=first))


def _still(study: Study, name: str, metric: str, path: Path) -> None:
    plot: Callable[..., Any] = getattr(still, f"plot_{name}")
    with plt.rc_context():  # optuna sets a style for all figures to come
        axes = plot(study, target_name=metric)
        if name == PICTURES[0]:
            axes.scatter(*_pruned(study), marker="x", color="grey", label=PRUNED)
            axes.legend()
        with written_whole(path) as temporary:
            axes.figure.savefig(temporary, format="png", dpi=DOTS_AN_INCH, bbox_inches="tight")
        plt.close(axes.figure)


def _pruned(study: Study) -> tuple[list[int], list[float]]:
    trials = [
        trial for trial in study.get_trials(deepcopy=False, states=(TrialState.PRUNED,)) if trial.value is not None
    ]
    return [trial.number for trial in trials], [float(trial.value or 0) for trial in trials]


def table(study: Study, space: Space) -> str:
    """All trials as CSV, those that do not count too."""
    keys = list(space.dimensions)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", "counts", "value", "epochs", "seconds", *keys, *ATTRIBUTES])
    for trial in study.get_trials(deepcopy=False):
        point = space.decode(trial.params)
        attributes = (trial.user_attrs.get(name, "") for name in ATTRIBUTES)
        writer.writerow([*_row(trial), *(point.get(key, "") for key in keys), *attributes])
    return text.getvalue()


ATTRIBUTES = ("mlflow_run_id", "retry_of", "duplicate_of", "lost", "error")
"""of the ledger"""


def _row(trial: FrozenTrial) -> Iterator[Any]:
    yield trial.number
    yield trial.state.name.lower()
    yield str(counts(trial)).lower()
    yield "" if trial.value is None else trial.value
    yield trial.last_step or 0
    yield "" if trial.duration is None else f"{trial.duration.total_seconds():.2f}"


@contextmanager
def _quiet() -> Iterator[None]:
    """optuna's matplotlib plots are marked as experimental, and few or equal trials make for warnings without advice."""
    backend = mpl.get_backend()
    mpl.use("agg")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        mpl.use(backend)

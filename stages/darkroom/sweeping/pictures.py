"""The study as pictures and a table: one page to play with, PNG for reports, CSV for everything else."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import optuna
import optuna.visualization as interactive
import optuna.visualization.matplotlib as still
from matplotlib import pyplot as plt
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from darkroom.files import write_text, written_whole
from darkroom.params import Sweep
from darkroom.sweeping.objective import gain
from darkroom.sweeping.space import Space
from darkroom.sweeping.standing import counts

PICTURES = ("optimization_history", "param_importances", "parallel_coordinate")
"""optuna's plots, as `plot_<name>` of its two visualization modules"""
FRONT = "pareto_front"
"""The picture of several metrics against each other."""
LINES, MOST_LINES = "parallel_coordinate", 200
"""The picture that has a line for each trial, and of how many: more hide each other, and take seconds."""
DOTS_AN_INCH = 120
PRUNED = "pruned, at its best"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body style="font-family: sans-serif; max-width: 60em; margin: auto"><h1>{title}</h1>
{figures}
</body></html>
"""


def draw(study: Study, space: Space, sweep: Sweep, folder: Path) -> None:
    """Writes `study.html` (self-contained), a PNG for each picture and `trials.csv` into `folder`.

    optuna draws complete trials alone; the history shows pruned ones too, at the best value that they reached. Of several
    metrics the pictures show the first.
    """
    metric = sweep.first
    trials = study.get_trials(deepcopy=False)
    names = PICTURES if len(sweep.metrics) == 1 else (*PICTURES, FRONT)
    views = dict.fromkeys(names, View(study, trials)) | {LINES: View(study, _best(trials, metric))}
    with _quiet():
        figures = "\n".join(_interactive(views[name], name, sweep) for name in names)
        write_text(folder / "study.html", _PAGE.format(title=f"Study {study.study_name}", figures=figures))
        for name in names:
            _still(views[name], name, sweep, folder / f"{name}.png")
    write_text(folder / "trials.csv", table(study, space, sweep))


class View(Study):
    """Some of a study's trials, as they were: optuna's plots ask for them a dozen times, with a deep copy of each."""

    def __init__(self, study: Study, trials: list[FrozenTrial]) -> None:
        vars(self).update(vars(study))
        self._shown = trials

    def get_trials(self, deepcopy: bool = True, states: Container[TrialState] | None = None) -> list[FrozenTrial]:  # noqa: ARG002 - optuna's
        return [trial for trial in self._shown if states is None or trial.state in states]


def _best(trials: list[FrozenTrial], metric: str) -> list[FrozenTrial]:
    """The complete trials that a plot with a line for each still shows."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return sorted(complete, key=lambda trial: gain(metric, trial.values[0]), reverse=True)[:MOST_LINES]


def _interactive(study: Study, name: str, sweep: Sweep) -> str:
    plot: Callable[..., Any] = getattr(interactive, f"plot_{name}")
    figure = plot(study, **_options(sweep, name))
    if name == PICTURES[0]:
        numbers, values = _pruned(study)
        figure.add_scatter(x=numbers, y=values, mode="markers", marker={"symbol": "x", "color": "grey"}, name=PRUNED)
    return str(figure.to_html(full_html=False, include_plotlyjs=name == PICTURES[0]))


def _still(study: Study, name: str, sweep: Sweep, path: Path) -> None:
    plot: Callable[..., Any] = getattr(still, f"plot_{name}")
    with plt.rc_context():  # optuna sets a style for all figures to come
        axes = plot(study, **_options(sweep, name))
        if name == PICTURES[0]:
            axes.scatter(*_pruned(study), marker="x", color="grey", label=PRUNED)
            axes.legend()
        with written_whole(path) as temporary:
            axes.figure.savefig(temporary, format="png", dpi=DOTS_AN_INCH, bbox_inches="tight")
        plt.close(axes.figure)


def _options(sweep: Sweep, name: str) -> dict[str, Any]:
    """PED-ANOVA (https://arxiv.org/abs/2304.10255) takes milliseconds for a thousand trials, fANOVA's forest many seconds."""
    if name == FRONT:
        return {"target_names": list(sweep.metrics)}
    target = {"target": lambda trial: trial.values[0]} if len(sweep.metrics) > 1 else {}
    evaluator = {"evaluator": PedAnovaImportanceEvaluator()} if name == "param_importances" else {}
    return {"target_name": sweep.first, **target, **evaluator}


def _pruned(study: Study) -> tuple[list[int], list[float]]:
    trials = [
        trial for trial in study.get_trials(deepcopy=False, states=(TrialState.PRUNED,)) if trial.values is not None
    ]
    return [trial.number for trial in trials], [trial.values[0] for trial in trials]


def table(study: Study, space: Space, sweep: Sweep) -> str:
    """All trials as CSV, those that do not count too."""
    keys = list(space.dimensions)
    names = ["value"] if len(sweep.metrics) == 1 else [*sweep.metrics]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["trial", "state", "counts", *names, "folds" if sweep.folds else "epochs", "seconds", *keys, *ATTRIBUTES]
    )
    for trial in study.get_trials(deepcopy=False):
        point = space.decode(trial.params)
        attributes = (trial.user_attrs.get(name, "") for name in ATTRIBUTES)
        writer.writerow([*_row(trial, sweep), *(point.get(key, "") for key in keys), *attributes])
    return text.getvalue()


ATTRIBUTES = ("mlflow_run_id", "retry_of", "duplicate_of", "lost", "error")
"""of the ledger"""


def _row(trial: FrozenTrial, sweep: Sweep) -> Iterator[Any]:
    yield trial.number
    yield trial.state.name.lower()
    yield str(counts(trial)).lower()
    yield from trial.values or [""] * len(sweep.metrics)
    yield f"{(trial.last_step or 0) / sweep.reports:g}"
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

"""Searches for better hyperparameters: many training runs, in workers that stay, pruned by epoch.

Reads   params.yaml (sweep, and what train takes), data/packed: the train and val splits
Writes  the study in sweep.storage, a run for it in MLflow with a run for each trial below; params.yaml with --apply,
        DVC's queue with --queue

    python stages/sweep.py [--trials N] [--workers W] [--study NAME] [--storage URL] [-S key=value …] [--apply | --queue [K]]
                           [--launcher slurm [--jobs J] [--slurm OPTION=VALUE …]]

N is the study's total: the same command after a stop goes on with the study and adds what is missing. With a launcher, J
jobs of the cluster each run this command with W workers, on one study, while this process waits and shows how far they are.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.door import enter, root, say
from darkroom.errors import UserError
from darkroom.packed import PackedSet, open_packed
from darkroom.params import SWEPT_SECTIONS, Params, parse_yaml, read_params, with_values
from darkroom.params.sweep import STORAGE_VARIABLE

if TYPE_CHECKING:
    from darkroom.sweeping.confirming import Confirmed
    from darkroom.sweeping.ledger import Ledger
    from darkroom.sweeping.trial import Train

PARAMS = Path("params.yaml")
OPTIONS = ("trials", "workers", "study", "storage", "launcher", "jobs")
"""Keys of `sweep` that have an option of their own."""


def main() -> None:
    arguments = _parse()
    fixed = overrides(arguments.set_param)
    params = _chosen(arguments, fixed)
    from train import train_with

    _refuse_swept(fixed, params)
    _refuse_idle(arguments, params)
    packed = open_packed(Path("data/packed"), "train", "val")
    found = sweep(params, packed=packed, root=root(), train=train_with, command=job_command(fixed, params))
    shared = {key: value for key, value in fixed.items() if key.split(".")[0] in SWEPT_SECTIONS}
    if arguments.queue:
        _queue([shared | point for point in found["points"][: arguments.queue]])
    elif arguments.apply:
        _apply(shared | found["values"])
    else:
        command = ["python", "stages/sweep.py", *sys.argv[1:], "--apply"]
        say(f"next: {shlex.join(command)}   writes these values into params.yaml")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Searches for better hyperparameters: the section sweep of params.yaml."
    )
    parser.add_argument("--trials", type=int, metavar="N", help="trials in the study in all, also after a restart")
    parser.add_argument(
        "--workers", type=parse_yaml, metavar="W", help="processes that train side by side (in each job), or auto"
    )
    parser.add_argument("--study", metavar="NAME", help="name of the study; the same name goes on with it")
    parser.add_argument("--storage", metavar="URL", help="Optuna storage; without it optuna.db beside params.yaml")
    parser.add_argument("--launcher", choices=("local", "slurm"), help="train here, or in jobs of a cluster")
    parser.add_argument("--jobs", type=parse_yaml, metavar="J", help="jobs side by side, or auto")
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="a long option of sbatch for each job, such as partition=gpu, time=4:00:00, gpus=1 or exclusive",
    )
    parser.add_argument(
        "-S",
        "--set-param",
        action="append",
        default=[],
        metavar="key=value",
        help="a value for all trials, as in dvc exp run",
    )
    ending = parser.add_mutually_exclusive_group()
    ending.add_argument("--apply", action="store_true", help="write the best trial's values into params.yaml")
    ending.add_argument(
        "--queue", type=_count, nargs="?", const=3, metavar="K", help="queue the K best (3) as DVC experiments"
    )
    return parser.parse_args()


def _chosen(arguments: argparse.Namespace, fixed: Mapping[str, Any]) -> Params:
    """params.yaml with what was typed, and what the environment says of the storage. Raises UserError."""
    options = {f"sweep.{name}": value for name in OPTIONS if (value := getattr(arguments, name)) is not None}
    params = with_values(read_params(PARAMS), {**fixed, **options})
    storage = params.sweep.storage or os.environ.get(STORAGE_VARIABLE, "").strip()
    jobs = params.sweep.slurm | job_options(arguments.slurm)
    return with_values(params, {"sweep.storage": storage, "sweep.slurm": jobs})


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of experiments")
    return int(text)


def overrides(texts: list[str]) -> dict[str, Any]:
    """["train.lr=5e-4"] as {"train.lr": 0.0005}, in the grammar of `dvc exp run -S`. Raises UserError."""
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.removeprefix("params.yaml:").lstrip("+").partition("=")
        if not equals or key.startswith("~"):
            raise UserError(f"-S {text}: write key=value, such as -S train.lr=5e-4 (every key of params.yaml stays)")
        values[key] = parse_yaml(value, f"-S {text}")
    return values


def job_options(texts: list[str]) -> dict[str, bool | str]:
    """["time=4:00:00", "exclusive"] as {"time": "4:00:00", "exclusive": True}."""
    pairs = [text.removeprefix("--").partition("=") for text in texts]
    return {name: value if equals else True for name, equals, value in pairs}


def job_command(fixed: Mapping[str, Any], params: Params) -> list[str]:
    """What each job runs: this sweep on one machine. Where the study is kept stands in its environment, with a password."""
    from darkroom.params import as_yaml

    elsewhere = ("sweep.storage", "sweep.launcher", "sweep.jobs", "sweep.slurm")
    kept = {**fixed, **{f"sweep.{name}": getattr(params.sweep, name) for name in ("study", "trials", "workers")}}
    values = [("-S", f"{key}={as_yaml(value)}") for key, value in kept.items() if key not in elsewhere]
    script = [sys.executable, str(Path(__file__).resolve()), "--launcher", "local", "--storage", ""]
    return [*script, *(word for pair in values for word in pair)]


def _refuse_idle(arguments: argparse.Namespace, params: Params) -> None:
    for option in ("jobs", "slurm"):
        if params.sweep.launcher == "local" and getattr(arguments, option):
            raise UserError(f"--{option}: means nothing to --launcher local")


def _refuse_swept(fixed: Mapping[str, Any], params: Params) -> None:
    for key, value in fixed.items():
        if key in params.sweep.space:
            raise UserError(f"-S {key}={value}: the key is in sweep.space; take it out there to hold it fixed")
        if key.split(".")[0] not in (*SWEPT_SECTIONS, "sweep", "tracking"):
            raise UserError(
                f"-S {key}={value}: means nothing to a sweep, which trains on data/packed and tests nothing"
            )


def sweep(
    params: Params, *, packed: PackedSet, root: Path, train: Train, command: Sequence[str] = ()
) -> dict[str, Any]:
    """Brings the study to `sweep.trials` and gives the best trial: its number, value, run and values of the swept keys.

    `points` are the values of all complete trials, the best first.
    `train` trains one trial; workers import it, so it is a function of a module. Jobs of a cluster run `command` instead,
    the same sweep with the launcher local. A finished study is read and not added to.
    Raises UserError where the study cannot go on, or where no trial was completed.
    """
    from darkroom.sweeping.checking import check_packed, check_space
    from darkroom.sweeping.ledger import Ledger
    from darkroom.sweeping.search import Search
    from darkroom.sweeping.space import make_space
    from darkroom.sweeping.study import is_shared, make_terms, opened, storage_url

    if params.sweep.launcher == "slurm":
        from darkroom.sweeping.launching import check_cluster

        check_cluster(params, root)
    space = make_space(params.sweep.space)
    check_packed(params, packed.meta)
    check_space(params, space)
    url = storage_url(params, root)
    with opened(url, params.sweep.study, make_terms(params, packed.meta.sha256), root) as (study, terms):
        ledger = Ledger(study, space, params.sweep)
        ledger.recover(alone=not is_shared(url))
        search = Search(ledger, terms, params, packed, root, train)
        where = ""
        if not search.is_trained() and params.sweep.launcher == "slurm":
            from darkroom.sweeping.launching import launch

            launch(ledger, params, root=root, command=command)
        elif not search.is_done():
            where = search.run()
        found = _told(ledger, search.ranking(), terms.otherwise)
        say(where or f"run {found['run_id']}")
    return found


def _told(ledger: Ledger, ranking: list[Confirmed], otherwise: Mapping[str, Any]) -> dict[str, Any]:
    """The winner, said and given back."""
    from darkroom.sweeping.confirming import told
    from darkroom.sweeping.standing import ranked, scored, summary, value_of

    if ledger.is_open():
        say(f"sweep.timeout: {ledger.sweep.timeout:g} seconds are over; the same command goes on with the study")
    elif ledger.num_done() < ledger.sweep.trials:
        say("every point of sweep.space was tried: there are no more")
    best = ranking[0].trial
    others = {each.number: each for each in [*(each.trial for each in ranking), *ranked(ledger.study, ledger.sweep)]}
    points = [{**otherwise, **ledger.space.decode(trial.params)} for trial in others.values()]
    values = points[0]
    say("\n".join(["", summary(ledger.study), *told(ranking, ledger.sweep.first), *_front(ledger)]))
    say(f"best: trial {best.number}, {scored(ledger.sweep, best)}")
    for key, value in values.items():
        say(f"  {key}: {value}")
    run_id = best.user_attrs.get("mlflow_run_id")
    found = {"trial": best.number, "value": value_of(best), "mean": ranking[0].mean, "run_id": run_id, "values": values}
    return found | {"points": points}


def _front(ledger: Ledger) -> Iterator[str]:
    """Of several metrics: the trials among which the rule of params.yaml chooses, and the rule."""
    from darkroom.sweeping.standing import front, scored

    first, *others = ledger.sweep.metrics
    if others:
        yield f"no trial is better in all of {', '.join(ledger.sweep.metrics)} than these:"
        yield from (
            f"  trial {trial.number}: {scored(ledger.sweep, trial)}" for trial in front(ledger.study, ledger.sweep)
        )
        yield f"sweep.tolerance: {ledger.sweep.tolerance:g} takes the best {', '.join(others)} so close to the best {first}"


def _queue(points: list[dict[str, Any]]) -> None:
    from darkroom.sweeping.queueing import queue

    for name, point in zip(queue(points), points, strict=True):
        say(f"queued {name}: {', '.join(f'{key}={value}' for key, value in point.items())}")
    say("next: dvc queue start")


def _apply(winner: Mapping[str, Any]) -> None:
    from darkroom.sweeping.applying import apply

    difference = apply(PARAMS, winner)
    say(difference or f"{PARAMS} holds these values already")
    say("next: dvc repro")


if __name__ == "__main__":
    enter(main)

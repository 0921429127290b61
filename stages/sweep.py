"""Searches for better hyperparameters: many training runs, in workers that stay, pruned by epoch.

Reads   params.yaml (sweep, and what train takes), data/packed: the train and val splits
Writes  the study in sweep.storage, a run for it in MLflow with a run for each trial below; params.yaml with --apply

    python stages/sweep.py [--trials N] [--workers W] [--study NAME] [--storage URL] [-S key=value …] [--apply]

N is the study's total: the same command after a stop goes on with the study and adds what is missing.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.door import enter, root, say
from darkroom.errors import UserError
from darkroom.packed import PackedSet, open_packed
from darkroom.params import SWEPT_SECTIONS, Params, parse_yaml, read_params, with_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from darkroom.sweeping.ledger import Ledger
    from darkroom.sweeping.trial import Train
    from darkroom.tracking.store import Store
    from darkroom.training import EpochRecord

PARAMS = Path("params.yaml")
OPTIONS = ("trials", "workers", "study", "storage")
"""Keys of `sweep` that have an option of their own."""


def main() -> None:
    arguments = _parse()
    fixed = overrides(arguments.set_param)
    options = {f"sweep.{name}": value for name in OPTIONS if (value := getattr(arguments, name)) is not None}
    params = with_values(read_params(PARAMS), fixed | options)
    _refuse_swept(fixed, params)
    found = sweep(params, packed=open_packed(Path("data/packed"), "train", "val"), root=root(), train=train_trial)
    winner = {key: value for key, value in fixed.items() if key.split(".")[0] in SWEPT_SECTIONS} | found["values"]
    if arguments.apply:
        _apply(winner)
    else:
        command = ["python", "stages/sweep.py", *sys.argv[1:], "--apply"]
        say(f"next: {shlex.join(command)}   writes these values into params.yaml")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Searches for better hyperparameters: the section sweep of params.yaml."
    )
    parser.add_argument("--trials", type=int, metavar="N", help="trials in the study in all, also after a restart")
    parser.add_argument("--workers", type=parse_yaml, metavar="W", help="processes that train side by side, or auto")
    parser.add_argument("--study", metavar="NAME", help="name of the study; the same name goes on with it")
    parser.add_argument("--storage", metavar="URL", help="Optuna storage; without it optuna.db beside params.yaml")
    parser.add_argument(
        "-S",
        "--set-param",
        action="append",
        default=[],
        metavar="key=value",
        help="a value for all trials, as in dvc exp run",
    )
    parser.add_argument("--apply", action="store_true", help="write the best trial's values into params.yaml")
    return parser.parse_args()


def overrides(texts: list[str]) -> dict[str, Any]:
    """["train.lr=5e-4"] as {"train.lr": 0.0005}, in the grammar of `dvc exp run -S`. Raises UserError."""
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.removeprefix("params.yaml:").lstrip("+").partition("=")
        if not equals or key.startswith("~"):
            raise UserError(f"-S {text}: write key=value, such as -S train.lr=5e-4 (every key of params.yaml stays)")
        values[key] = parse_yaml(value, f"-S {text}")
    return values


def _refuse_swept(fixed: Mapping[str, Any], params: Params) -> None:
    for key, value in fixed.items():
        if key in params.sweep.space:
            raise UserError(f"-S {key}={value}: the key is in sweep.space; take it out there to hold it fixed")
        if key.split(".")[0] not in (*SWEPT_SECTIONS, "sweep", "tracking"):
            raise UserError(
                f"-S {key}={value}: means nothing to a sweep, which trains on data/packed and tests nothing"
            )


def sweep(params: Params, *, packed: PackedSet, root: Path, train: Train) -> dict[str, Any]:
    """Brings the study to `sweep.trials` and gives the best trial: its number, value, run and values of the swept keys.

    `train` trains one trial; workers import it, so it is a function of a module. A finished study is read and not added to.
    Raises UserError where the study cannot go on, or where no trial was completed.
    """
    from darkroom.sweeping.checking import check_packed, check_space
    from darkroom.sweeping.ledger import Ledger
    from darkroom.sweeping.space import make_space
    from darkroom.sweeping.study import make_terms, opened, storage_url

    space = make_space(params.sweep.space)
    check_packed(params, packed.meta)
    check_space(params, space)
    url = storage_url(params, root)
    with opened(url, params.sweep.study, make_terms(params, packed.meta.sha256), root) as (study, terms):
        ledger = Ledger(study, space, params.sweep)
        ledger.recover()
        where = ""
        if ledger.is_open():
            from darkroom.sweeping.search import search

            where = search(ledger, terms, params, packed=packed, root=root, train=train)
        if ledger.num_done() < params.sweep.trials:
            say("every point of sweep.space was tried: there are no more")
        found = _told(ledger, terms.otherwise)
        say(where or f"run {found['run_id']}")
    return found


def _told(ledger: Ledger, otherwise: Mapping[str, Any]) -> dict[str, Any]:
    """The winner, said and given back."""
    from darkroom.sweeping.standing import summary, winner

    best = winner(ledger.study, ledger.sweep.metric)
    values = {**otherwise, **ledger.space.decode(best.params)}
    say(f"\n{summary(ledger.study)}; best: trial {best.number}, {ledger.sweep.metric} {best.value:.4f}")
    for key, value in values.items():
        say(f"  {key}: {value}")
    return {"trial": best.number, "value": best.value, "run_id": best.user_attrs.get("mlflow_run_id"), "values": values}


def train_trial(
    params: Params,
    *,
    packed: PackedSet,
    store: Store,
    out: Path,
    checkpoints: Path,
    parent: str,
    name: str,
    on_epoch: Callable[[EpochRecord], None],
) -> dict[str, Any]:
    """The train stage, for one trial."""
    from train import starting_model, train

    return train(
        packed,
        augment=params.augment,
        model=params.model,
        train=params.train,
        store=store,
        out=out,
        checkpoints=checkpoints,
        init=starting_model(params.model, store),
        parent=parent,
        name=name,
        on_epoch=on_epoch,
    )


def _apply(winner: Mapping[str, Any]) -> None:
    from darkroom.sweeping.applying import apply

    difference = apply(PARAMS, winner)
    say(difference or f"{PARAMS} holds these values already")
    say("next: dvc repro")


if __name__ == "__main__":
    enter(main)

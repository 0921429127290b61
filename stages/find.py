"""Finds something out before a long training: a learning rate, the largest micro-batch, whether the network learns at all,
which labels are likely wrong.

    python stages/find.py lr [--steps 200] [--apply] [-S key=value …]
    python stages/find.py batch [--apply] [-S key=value …]
    python stages/find.py overfit [-S key=value …]
    python stages/find.py labels [--folds 5] [-S key=value …]

Run by hand. Changes params.yaml with --apply alone: train.lr, or train.accumulate.

Reads   params.yaml (augment, model, train), data/packed: the train and val splits
Writes  reports/find/lr.png and lr.csv, or labels.png and labels.csv, and a run in MLflow that holds them; params.yaml
        with --apply
Keys    augment, model, train, tracking
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.door import enter, root, say
from darkroom.params import Params, read_params, with_values

if TYPE_CHECKING:
    from darkroom.finding.labels import Suspect
    from darkroom.finding.lr import Curve
    from darkroom.fitting import Plan
    from darkroom.tracking.store import Store

PARAMS = Path("params.yaml")
OUT = Path("reports/find")
SHOWN = 10
"""likely label errors that are named on the terminal"""


def main() -> None:
    options = _options()
    from sweep import overrides

    params = with_values(read_params(PARAMS), overrides(options.set_param))
    plan, store = _plan(params)
    found = find(options.what, plan, store, steps=options.steps, folds=options.folds, out=OUT)
    if not found:
        return
    if options.apply:
        from darkroom.sweeping.applying import apply

        say(apply(PARAMS, found) or "params.yaml says so already")
    else:
        say(
            f"next: python stages/find.py {options.what} --apply writes it into params.yaml, or -S with dvc exp run tries it"
        )


def find(what: str, plan: Plan, store: Store, *, steps: int, folds: int, out: Path) -> dict[str, Any]:
    """Finds `what` (lr, batch, overfit or labels) and says it; the values of params.yaml that it suggests, if any.

    Raises UserError where nothing can be found, or the network does not learn.
    """
    if what == "lr":
        return _say_lr(find_lr(plan, store, steps=steps, out=out), out)
    if what == "labels":
        return _say_labels(find_labels(plan, store, folds=folds, out=out), out)
    return _find_batch(plan) if what == "batch" else _overfit(plan)


def find_lr(plan: Plan, store: Store, *, steps: int, out: Path) -> Curve:
    """The range test, drawn and recorded: lr.png and lr.csv below `out`, and a run of its own."""
    from darkroom.finding.lr import draw, range_test

    with store.start("find", plan.values(), name="lr range test") as run:
        curve = range_test(plan, steps)
        draw(curve, out)
        for path in (out / "lr.png", out / "lr.csv"):
            run.artifact(path, "find")
        run.metrics({"suggested_lr": curve.suggestion})
    return curve


def _say_lr(curve: Curve, out: Path) -> dict[str, Any]:
    found = float(f"{curve.suggestion:.2g}")
    say(f"train.lr: {found:g} is where the loss falls fastest in {len(curve.lr)} steps; the curve: {out}/lr.png")
    return {"train.lr": found}


def find_labels(plan: Plan, store: Store, *, folds: int, out: Path) -> list[Suspect]:
    """Likely label errors among the training pictures, drawn and recorded: labels.csv, labels.png and a run of its own."""
    from darkroom.finding.labels import likely_errors, write

    with store.start("find", plan.values(), name="label errors") as run:
        sources = plan.packed.sources("train")
        suspects = likely_errors(
            plan, folds, sources=sources, tell=lambda fold: say(f"  fold {fold} of {folds} is judged")
        )
        write(suspects, plan.packed.split("train").images, out)
        for path in out.glob("labels.*"):
            run.artifact(path, "find")
        run.metrics({"num_label_errors": len(suspects)})
    return suspects


def _say_labels(suspects: list[Suspect], out: Path) -> dict[str, Any]:
    for each in suspects[:SHOWN]:
        say(f"  {each.source}: is {each.label}, seems {each.suggested} ({each.suggested_probability:.1%})")
    say(f"{len(suspects)} labels are likely wrong; the worst in {out}/labels.png, all in labels.csv" if suspects
        else "no label seems wrong")  # fmt: skip
    return {}


def _find_batch(plan: Plan) -> dict[str, Any]:
    from darkroom.finding.batch import largest_micro_batch

    fit = largest_micro_batch(plan)
    accumulate = fit.accumulate(plan.train.batch_size)
    say(f"{fit.pictures} pictures fit in a micro-batch ({fit.how})")
    say(f"train.batch_size: {plan.train.batch_size} fits with train.accumulate: {accumulate}")
    return {"train.accumulate": accumulate} if accumulate != plan.train.accumulate else {}


def _overfit(plan: Plan) -> dict[str, Any]:
    from darkroom.finding.overfit import overfit

    learned = overfit(plan)
    say(
        f"ok: {learned.pictures} pictures are learned by heart in {learned.steps} steps "
        f"(loss {learned.first:.3f} to {learned.last:.3f})"
    )
    return {}


def _plan(params: Params) -> tuple[Plan, Store]:
    from darkroom.packed import open_packed
    from darkroom.tracking import open_store
    from train import plan_with

    packed = open_packed(Path("data/packed"), "train", "val")
    store = open_store(params.tracking, root())
    return plan_with(params, packed=packed, store=store), store


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Finds something out before a long training.")
    parser.add_argument("what", choices=["lr", "batch", "overfit", "labels"])
    parser.add_argument("--steps", type=int, default=200, help="of the learning-rate range test (default %(default)s)")
    parser.add_argument(
        "--folds",
        type=int,
        default=5,
        choices=range(2, 21),
        metavar="2..20",
        help="trainings that judge labels (default %(default)s)",
    )
    parser.add_argument("--apply", action="store_true", help="write what was found into params.yaml")
    parser.add_argument("-S", "--set-param", action="append", default=[], metavar="key=value", help="as in dvc exp run")
    return parser.parse_args()


if __name__ == "__main__":
    enter(main)

"""Makes a model champion if it passes every gate of the section `promote`, or takes the step back.

Run by hand: python stages/promote.py [--run ID | --experiment NAME] [--seeds N] [--dry-run] [--rollback] [--history]

Reads   models/model.pt, export, metrics (or the run ID's files), data/packed
Writes  a version of promote.name in MLflow's registry, its aliases champion and previous
Keys    promote, tracking
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.door import enter, root, say
from darkroom.errors import UserError
from darkroom.params import read_params

if TYPE_CHECKING:
    from darkroom.packed import PackedSet
    from darkroom.params import Promote
    from darkroom.promoting.candidate import Candidate
    from darkroom.promoting.facts import Facts
    from darkroom.promoting.repeats import Repeats
    from darkroom.tracking.registry import Registry
    from darkroom.tracking.store import Store


def main() -> None:
    options = _options()
    params = read_params()
    from darkroom.packed import SPLITS, open_packed
    from darkroom.promoting.candidate import of_run, of_workspace
    from darkroom.promoting.repeats import Repeats
    from darkroom.tracking import open_store
    from darkroom.tracking.registry import Registry
    from darkroom.tracking.tracing import find_run
    from train import plan_with, train_with

    name = params.promote.name
    if options.rollback:
        _rollback(Registry(open_store(params.tracking, root()), name), dry_run=options.dry_run)
        return
    if options.history:
        _tell([_told(json.loads(text)) for text in Registry(open_store(params.tracking, root()), name).decisions()])
        return
    packed = open_packed(Path("data/packed"), *(SPLITS if options.seeds else ("test",)))
    store = open_store(params.tracking, root())
    run_id = find_run(store, options.experiment).info.run_id if options.experiment else options.run
    candidate = of_run(store, run_id) if run_id else of_workspace(Path())
    repeats = Repeats(store, packed, params, train_with, plan_with, options.seeds)
    done = promote(packed, candidate, promote=params.promote, store=store, repeats=repeats, dry_run=options.dry_run)
    if done["version"] is not None:
        address, model = shlex.quote(store.address.shown), shlex.quote(f"models:/{name}@champion")
        say(f"next: python stages/predict.py PICTURE --model {model}")
        say(f"or:   MLFLOW_TRACKING_URI={address} mlflow models serve -m {model} --env-manager local")


def promote(
    packed: PackedSet,
    candidate: Candidate,
    *,
    promote: Promote,
    store: Store,
    repeats: Repeats | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Judges `candidate` on the test split of `packed` and, if all gates pass, makes it champion.

    `repeats` finds, or trains, the same settings with other seeds, for the gate `better`.
    Returns the decision as it is recorded; `version` is None with `dry_run`, which changes nothing.
    Raises UserError with the gates that are shut; the alias is then untouched and no version was made.
    """
    from darkroom.promoting.candidate import check_claims
    from darkroom.promoting.gates import judge
    from darkroom.promoting.gathering import gather
    from darkroom.promoting.verdicts import as_values, table
    from darkroom.tracking.registry import Registry

    registry = Registry(store, promote.name)
    with _alone(store):
        if not dry_run:
            _tell(registry.tidy())
        check_claims(store, candidate)
        facts = gather(packed, candidate, registry)
        if repeats is not None:
            facts = repeats.added(facts, candidate, registry, promote)
        verdicts = judge(facts, promote)
        say(
            f"{candidate.where}, model {facts.candidate.model_sha256[:12]}, on {len(packed.split('test'))} test pictures:"
        )
        say(table(verdicts))
        decision = _decision(candidate, facts, promote) | {"gates": as_values(verdicts)}
        shut = ", ".join(verdict.gate for verdict in verdicts if not verdict.passed)
        if shut:
            if not dry_run:
                registry.record({"result": f"refused: {shut}", **decision}, candidate.run_ids["train"])
            raise UserError(f"not promoted, because of {shut}: the champion stays as it is")
        if dry_run:
            say(f"would become champion of {promote.name}; --dry-run changes nothing")
            return {"version": None, **decision}
        return _crown(candidate, facts, registry, decision)


def _rollback(registry: Registry, *, dry_run: bool = False) -> dict[str, Any]:
    """Gives the alias champion back to the version that had it before; returns the decision as it is recorded.

    Raises UserError where there is none, or where its file is not the one that was promoted.
    """
    from darkroom.tracking.fetching import fetch_model
    from darkroom.tracking.versions import called

    with _alone(registry.store):
        if not dry_run:
            _tell(registry.tidy())
        champion, earlier = registry.champion_and_before()
        fetch_model(registry.store, f"models:/{registry.name}/{earlier.version}", "onnx")  # it is whole
        if dry_run:
            say(f"would give champion of {registry.name} back to version {earlier.version}; --dry-run changes nothing")
            return {"version": None}
        was = called(champion) or "nobody: the alias was removed"
        decision = registry.announce(earlier, {"result": f"rolled back from {was}"})
        registry.crown(earlier, over=called(champion))
        registry.settle(earlier, decision)
    say(f"champion of {registry.name} is version {earlier.version} again (was {was})")
    return decision


@contextmanager
def _alone(store: Store) -> Iterator[None]:
    """Two promotions on one machine take turns: each is judged against the champion that the other left."""
    from darkroom.files import lock

    with lock(store.root / "mlflow.db.promote.lock", waiting=lambda holder: say(f"{holder} promotes: waiting for it")):
        yield


def _told(decision: dict[str, Any]) -> str:
    """A decision in a line: when, who, what, with which number."""
    metric, own = decision.get("metric"), decision.get("candidate")
    scored = f" ({metric} {own[metric]:.4f})" if metric and own and own.get(metric) is not None else ""
    return f"{decision['when']}  {decision['who']}  {decision['result']}{scored}"


def _tell(lines: list[str]) -> None:
    for line in lines:
        say(line)


def _decision(candidate: Candidate, facts: Facts, promote: Promote) -> dict[str, Any]:
    return {
        "metric": promote.metric,
        "candidate": facts.candidate.scores,
        "champion": facts.champion.scores if facts.champion else None,
        "against": facts.champion.name if facts.champion else None,
        "model_sha256": facts.candidate.model_sha256,
        "data_sha256": facts.test.sha256,
        "run_id": candidate.run_ids["train"],
    }


def _crown(candidate: Candidate, facts: Facts, registry: Registry, decision: dict[str, Any]) -> dict[str, Any]:
    from darkroom.tracking.fetching import Kind
    from darkroom.tracking.packaging import ModelFiles

    beside: dict[Kind, Path] = {"checkpoint": candidate.checkpoint, **candidate.documents}
    if not candidate.documents:
        say("there is no report of this model to go with the version: dvc repro report makes it")
    if candidate.torchscript is not None:
        beside["torchscript"] = candidate.torchscript
    meta = facts.test
    files = ModelFiles(candidate.onnx, (meta.channels, meta.image_size, meta.image_size), len(meta.classes), beside)
    version = registry.register(files, candidate.run_ids["train"], _tags(candidate, facts, registry.store))
    result = f"promoted as {registry.name} version {version.version}"
    done = registry.announce(version, {"result": result, **decision})
    registry.crown(version, over=facts.champion.name if facts.champion else None)
    registry.settle(version, done)
    was = f" (was {facts.champion.name})" if facts.champion else ""
    say(f"version {version.version} of {registry.name} is champion{was}")
    return done


def _tags(candidate: Candidate, facts: Facts, store: Store) -> dict[str, str]:
    """A version's lineage: which runs, weights, pictures and code, and what it scored."""
    run = store.find(candidate.run_ids["train"])
    of_run = {key: run.data.tags[key] for key in ("git.commit", "git.dirty", "dvc.exp") if run and key in run.data.tags}
    scored = {f"test.{metric}": f"{value:.6g}" for metric, value in facts.candidate.scores.items()}
    runs = {f"run.{stage}": run_id for stage, run_id in candidate.run_ids.items()}
    return {"model.sha256": facts.candidate.model_sha256, "data.sha256": facts.test.sha256, **of_run, **scored, **runs}


def _seeds(text: str) -> int:
    from darkroom.promoting.seeds import FEWEST

    if not text.isdigit() or int(text) < FEWEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seeds: {FEWEST} or more")
    return int(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Makes a model champion if it passes every gate of params.yaml's promote."
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--run", metavar="ID", help="the model of this MLflow run; without it the workspace's")
    what.add_argument("--experiment", metavar="NAME", help="the model of this DVC experiment")
    parser.add_argument(
        "--seeds",
        type=_seeds,
        metavar="N",
        default=0,
        help="train the settings, and the champion's, with N seeds in all",
    )
    what.add_argument("--history", action="store_true", help="print every decision, the oldest first")
    what.add_argument("--rollback", action="store_true", help="give champion back to the version before it")
    parser.add_argument("--dry-run", action="store_true", help="decide and show, change nothing")
    return parser.parse_args()


if __name__ == "__main__":
    enter(main)

"""Makes a model champion if it passes every gate of the section `promote`, or takes the step back.

Run by hand: python stages/promote.py [--run ID | --experiment NAME] [--dry-run] [--rollback] [--history]

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
    from darkroom.promoting.facts import Facts, Scored
    from darkroom.tracking.registry import Registry
    from darkroom.tracking.store import Store


def main() -> None:
    options = _options()
    params = read_params()
    from darkroom.packed import open_packed
    from darkroom.promoting.candidate import of_run, of_workspace
    from darkroom.tracking import open_store
    from darkroom.tracking.registry import Registry
    from darkroom.tracking.tracing import find_run

    name = params.promote.name
    if options.rollback:
        _rollback(Registry(open_store(params.tracking, root()), name), dry_run=options.dry_run)
        return
    if options.history:
        _tell([_told(json.loads(text)) for text in Registry(open_store(params.tracking, root()), name).decisions()])
        return
    packed = open_packed(Path("data/packed"), "test")
    store = open_store(params.tracking, root())
    run_id = find_run(store, options.experiment).info.run_id if options.experiment else options.run
    candidate = of_run(store, run_id) if run_id else of_workspace(Path())
    done = promote(packed, candidate, promote=params.promote, store=store, dry_run=options.dry_run)
    if done["version"] is not None:
        address = shlex.quote(store.address.shown)
        say(f"next: python stages/predict.py PICTURE --model models:/{name}@champion")
        say(f"or:   MLFLOW_TRACKING_URI={address} mlflow models serve -m models:/{name}@champion --env-manager local")


def promote(
    packed: PackedSet, candidate: Candidate, *, promote: Promote, store: Store, dry_run: bool = False
) -> dict[str, Any]:
    """Judges `candidate` on the test split of `packed` and, if all gates pass, makes it champion.

    Returns the decision as it is recorded; `version` is None with `dry_run`, which changes nothing.
    Raises UserError with the gates that are shut; the alias is then untouched and no version was made.
    """
    from darkroom.promoting.gates import as_values, judge, table
    from darkroom.tracking.registry import Registry

    registry = Registry(store, promote.name)
    with _alone(store):
        if not dry_run:
            _tell(registry.tidy())
        facts = _gather(packed, candidate, registry)
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

    Raises UserError where there is none.
    """
    with _alone(registry.store):
        if not dry_run:
            _tell(registry.tidy())
        champion, earlier = registry.champion_and_before()
        if dry_run:
            say(f"would give champion of {registry.name} back to version {earlier.version}; --dry-run changes nothing")
            return {"version": None}
        registry.crown(earlier)
        decision = {"result": f"rolled back from version {champion.version}", "version": str(earlier.version)}
        registry.record(decision, None)
    say(f"champion of {registry.name} is version {earlier.version} again (was version {champion.version})")
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


def _gather(packed: PackedSet, candidate: Candidate, registry: Registry) -> Facts:
    from darkroom.promoting.candidate import stage_records
    from darkroom.promoting.facts import Facts
    from darkroom.promoting.scoring import score

    own = score("the candidate", candidate.onnx, packed)
    return Facts(
        stages=stage_records(registry.store, candidate),
        hashes=candidate.hashes | {"export/model.onnx": own.model_sha256},
        candidate=own,
        champion=_champion(packed, registry),
        test=packed.meta,
        labels=tuple(packed.split("test").labels.tolist()),
        latency_ms=candidate.latency_ms,
    )


def _champion(packed: PackedSet, registry: Registry) -> Scored | None:
    """The champion scored again, from its registered file: never two numbers from two test sets."""
    from darkroom.promoting.facts import Scored
    from darkroom.promoting.scoring import score
    from darkroom.tracking.fetching import fetch_model
    from darkroom.tracking.registry import CHAMPION

    version = registry.holder(CHAMPION)
    if version is None:
        return None
    name = f"version {version.version}"
    try:
        return score(
            name, fetch_model(registry.store, f"models:/{registry.name}/{version.version}", "onnx").path, packed
        )
    except UserError as error:
        return Scored(name, [], "", "", problem=f"{name} cannot be compared with: {error}")


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

    beside: dict[Kind, Path] = {"checkpoint": candidate.checkpoint}
    if candidate.torchscript is not None:
        beside["torchscript"] = candidate.torchscript
    meta = facts.test
    files = ModelFiles(candidate.onnx, (meta.channels, meta.image_size, meta.image_size), len(meta.classes), beside)
    version = registry.register(files, candidate.run_ids["train"], _tags(candidate, facts, registry.store))
    registry.crown(version)
    was = f" (was {facts.champion.name})" if facts.champion else ""
    done = {
        "result": f"promoted as {registry.name} version {version.version}",
        "version": str(version.version),
        **decision,
    }
    registry.record(done, candidate.run_ids["train"])
    say(f"version {version.version} of {registry.name} is champion{was}")
    return done


def _tags(candidate: Candidate, facts: Facts, store: Store) -> dict[str, str]:
    """A version's lineage: which runs, weights, pictures and code, and what it scored."""
    run = store.find(candidate.run_ids["train"])
    of_run = {key: run.data.tags[key] for key in ("git.commit", "git.dirty", "dvc.exp") if run and key in run.data.tags}
    scored = {f"test.{metric}": f"{value:.6g}" for metric, value in facts.candidate.scores.items()}
    runs = {f"run.{stage}": run_id for stage, run_id in candidate.run_ids.items()}
    return {"model.sha256": facts.candidate.model_sha256, "data.sha256": facts.test.sha256, **of_run, **scored, **runs}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Makes a model champion if it passes every gate of params.yaml's promote."
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--run", metavar="ID", help="the model of this MLflow run; without it the workspace's")
    what.add_argument("--experiment", metavar="NAME", help="the model of this DVC experiment")
    what.add_argument("--history", action="store_true", help="print every decision, the oldest first")
    what.add_argument("--rollback", action="store_true", help="give champion back to the version before it")
    parser.add_argument("--dry-run", action="store_true", help="decide and show, change nothing")
    return parser.parse_args()


if __name__ == "__main__":
    enter(main)

"""A model's settings trained again with other seeds: runs below the run that trained the model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.door import say
from darkroom.errors import UserError
from darkroom.params import SWEPT_SECTIONS, Params, Promote, flatten, parse_yaml, with_values
from darkroom.promoting.facts import Facts, Repeated
from darkroom.promoting.gates import BETTER, judge
from darkroom.promoting.scoring import answers_of_checkpoint

if TYPE_CHECKING:
    from darkroom.fitting import Plan
    from darkroom.packed import PackedSet
    from darkroom.promoting.candidate import Candidate
    from darkroom.tracking.registry import Registry
    from darkroom.tracking.store import Store

SEED = "train.seed"


@dataclass(frozen=True)
class Repeats:
    """Where repeated trainings are found and scored, and how they are made."""

    store: Store
    packed: PackedSet
    params: Params
    """of the working folder, for what no training takes"""
    train: Callable[..., dict[str, Any]]
    """the train stage by parameters"""
    plan: Callable[..., Plan]
    """the training that it would do"""
    wanted: int = 0
    """seeds in all, the model's own among them; 0: those that are recorded, and none trained"""

    def added(self, facts: Facts, candidate: Candidate, registry: Registry, promote: Promote) -> Facts:
        """`facts` with the networks of other seeds. None is trained for a candidate that another gate refuses."""
        from darkroom.tracking.versions import CHAMPION

        shut = {verdict.gate for verdict in judge(facts, promote) if not verdict.passed} - {BETTER}
        if self.wanted and shut:
            say(f"no seeds are trained: {', '.join(sorted(shut))} refused already")
        train = bool(self.wanted) and not shut
        version = registry.holder(CHAMPION)
        return replace(
            facts,
            repeated=self._of("the candidate", candidate.run_ids["train"], train=train),
            champion_repeated=self._of(f"version {version.version}", version.run_id, train=train)
            if version
            else Repeated(),
        )

    def _of(self, name: str, run_id: str | None, *, train: bool) -> Repeated:
        if not run_id:
            return Repeated(problem=f"{name} names no run to train other seeds by")
        problem = ""
        if train:
            try:
                self._complete(name, run_id)
            except UserError as error:
                problem = f"{name}: {error}"
        runs = self._recorded(run_id)
        return Repeated(
            tuple(answers_of_checkpoint(self.store, runs[seed], self.packed) for seed in sorted(runs)), problem
        )

    def _recorded(self, run_id: str) -> dict[int, str]:
        """Run ids of the finished repeats, by seed."""
        found = self.store.children(run_id)
        return {int(run.data.params[SEED]): run.info.run_id for run in found if run.info.status == "FINISHED"}

    def _complete(self, name: str, run_id: str) -> None:
        """Trains the seeds that are missing. Raises UserError where they would not be of the same training."""
        recorded = self._recorded(run_id)
        if 1 + len(recorded) >= self.wanted:
            return
        params = self._settings(run_id)
        seeds = range(params.train.seed + 1, params.train.seed + self.wanted)
        for seed in seeds:
            if seed in recorded:
                continue
            say(f"{name}: training with seed {seed}, the last is {seeds[-1]}")
            with tempfile.TemporaryDirectory(prefix="darkroom-seed-") as out:
                self.train(
                    with_values(params, {SEED: seed}),
                    packed=self.packed,
                    store=self.store,
                    out=Path(out),
                    checkpoints=self.store.root / ".checkpoints",
                    parent=run_id,
                    name=f"seed {seed}",
                )

    def _settings(self, run_id: str) -> Params:
        """What the run was trained with, by its own params.yaml. Raises UserError where that would train another model."""
        from darkroom.tracking.fetching import fetch_file

        run = self.store.find(run_id)
        path = fetch_file(self.store, run_id, "params.yaml") if run else None
        if run is None or path is None:
            raise UserError(f"run {run_id} has no params.yaml (any more) to train other seeds by")
        values = flatten(parse_yaml(path.read_text(encoding="utf-8")))
        trained = {key: value for key, value in values.items() if key.split(".")[0] in SWEPT_SECTIONS}
        params = with_values(self.params, trained)
        plan = self.plan(params, packed=self.packed, store=self.store)
        if plan.fingerprint() != run.data.tags.get("darkroom.fingerprint"):
            commit = run.data.tags.get("git.commit", "its commit")
            raise UserError(
                f"other code, pictures or processor than run {run_id} had would train the other seeds: type the same in "
                f"a checkout of {commit}, or set promote.better: 0"
            )
        return params

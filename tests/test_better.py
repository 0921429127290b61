"""The gate `better`: settings beside settings, over seeds, and the seeds that promote.py --seeds trains."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score, log_loss, top_k_accuracy_score

from champions import packed_set
from darkroom.evaluation.predictions import Predictions
from darkroom.evaluation.scores import log_softmax
from darkroom.params import Params
from darkroom.promoting.facts import Repeated
from darkroom.promoting.gates import judge
from darkroom.promoting.repeats import Repeats
from darkroom.promoting.seeds import Answers, beside
from darkroom.promoting.verdicts import Verdict
from darkroom.tracking.store import Store
from pipelines import REPOSITORY, Pipeline, all_runs, restore
from test_gates import FACTS, gate, network

LABELS = np.arange(1000) % 10


def settings(rng: np.random.Generator, accuracy: float, *, seed_spread: float = 0.004, seeds: int = 3) -> list[Answers]:
    """Networks of one setting: each seed is a little better or worse, and right on other pictures."""
    difficulty = np.random.default_rng(0).normal(size=len(LABELS))  # some pictures are hard for all
    found = []
    for _ in range(seeds):
        own = accuracy + rng.normal(0, seed_spread)
        said = difficulty + rng.normal(0, 0.5, size=len(LABELS))
        right = said <= np.quantile(said, own)
        found.append(network(np.where(right, LABELS, (LABELS + 1) % 10), LABELS))
    return found


def test_of_equal_settings_few_pass_and_of_better_ones_most():
    rng = np.random.default_rng(1)
    equal = [beside(settings(rng, 0.9), settings(rng, 0.9), LABELS, "accuracy").p for _ in range(100)]
    assert sum(p < 0.05 for p in equal) <= 10
    assert 0.3 < float(np.median(equal)) < 0.7, "nor is one side favoured"
    ahead = [beside(settings(rng, 0.925), settings(rng, 0.9), LABELS, "accuracy") for _ in range(40)]
    assert sum(found.p < 0.05 for found in ahead) >= 34
    assert np.mean([found.gain for found in ahead]) == pytest.approx(0.025, abs=0.003)


def test_three_lucky_seeds_are_not_enough_where_seeds_spread_widely():
    """The same gain of the means: no luck where seeds agree, luck where they do not."""

    def side(*right: int) -> list[Answers]:
        return [network(np.where(np.arange(1000) < number, LABELS, (LABELS + 1) % 10), LABELS) for number in right]

    assert beside(side(920, 921, 922), side(900, 901, 902), LABELS, "accuracy").p < 0.01
    assert beside(side(860, 920, 983), side(840, 900, 963), LABELS, "accuracy").p > 0.2


def test_every_metric_of_promotion_is_scikit_learns():
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(300, 7)) + 3 * np.eye(7)[LABELS[:300] % 7]
    labels = LABELS[:300] % 7
    predictions = Predictions([str(n) for n in range(7)], labels, log_softmax(logits))
    said = Answers.of(predictions)
    once = np.ones((1, 300), np.int64)
    assert said.scores("macro_f1", labels, once)[0] == pytest.approx(
        f1_score(labels, logits.argmax(1), average="macro")
    )
    assert said.scores("nll", labels, once)[0] == pytest.approx(log_loss(labels, np.exp(log_softmax(logits))))
    assert said.scores("top5_accuracy", labels, once)[0] == top_k_accuracy_score(labels, logits, k=5)
    worse = Answers.of(replace(predictions, log_probabilities=log_softmax(logits * 3)))
    found = beside([said] * 3, [worse] * 3, labels, "nll")
    assert (found.gain > 0) == (found.own < found.other), "a lower nll is a gain"


def verdict_of(own: int, other: int, **values: Any) -> Verdict:
    """With so many repeats of each side; candidate 0.93, champion 0.9."""
    rng = np.random.default_rng(3)
    ours, theirs = settings(rng, 0.93, seeds=own + 1), settings(rng, 0.9, seeds=other + 1)
    champion = FACTS.champion
    assert champion is not None
    facts = replace(
        FACTS, labels=LABELS, candidate=replace(FACTS.candidate, answers=ours[0]),
        champion=replace(champion, answers=theirs[0]), repeated=Repeated(tuple(ours[1:])),
        champion_repeated=Repeated(tuple(theirs[1:]), values.pop("problem", "")),
    )  # fmt: skip
    return next(verdict for verdict in judge(facts, gate(**values)) if verdict.gate == "better")


def test_it_asks_for_three_seeds_of_each_side():
    told = {(own, other): verdict_of(own, other, better=0.05) for own, other in product((0, 1, 2), (0, 2))}
    assert {counts for counts, verdict in told.items() if verdict.passed} == {(2, 2)}
    assert told[1, 2].found == "2 seed(s) beside 3 of version 1: promote.py --seeds 3"
    assert float(told[2, 2].found.split()[1].rstrip(":")) < 0.001
    assert " over 3 seeds, version 1 0.9" in told[2, 2].found
    assert verdict_of(2, 0, better=0.05, problem="its run is gone").found == "its run is gone"
    off = verdict_of(0, 0)
    assert (off.found, off.passed) == ("off", True)
    assert verdict_of(2, 2).found == told[2, 2].found, "shown where it is off, too"


def repeats(store: Store, params: Params, fingerprint: str, folder: Path) -> Repeats:
    """Of which no training is wanted to run."""

    def train(*_: Any, **__: Any) -> dict[str, Any]:
        raise AssertionError("trains")

    return Repeats(
        store, packed_set(folder), params, train, lambda *_, **__: SimpleNamespace(fingerprint=lambda: fingerprint), 3
    )


def test_other_code_than_the_champions_trains_no_seeds_of_it(store: Store, params: Params, tmp_path: Path):
    (tmp_path / "params.yaml").write_bytes((REPOSITORY / "params.yaml").read_bytes())
    with store.start("train", {"train.seed": 0}) as run:
        run.tags({"darkroom.fingerprint": "of then"})
    kept = repeats(store, params, "of now", tmp_path / "packed")._of("version 1", run.run_id, train=True)
    assert kept.answers == ()
    assert kept.problem == (
        f"version 1: other code, pictures or processor than run {run.run_id} had would train the other seeds: type the "
        f"same in a checkout of {'c' * 40}, or set promote.better: 0"
    )
    gone = repeats(store, params, "of now", tmp_path / "packed")._of("version 2", "f" * 32, train=True)
    assert gone.problem == f"version 2: run {'f' * 32} has no params.yaml (any more) to train other seeds by"


@pytest.mark.parametrize("few", ["2", "0", "-3", "three", ""])
def test_fewer_than_three_seeds_are_no_use(few: str):
    command = [sys.executable, "stages/promote.py", f"--seeds={few}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{few!r} is no number of seeds: 3 or more" in done.stderr


@pytest.fixture
def seeded(pipeline: Pipeline) -> Iterator[Pipeline]:
    """The pipeline with the gate on and a registered model of its own."""
    pipeline.set({"promote.better": 0.05, "promote.name": "seeded", "promote.minimum": 0.0})
    yield pipeline
    restore(pipeline)


def gates_of(pipeline: Pipeline, run_id: str) -> dict[str, Any]:
    """What was found last of the run's model, by gate."""
    run = next(run for run in all_runs(pipeline) if run.info.run_id == run_id)
    folder = Path(str(run.info.artifact_uri).removeprefix("file://")) / "promotion"
    decision = json.loads(max(folder.glob("*.json")).read_text())
    return {verdict["gate"]: verdict for verdict in decision["gates"]}


def test_settings_are_promoted_over_three_seeds_of_each(seeded: Pipeline):
    promote = ("python", "stages/promote.py", "--seeds", "3")
    first = seeded.json("metrics/train.json")["mlflow_run_id"]
    seeded.run(*promote)

    def children(run_id: str) -> dict[str, str]:
        found = [run for run in all_runs(seeded) if run.data.tags.get("mlflow.parentRunId") == run_id]
        return {run.data.params["train.seed"]: run.info.status for run in found}

    assert children(first) == {"1": "FINISHED", "2": "FINISHED"}
    again = seeded.run(*promote, code=1)
    assert "no seeds are trained: gain refused already" in again.stdout

    seeded.set({"train.epochs": 8, "promote.name": "seeded"})
    seeded.run("dvc", "repro")
    second = seeded.json("metrics/train.json")["mlflow_run_id"]
    alone = seeded.run("python", "stages/promote.py", code=1)
    assert "not promoted, because of better" in alone.stderr
    assert gates_of(seeded, second)["better"]["found"] == "1 seed(s) beside 3 of version 1: promote.py --seeds 3"
    done = seeded.run(*promote)
    assert "version 2 of seeded is champion (was version 1)" in done.stdout
    assert children(second) == {"1": "FINISHED", "2": "FINISHED"}
    assert gates_of(seeded, second)["better"]["passed"]


@pytest.mark.fashion
def test_a_sample_of_the_benchmark_on_fashion():
    command = [sys.executable, "benchmarks/better_gate.py", "--same", "2", "--apart", "1"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines() if line.startswith("|")]
    assert rows[-1][1:3] == ["1 of two settings", "1"]

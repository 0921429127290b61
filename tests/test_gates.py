"""Each gate by itself, on plain facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest

from darkroom.packed import Meta
from darkroom.params import Promote
from darkroom.promoting.facts import STAGES, Facts, Scored, StageRecord
from darkroom.promoting.gates import GATES, gain, judge
from darkroom.promoting.seeds import Answers
from darkroom.promoting.verdicts import Verdict, table

CLASSES = ["cat", "dog", "emu"]
META = Meta("own", CLASSES, 8, 1, "crop", [0.5], [0.5], {}, "d" * 64, {})
GOOD = StageRecord("run", "FINISHED", "finished", dirty="false")


def scored(name: str = "the candidate", **scores: float) -> Scored:
    return Scored(name, CLASSES, "a" * 64, META.sha256, scores)


FACTS = Facts(
    stages=dict.fromkeys(STAGES, GOOD),
    hashes={"models/model.pt": "a" * 64, "metrics/test.json": "a" * 64},
    candidate=scored(accuracy=0.9, nll=0.3),
    champion=scored("version 1", accuracy=0.8, nll=0.4),
    test=META,
)


def gate(**values: Any) -> Promote:
    off = {
        "not_worse": 0.05,
        "better": 0.0,
        "max_class_drop": 1.0,
        "max_ece": 1.0,
        "max_latency_ms": 0.0,
        "max_mb": 0.0,
        "committed": True,
    }
    return Promote(**{"name": "darkroom", "metric": "accuracy", "minimum": 0.5, "min_gain": 0.0, **off, **values})


def shut(facts: Facts, **values: Any) -> dict[str, Verdict]:
    verdicts = judge(facts, gate(**values))
    assert len(verdicts) == len(GATES), "all are evaluated, whatever the first says"
    return {verdict.gate: verdict for verdict in verdicts if not verdict.passed}


def test_a_good_candidate_passes_all():
    assert shut(FACTS) == {}
    assert shut(replace(FACTS, champion=None)) == {}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("state", ["failed", "killed", "running", None])
def test_a_stage_that_did_not_finish(stage: str, state: str | None):
    facts = replace(FACTS, stages=FACTS.stages | {stage: replace(GOOD, state=state)})
    assert set(shut(facts)) == {"stages"}
    assert f"{stage} {state or 'not run'}" in shut(facts)["stages"].found


@pytest.mark.parametrize("status", ["FAILED", "KILLED", "RUNNING", None])
def test_a_run_that_did_not_finish_or_is_gone(status: str | None):
    facts = replace(
        FACTS, stages=FACTS.stages | {"evaluate": StageRecord("other run", status, "finished", dirty="false")}
    )
    assert set(shut(facts)) == {"runs"}
    assert "run FINISHED" in shut(facts)["runs"].found
    assert (status or "not in the store, or deleted") in shut(facts)["runs"].found


def test_a_run_that_diverged():
    facts = replace(FACTS, stages=FACTS.stages | {"train": replace(GOOD, diverged="12")})
    assert shut(facts)["converged"].found == "diverged at step 12"


@pytest.mark.parametrize("other", ["f" * 64, ""])
def test_files_of_two_models(other: str):
    for file in FACTS.hashes:
        assert set(shut(replace(FACTS, hashes=FACTS.hashes | {file: other}))) == {"one model"}
    assert set(shut(replace(FACTS, hashes=dict.fromkeys(FACTS.hashes, "")))) == {"one model"}


def test_other_data():
    assert set(shut(replace(FACTS, candidate=replace(FACTS.candidate, data_sha256="e" * 64)))) == {"data"}


def test_other_classes():
    swapped = replace(FACTS.candidate, classes=["dog", "cat", "emu"])
    assert shut(replace(FACTS, candidate=swapped))["classes"].found == "3 classes, 'dog' for 'cat', 'cat' for 'dog'"
    fewer = replace(FACTS.candidate, classes=["cat", "dog"])
    assert shut(replace(FACTS, candidate=fewer))["classes"].needed == "the 3 of the champion"
    assert shut(replace(FACTS, candidate=fewer, champion=None))["classes"].needed == "the 3 of data/packed"


def test_the_minimum_is_let_in_and_what_is_below_it_is_not():
    assert shut(FACTS, minimum=0.9) == {}
    assert set(shut(FACTS, minimum=0.900001)) == {"accuracy"}
    assert set(shut(FACTS, metric="nll", minimum=0.3)) == set()
    assert set(shut(FACTS, metric="nll", minimum=0.29)) == {"nll"}


@pytest.mark.parametrize(
    ("own", "other", "min_gain", "passes"),
    [(0.9, 0.8, 0.0, True), (0.9, 0.9, 0.0, False), (0.8, 0.9, 0.0, False), (0.875, 0.75, 0.125, False), (0.875, 0.75, 0.12, True)],
)  # fmt: skip
def test_the_gain_must_be_above_the_margin(own: float, other: float, min_gain: float, passes: bool):
    facts = replace(FACTS, candidate=scored(accuracy=own), champion=scored("version 1", accuracy=other))
    assert ("gain" not in shut(facts, min_gain=min_gain)) == passes


def test_with_nll_lower_is_better():
    facts = replace(FACTS, candidate=scored(nll=0.25), champion=scored("version 1", nll=0.5))
    assert gain(facts, gate(metric="nll")) == 0.25
    assert shut(facts, metric="nll", minimum=1) == {}
    worse = replace(facts, candidate=facts.champion, champion=facts.candidate)
    assert set(shut(worse, metric="nll", minimum=1)) == {"gain"}


def test_a_score_that_is_not_there_or_no_number_passes_nothing():
    assert shut(FACTS, metric="top5_accuracy")["top5_accuracy"].found == "no top5_accuracy with 3 classes"
    assert set(shut(FACTS, metric="top5_accuracy")) == {"top5_accuracy", "gain"}
    assert set(shut(replace(FACTS, candidate=scored(accuracy=float("nan"))))) == {"accuracy", "gain"}


def test_a_champion_that_cannot_be_compared_is_not_beaten():
    unknown = Scored("version 1", [], "", "", problem="version 1 cannot be compared with: its file is gone")
    assert shut(replace(FACTS, champion=unknown))["gain"].found == unknown.problem


def test_the_table_shows_every_gate():
    lines = table(judge(FACTS, gate(minimum=0.95))).splitlines()
    assert len(lines) == 1 + len(GATES)
    assert [line.split()[0] for line in lines[1:]] == ["ok"] * 6 + ["NO"] + ["ok"] * 8
    assert "+0.1000 over version 1 (0.8000)" in lines[8]


def answers(own: str, other: str, labels: str) -> Facts:
    """Facts of a candidate and a champion that said these classes of the pictures, a digit each."""
    digits = [list(map(int, text)) for text in (own, other, labels)]
    labels = np.array(digits[2])
    said, before = (network(np.array(each), labels) for each in digits[:2])
    return replace(
        FACTS, candidate=replace(FACTS.candidate, answers=said), labels=labels,
        champion=replace(FACTS.champion or scored(), answers=before),
    )  # fmt: skip


def network(predicted: NDArray[np.int64], labels: NDArray[np.int64]) -> Answers:
    return Answers(predicted, {"accuracy": (predicted == labels).astype(np.float64)})


@pytest.mark.parametrize(
    ("gained", "lost", "passes"), [(0, 4, True), (0, 5, False), (3, 11, False), (4, 11, True), (9, 2, True)]
)
def test_a_candidate_that_loses_more_pictures_than_luck_would_is_worse(gained: int, lost: int, passes: bool):
    """The limits are those of the one-sided binomial test."""
    same = "0" * 50
    facts = answers(same + "0" * gained + "1" * lost, same + "1" * gained + "0" * lost, same + "0" * (gained + lost))
    p = binomtest(gained, gained + lost, alternative="less").pvalue
    assert passes == (p >= 0.05)
    assert ("not worse" not in shut(facts)) == passes
    verdict = next(each for each in judge(facts, gate()) if each.gate == "not worse")
    assert verdict.found == f"p {p:.3g}: {gained} pictures gained, {lost} lost"
    assert "not worse" not in shut(facts, not_worse=0.0), "off"
    assert "not worse" not in shut(replace(facts, champion=None))


def test_ten_thousand_pictures_are_no_overflow():
    facts = answers("1" * 6000 + "0" * 4000, "0" * 6000 + "1" * 4000, "0" * 10_000)
    assert set(shut(facts)) == {"not worse"}


def test_no_class_may_fall_too_far():
    facts = answers("0001" + "1111" + "22", "0000" + "1110" + "22", "0000" + "1111" + "22")
    assert shut(facts, max_class_drop=0.2)["classes kept"].found == "cat falls by 0.2500"
    assert "classes kept" not in shut(facts, max_class_drop=0.25)
    better = answers("0000" + "1111" + "22", "0000" + "1110" + "22", "0000" + "1111" + "22")
    assert "classes kept" not in shut(better, max_class_drop=0.0)


def test_limits_of_calibration_latency_and_size():
    facts = replace(FACTS, candidate=replace(scored(accuracy=0.9, ece=0.03), num_bytes=2_500_000), latency_ms=0.4)
    assert set(shut(facts, max_ece=0.02, max_latency_ms=0.3, max_mb=2.4)) == {"ECE", "latency", "size"}
    assert shut(facts, max_ece=0.03, max_latency_ms=0.4, max_mb=2.5) == {}
    verdicts = {each.gate: each for each in judge(facts, gate())}
    assert (verdicts["latency"].found, verdicts["latency"].needed) == ("0.4 ms", "–"), "shown where it is off, too"
    unknown = shut(replace(FACTS, candidate=scored(accuracy=0.9)), max_ece=0.5, max_latency_ms=1.0)
    assert {name: verdict.found for name, verdict in unknown.items()} == {
        "ECE": "not measured",
        "latency": "not measured",
    }


@pytest.mark.parametrize(("dirty", "found"), [("true", "no"), (None, "not known")])
def test_uncommitted_code_is_refused_unless_allowed(dirty: str | None, found: str):
    facts = replace(FACTS, stages={stage: replace(GOOD, dirty=dirty) for stage in STAGES})
    assert shut(facts)["code committed"].found == found
    assert shut(facts, committed=False) == {}
    some = replace(FACTS, stages=FACTS.stages | {"train": replace(GOOD, dirty=dirty)})
    assert shut(some)["code committed"].found == "in part"

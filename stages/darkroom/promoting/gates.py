"""The gates between a candidate and the alias champion. Each is one function here and one line in GATES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from darkroom.params import Promote
from darkroom.promoting.facts import STAGES, Facts

LOWER_IS_BETTER = ("nll",)


@dataclass(frozen=True)
class Verdict:
    """What one gate found."""

    gate: str
    found: str
    needed: str
    passed: bool


Gate = Callable[[Facts, Promote], Verdict]


def judge(facts: Facts, promote: Promote) -> list[Verdict]:
    """The verdict of every gate, also of those after the first that is shut."""
    return [gate(facts, promote) for gate in GATES]


def runs_finished(facts: Facts, _promote: Promote) -> Verdict:
    """The runs are there, not deleted, and ended well."""
    found = {record.run_id: record.status or "not in the store, or deleted" for record in facts.stages.values()}
    text = ", ".join(f"{run_id[:8]} {status}" for run_id, status in found.items())
    return Verdict("runs", text, "FINISHED", passed=set(found.values()) == {"FINISHED"})


def stages_finished(facts: Facts, _promote: Promote) -> Verdict:
    """No half of a pipeline: the scores and the exported files are there, of a stage that ended well."""
    states = {stage: facts.stages[stage].state or "not run" for stage in STAGES}
    text = ", ".join(f"{stage} {state}" for stage, state in states.items())
    return Verdict("stages", text, "all finished", passed=set(states.values()) == {"finished"})


def one_model(facts: Facts, _promote: Promote) -> Verdict:
    """The weights that were trained are those that were scored and exported."""
    kinds: dict[str, list[str]] = {}
    for file, digest in facts.hashes.items():
        kinds.setdefault(digest, []).append(file)
    text = "; ".join(f"{digest[:8] or 'none'} in {', '.join(files)}" for digest, files in kinds.items())
    return Verdict("one model", text, "one sha256 in all files", passed=len(kinds) == 1 and "" not in kinds)


def converged(facts: Facts, _promote: Promote) -> Verdict:
    steps = [record.diverged for record in facts.stages.values() if record.diverged is not None]
    return Verdict(
        "converged", f"diverged at step {steps[0]}" if steps else "yes", "no NaN in the loss", passed=not steps
    )


def same_data(facts: Facts, _promote: Promote) -> Verdict:
    """A candidate of other data may have trained on what is a test picture now."""
    own, now = facts.candidate.data_sha256, facts.test.sha256
    return Verdict("data", f"trained on {own[:8]}", f"{now[:8]}, as in data/packed", passed=own == now)


def same_classes(facts: Facts, _promote: Promote) -> Verdict:
    """A program that uses the champion must find the same classes in the same places."""
    if facts.champion is None or not facts.champion.classes:
        return _classes(facts.candidate.classes, facts.test.classes, "data/packed")
    return _classes(facts.candidate.classes, facts.champion.classes, "the champion")


def _classes(found: list[str], needed: list[str], of_whom: str) -> Verdict:
    differing = [f"{one!r} for {other!r}" for one, other in zip(found, needed, strict=False) if one != other]
    text = f"{len(found)} classes" + (f", {', '.join(differing[:3])}" if differing else "")
    return Verdict("classes", text, f"the {len(needed)} of {of_whom}", passed=found == needed)


def good_enough(facts: Facts, promote: Promote) -> Verdict:
    """The metric reaches promote.minimum."""
    value = facts.candidate.scores.get(promote.metric)
    lower = promote.metric in LOWER_IS_BETTER
    needed = f"{'at most' if lower else 'at least'} {promote.minimum:g}"
    if value is None:
        return Verdict(promote.metric, _no_score(facts, promote), needed, passed=False)
    reached = value <= promote.minimum if lower else value >= promote.minimum
    return Verdict(promote.metric, f"{value:.4f}", needed, passed=reached)


def better(facts: Facts, promote: Promote) -> Verdict:
    """The gain over the champion is above promote.min_gain. A tie is refused, the same model again is one."""
    needed = f"more than {promote.min_gain:g}"
    if facts.champion is None:
        return Verdict("gain", "there is no champion yet", needed, passed=True)
    if facts.champion.problem:
        return Verdict("gain", facts.champion.problem, needed, passed=False)
    gained = gain(facts, promote)
    if gained is None:
        return Verdict("gain", _no_score(facts, promote), needed, passed=False)
    before = facts.champion.scores[promote.metric]
    found = f"{gained:+.4f} over {facts.champion.name} ({before:.4f})"
    return Verdict("gain", found, needed, passed=gained > promote.min_gain)


def gain(facts: Facts, promote: Promote) -> float | None:
    """How much better the candidate is, positive also where lower is better; None where one has no score."""
    if facts.champion is None:
        return None
    own, other = (scored.scores.get(promote.metric) for scored in (facts.candidate, facts.champion))
    if own is None or other is None:
        return None
    return other - own if promote.metric in LOWER_IS_BETTER else own - other


def _no_score(facts: Facts, promote: Promote) -> str:
    if facts.candidate.problem:
        return facts.candidate.problem
    return f"no {promote.metric} with {len(facts.test.classes)} classes"


GATES: tuple[Gate, ...] = (
    runs_finished,
    stages_finished,
    one_model,
    converged,
    same_data,
    same_classes,
    good_enough,
    better,
)


def table(verdicts: list[Verdict]) -> str:
    """The verdicts as lines of text, in columns."""
    rows = [("", "gate", "found", "needed")] + [
        ("ok" if verdict.passed else "NO", verdict.gate, verdict.found, verdict.needed) for verdict in verdicts
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    )


def as_values(verdicts: list[Verdict]) -> list[dict[str, Any]]:
    return [asdict(verdict) for verdict in verdicts]

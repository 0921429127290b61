"""The gates between a candidate and the alias champion. Each is one function here and one line in GATES."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from darkroom.evaluation.comparing import mcnemar
from darkroom.params import Promote
from darkroom.promoting.facts import STAGES, Facts, Repeated, Scored
from darkroom.promoting.seeds import FEWEST, LOWER_IS_BETTER, Answers, beside
from darkroom.promoting.verdicts import Verdict

BETTER = "better"
"""The gate that asks for other seeds."""


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


def gained(facts: Facts, promote: Promote) -> Verdict:
    """The gain over the champion is above promote.min_gain. A tie is refused, the same model again is one."""
    needed = f"more than {promote.min_gain:g}"
    if facts.champion is None:
        return Verdict("gain", "there is no champion yet", needed, passed=True)
    if facts.champion.problem:
        return Verdict("gain", facts.champion.problem, needed, passed=False)
    difference = gain(facts, promote)
    if difference is None:
        return Verdict("gain", _no_score(facts, promote), needed, passed=False)
    before = facts.champion.scores[promote.metric]
    found = f"{difference:+.4f} over {facts.champion.name} ({before:.4f})"
    return Verdict("gain", found, needed, passed=difference > promote.min_gain)


def not_worse(facts: Facts, promote: Promote) -> Verdict:
    """On the pictures that only one of both gets right: whether the champion gets so many more of them by luck.

    McNemar's exact test, one-sided. It compares two fixed networks, and cannot tell
    what another seed would have given.
    """
    needed = f"p of at least {promote.not_worse:g}" if promote.not_worse else "–"
    if facts.champion is None or facts.champion.answers is None or not promote.not_worse:
        return Verdict("not worse", "nothing to compare with" if promote.not_worse else "off", needed, passed=True)
    own, other = _hits(facts, facts.candidate), _hits(facts, facts.champion)
    gained, lost = int((own & ~other).sum()), int((other & ~own).sum())
    p = mcnemar(gained, lost, alternative="less")
    found = f"p {p:.3g}: {gained} pictures gained, {lost} lost"
    return Verdict("not worse", found, needed, passed=p >= promote.not_worse)


def better(facts: Facts, promote: Promote) -> Verdict:
    """The settings are better, not the seed: their mean over seeds, beside the mean of the champion's settings.

    What `not_worse` cannot tell. The seeds come from promote.py --seeds.
    """
    wanted = promote.better
    needed = f"p below {wanted:g} over {FEWEST} seeds" if wanted else "–"
    if facts.champion is None:
        return Verdict(BETTER, "there is no champion yet", needed, passed=True)
    own, other = _seeds(facts.candidate, facts.repeated), _seeds(facts.champion, facts.champion_repeated)
    if min(len(own), len(other)) < FEWEST:
        why = (
            facts.candidate.problem
            or facts.champion.problem
            or facts.repeated.problem
            or facts.champion_repeated.problem
        )
        counts = f"{len(own)} seed(s) beside {len(other)} of {facts.champion.name}: promote.py --seeds {FEWEST}"
        return Verdict(BETTER, (why or counts) if wanted else "off", needed, passed=not wanted)
    found = beside(own, other, facts.labels, promote.metric)
    text = f"p {found.p:.3g}: {found.own:.4f} over {len(own)} seeds, {facts.champion.name} {found.other:.4f} over {len(other)}"
    return Verdict(BETTER, text, needed, passed=not wanted or found.p < wanted)


def _seeds(scored: Scored, repeated: Repeated) -> list[Answers]:
    return [scored.answers, *repeated.answers] if scored.answers else []


def classes_kept(facts: Facts, promote: Promote) -> Verdict:
    """No class is paid for the others' gain."""
    needed = f"a fall of at most {promote.max_class_drop:g}" if promote.max_class_drop < 1 else "–"
    if facts.champion is None or facts.champion.answers is None or promote.max_class_drop == 1:
        return Verdict("classes kept", "off" if needed == "–" else "nothing to compare with", needed, passed=True)
    own, other = _recalls(facts, facts.candidate), _recalls(facts, facts.champion)
    worst = max(other, key=lambda label: other[label] - own.get(label, 0.0))
    fall = other[worst] - own.get(worst, 0.0)
    found = f"{facts.test.classes[worst]} falls by {fall:.4f}" if fall > 0 else "no class falls"
    return Verdict("classes kept", found, needed, passed=fall <= promote.max_class_drop)


def calibrated(facts: Facts, promote: Promote) -> Verdict:
    return _at_most("ECE", facts.candidate.scores.get("ece"), promote.max_ece if promote.max_ece < 1 else None, "")


def fast(facts: Facts, promote: Promote) -> Verdict:
    return _at_most("latency", facts.latency_ms, promote.max_latency_ms or None, " ms")


def small(facts: Facts, promote: Promote) -> Verdict:
    return _at_most("size", facts.candidate.num_bytes / 1e6, promote.max_mb or None, " MB")


def committed(facts: Facts, promote: Promote) -> Verdict:
    """What nobody can check out cannot be made again."""
    states = {record.dirty for record in facts.stages.values()}
    found = {"true": "no", "false": "yes"}.get(next(iter(states)) or "", "not known") if len(states) == 1 else "in part"
    needed = "yes" if promote.committed else "–"
    return Verdict("code committed", found, needed, passed=not promote.committed or states == {"false"})


def _at_most(gate: str, value: float | None, limit: float | None, unit: str) -> Verdict:
    """A limit that is off lets everything in, and still shows the number."""
    found = "not measured" if value is None else f"{value:.4g}{unit}"
    needed = "–" if limit is None else f"at most {limit:g}{unit}"
    return Verdict(gate, found, needed, passed=limit is None or (value is not None and value <= limit))


def _hits(facts: Facts, scored: Scored) -> NDArray[np.bool_]:
    """Of each test picture whether it was recognised; of none where the model could not be scored."""
    return np.asarray(scored.answers.predicted == facts.labels) if scored.answers else np.zeros(len(facts.labels), bool)


def _recalls(facts: Facts, scored: Scored) -> dict[int, float]:
    """Of each class that has test pictures."""
    hits = _hits(facts, scored)
    return {int(label): float(hits[facts.labels == label].mean()) for label in np.unique(facts.labels)}


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
    gained,
    not_worse,
    better,
    classes_kept,
    calibrated,
    fast,
    small,
    committed,
)

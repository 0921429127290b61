"""The findings in sentences, for people who do not read tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from darkroom.reporting.results import Results

SURE = 0.05
"""a McNemar p below this counts as more than luck"""


def summary(results: Results, parameters: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the test says of the model, a sentence or two each: plain text."""
    return [
        *_accuracy(results, parameters),
        *_mistakes(results),
        *_trust(results),
        *_robustness(results),
        *_against(results),
    ]


def _accuracy(results: Results, parameters: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    test = results.test
    right = test["num_images"] - len(results.mistakes)
    level = parameters["evaluate"]["confidence"]
    yield (
        f"The model is right about {right:,} of {test['num_images']:,} test pictures, which it saw neither in training nor in "
        f"validation. On other pictures of the same kind its accuracy is between {test['accuracy_low']:.2%} and "
        f"{test['accuracy_high']:.2%}, with {level:.0%} confidence."
    )


def _mistakes(results: Results) -> Iterator[str]:
    weakest = results.weakest
    if not results.confused or weakest is None:
        return
    actual, predicted, count = results.confused[0]
    yield (
        f"Its weakest class is {weakest['class']} (F1 {float(weakest['f1']):.2%}); its most frequent mistake is to take "
        f"{actual} for {predicted} ({count:,} {'picture' if count == 1 else 'pictures'})."
    )


def _trust(results: Results) -> Iterator[str]:
    ece, before = results.test["ece"], results.test["uncalibrated_ece"]
    yield (
        f"When it says how sure it is, it is off by {ece:.2%} on average (before its probabilities were calibrated: "
        f"{before:.2%})."
    )


def _robustness(results: Results) -> Iterator[str]:
    errors = {name: error for name, error in results.test.get("corruption_error", {}).items() if name != "mean"}
    worst = max(errors, key=lambda name: float(errors[name]), default="")
    if worst and errors[worst] > 1 - results.test["accuracy"]:
        yield f"Of the corruptions tried, {worst} hurts most: {errors[worst]:.1%} of such pictures are taken for another class."


def _against(results: Results) -> Iterator[str]:
    for name, found in results.test.get("against", {}).items():
        better = "better" if found["difference"] > 0 else "worse"
        verdict = f"{better} than {name}" if found["mcnemar_p"] < SURE else f"not to be told from {name}"
        yield (
            f"It is {verdict}: {found['difference']:+.2%} accuracy ({found['difference_low']:+.2%} to "
            f"{found['difference_high']:+.2%}), McNemar's p {found['mcnemar_p']:.2g}."
        )

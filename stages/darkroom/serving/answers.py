"""Predictions as text: a table for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Answer:
    """What a model says of one picture."""

    path: str
    ranking: list[tuple[str, float]]
    """class names with their probabilities, the likeliest first; at least one"""


def answer(path: str, probabilities: NDArray[np.float32], classes: Sequence[str], top: int) -> Answer:
    """The `top` likeliest of `classes`; of equal probabilities (K) the first class goes first."""
    order = np.argsort(-probabilities, kind="stable")[:top]
    return Answer(path, [(classes[i], float(probabilities[i])) for i in order])


def as_table(answers: Iterable[Answer], *, path_width: int, name_width: int) -> Iterator[str]:
    """A line a picture: its path, then names with their probabilities."""
    for each in answers:
        columns = [f"{name:<{name_width}} {share:6.1%}" for name, share in each.ranking]
        yield "  ".join([f"{each.path:<{path_width}}", *columns]) + "\n"


def as_json(answers: Iterable[Answer]) -> Iterator[str]:
    """One JSON array, strict, an object a line: path, class, probability, top."""
    before = "[\n"
    for each in answers:
        name, share = each.ranking[0]
        top = [{"class": other, "probability": _rounded(value)} for other, value in each.ranking]
        values = {"path": each.path, "class": name, "probability": _rounded(share), "top": top}
        yield before + json.dumps(values, allow_nan=False)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def as_csv(answers: Iterable[Answer], top: int) -> Iterator[str]:
    """A header, then a row a picture: path, then class and probability of each place."""
    places = [""] if top == 1 else [f"_{place}" for place in range(1, top + 1)]
    yield _row(["path", *(f"{name}{place}" for place in places for name in ("class", "probability"))])
    for each in answers:
        yield _row([each.path, *(value for name, share in each.ranking for value in (name, f"{share:.6g}"))])


def _rounded(share: float) -> float:
    return float(f"{share:.6g}")


def _row(values: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()

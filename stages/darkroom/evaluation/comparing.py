"""Two models on the same pictures: whether one is better, or luck would do."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from darkroom.errors import UserError
from darkroom.evaluation.scores import confusion_matrix, per_class
from darkroom.evaluation.uncertainty import Level, resample
from darkroom.packed import ROWS

MADE_BY = "reports/evaluation/predictions.csv of dvc repro evaluate"


@dataclass(frozen=True)
class Comparison:
    """This model beside another one; differences are this one's less the other's."""

    accuracy: float
    """the other's"""
    difference: float
    """of accuracy"""
    difference_low: float
    difference_high: float
    macro_f1_difference: float
    macro_f1_difference_low: float
    macro_f1_difference_high: float
    only_this_right: int
    """pictures"""
    only_other_right: int
    mcnemar_p: float
    """exact, two-sided: how often models of equal accuracy would part like this (McNemar 1947)"""

    def metrics(self) -> dict[str, float | int]:
        return asdict(self)


def image_ids(images: NDArray[np.uint8]) -> list[str]:
    """16 hex digits of each picture's sha256: what knows a picture again in another model's table."""
    return [
        hashlib.sha256(picture.tobytes()).hexdigest()[:16]
        for start in range(0, len(images), ROWS)
        for picture in np.asarray(images[start : start + ROWS])
    ]


def others(place: Path) -> Iterator[tuple[str, Path]]:
    """Names and files of the predictions at `place`: a file, or a folder of .csv files, which may be empty.

    Raises UserError where there is nothing.
    """
    if not place.exists():
        raise UserError(
            f"evaluate.against: {place} is missing: name {MADE_BY}, kept from an earlier model, or a folder of such"
        )
    for path in [place] if place.is_file() else sorted(place.glob("*.csv")):
        yield path.stem, path


def read_predicted(path: Path, ids: list[str], labels: NDArray[np.int64], classes: list[str]) -> NDArray[np.int64]:
    """The classes (N) that the table in `path` names for the pictures `ids`, in their order.

    Raises UserError where it is no such table, or one of other pictures or labels.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = {row["image"]: (row["label"], row["predicted"]) for row in csv.DictReader(file)}
    except (KeyError, UnicodeDecodeError, csv.Error):
        raise UserError(f"evaluate.against: {path} is no table of predictions: give {MADE_BY}") from None
    except OSError as error:
        raise UserError(f"evaluate.against: {path} cannot be read ({error.strerror})") from None
    number = {name: i for i, name in enumerate(classes)}
    absent = [each for each in ids if each not in rows]
    if absent:
        raise UserError(
            f"evaluate.against: {path} lacks {len(absent):,} of {len(ids):,} test pictures: it was made on another split "
            "(data.seed, data.test_fraction, data.image_size) or set; evaluate that model on this one"
        )
    found = [rows[each] for each in ids]
    if any(label != classes[i] for (label, _), i in zip(found, labels, strict=True)):
        raise UserError(
            f"evaluate.against: {path} gives other labels to these pictures than data/packed: it is of another set"
        )
    if strange := sorted({predicted for _, predicted in found} - number.keys()):
        raise UserError(
            f"evaluate.against: {path} predicts {strange[0]!r}, which is none of the classes here: it is of another set"
        )
    return np.array([number[predicted] for _, predicted in found])


def compare(
    labels: NDArray[np.int64], this: NDArray[np.int64], other: NDArray[np.int64], num_classes: int, level: Level
) -> Comparison:
    """`this` and `other` predicted the classes (N each) of the same pictures, which are truly `labels`.

    Intervals by a paired bootstrap: a picture is drawn with what both said of it.
    """
    this_right, other_right = this == labels, other == labels
    only_this, only_other = int((this_right & ~other_right).sum()), int((other_right & ~this_right).sum())
    (label, said, other_said), counts = np.unique(np.stack([labels, this, other]), axis=1, return_counts=True)

    def differences(drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array([_differences(label, said, other_said, times, num_classes) for times in drawn])

    low, high = level.interval(resample(counts, level, differences))
    accuracy, macro_f1 = _differences(label, said, other_said, counts, num_classes)
    return Comparison(
        accuracy=float(other_right.mean()),
        difference=accuracy,
        difference_low=float(low[0]),
        difference_high=float(high[0]),
        macro_f1_difference=macro_f1,
        macro_f1_difference_low=float(low[1]),
        macro_f1_difference_high=float(high[1]),
        only_this_right=only_this,
        only_other_right=only_other,
        mcnemar_p=mcnemar(only_this, only_other),
    )


def mcnemar(only_this: int, only_other: int, *, alternative: str = "two-sided") -> float:
    """The exact p of McNemar's test, where so many pictures were right by one model alone.

    `alternative`: two-sided, or less: this model is the worse one (https://doi.org/10.1007/BF02295996).
    """
    from scipy.stats import binomtest

    parted = only_this + only_other
    return float(binomtest(only_this, parted, alternative=alternative).pvalue) if parted else 1.0


def _differences(
    labels: NDArray[np.int64],
    this: NDArray[np.int64],
    other: NDArray[np.int64],
    times: NDArray[np.int64],
    num_classes: int,
) -> tuple[float, float]:
    """Of accuracy and macro F1, where each kind of picture stands there so many times."""
    scores = []
    for said in (this, other):
        confusion = confusion_matrix(labels, said, num_classes, times)
        scores.append((float(np.trace(confusion) / confusion.sum()), float(np.nanmean(per_class(confusion)[2]))))
    (accuracy, macro_f1), (other_accuracy, other_macro_f1) = scores
    return accuracy - other_accuracy, macro_f1 - other_macro_f1

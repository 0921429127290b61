"""darkroom.evaluation.uncertainty and comparing: intervals that hold what they promise, and tests that know luck."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.metrics import f1_score

from darkroom.errors import UserError
from darkroom.evaluation.comparing import compare, image_ids, others, read_predicted
from darkroom.evaluation.predictions import Predictions
from darkroom.evaluation.scores import Scores, scores
from darkroom.evaluation.tables import predictions_table
from darkroom.evaluation.uncertainty import Level, intervals

LEVEL = Level(resamples=1000, confidence=0.9)


def scored(labels: NDArray[np.int64], predicted: NDArray[np.int64], num_classes: int) -> Scores:
    return scores(np.eye(num_classes)[predicted], labels)


def drawn(rng: np.random.Generator, num: int, accuracy: float, num_classes: int = 4) -> tuple[NDArray[np.int64], ...]:
    """Labels, and predictions that are right with that probability."""
    labels = rng.integers(num_classes, size=num)
    wrong = (labels + rng.integers(1, num_classes, size=num)) % num_classes
    return labels, np.where(rng.random(num) < accuracy, labels, wrong)


def test_nine_of_ten_intervals_hold_the_true_accuracy() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        low, high = intervals(scored(*drawn(rng, 300, 0.8), 4), LEVEL).accuracy
        held += low <= 0.8 <= high
    assert 168 <= held <= 192, "0.9 of 200, within three deviations"


def test_it_is_the_bootstrap_over_pictures() -> None:
    rng = np.random.default_rng(1)
    labels, predicted = drawn(rng, 120, 0.7)
    found = intervals(scored(labels, predicted, 4), Level(4000, 0.9))
    picks = rng.integers(120, size=(4000, 120))
    accuracies = (labels == predicted)[picks].mean(axis=1)
    f1 = [f1_score(labels[p], predicted[p], average="macro") for p in picks[:1500]]
    assert found.accuracy == pytest.approx(np.percentile(accuracies, [5, 95]), abs=0.012)
    assert found.macro_f1 == pytest.approx(np.percentile(f1, [5, 95]), abs=0.012)


def test_the_same_pictures_give_the_same_interval_and_more_pictures_a_narrower_one() -> None:
    rng = np.random.default_rng(2)
    few, many = scored(*drawn(rng, 100, 0.8), 4), scored(*drawn(rng, 10_000, 0.8), 4)
    assert intervals(few, LEVEL).accuracy == intervals(few, LEVEL).accuracy
    widths = [high - low for low, high in (intervals(each, LEVEL).accuracy for each in (few, many))]
    assert widths[0] / widths[1] == pytest.approx(10, rel=0.25)


def test_no_mistake_leaves_doubt() -> None:
    labels = np.arange(50) % 5
    low, high = intervals(scored(labels, labels, 5), Level(500, 0.95)).accuracy
    exact = binomtest(50, 50).proportion_ci(0.95, method="exact")
    assert (low, high) == pytest.approx((exact.low, exact.high))
    assert low < 0.95


def test_a_class_without_pictures_has_no_interval_and_one_picture_raises_no_warning() -> None:
    labels = np.array([0, 0, 0, 2])
    found = intervals(scored(labels, np.array([0, 0, 2, 2]), 4), LEVEL)
    assert np.isnan(found.f1).tolist() == [[False, True, False, True]] * 2
    assert intervals(scored(np.zeros(5, int), np.zeros(5, int), 2), LEVEL).macro_f1 == (1.0, 1.0)


def test_a_thousand_classes_take_no_gigabytes() -> None:
    rng = np.random.default_rng(3)
    many = scored(*drawn(rng, 20_000, 0.6, 1000), 1000)
    found = intervals(many, Level(100, 0.9))
    assert found.f1.shape == (2, 1000)
    assert found.accuracy[0] < many.accuracy < found.accuracy[1]


def test_a_comparison_counts_what_only_one_got_right() -> None:
    labels = np.zeros(20, np.int64)
    this, other = labels.copy(), labels.copy()
    this[:2] = 1
    other[2:11] = 1
    found = compare(labels, this, other, 2, LEVEL)
    assert (found.only_this_right, found.only_other_right) == (9, 2)
    assert found.mcnemar_p == pytest.approx(binomtest(9, 11).pvalue)
    assert found.difference == pytest.approx(7 / 20)
    assert found.accuracy == pytest.approx(11 / 20)
    assert found.difference_low < found.difference < found.difference_high


def test_equal_models_are_seldom_told_apart_and_unequal_ones_always() -> None:
    rng = np.random.default_rng(4)
    seeming = 0
    for _ in range(100):
        labels, this = drawn(rng, 400, 0.85)
        seeming += (
            compare(
                labels, this, np.where(rng.random(400) < 0.85, labels, (labels + 1) % 4), 4, Level(100, 0.9)
            ).mcnemar_p
            < 0.05
        )
    assert seeming <= 12
    labels, this = drawn(rng, 2000, 0.95)
    worse = np.where(rng.random(2000) < 0.85, labels, (labels + 1) % 4)
    found = compare(labels, this, worse, 4, LEVEL)
    assert found.mcnemar_p < 1e-6
    assert found.difference_low > 0
    assert found.macro_f1_difference_low > 0


def test_a_model_beside_itself_differs_by_nothing() -> None:
    labels, this = drawn(np.random.default_rng(5), 100, 0.9)
    found = compare(labels, this, this, 4, LEVEL)
    assert (found.difference, found.difference_low, found.difference_high, found.mcnemar_p) == (0, 0, 0, 1)


CLASSES = ["cat", "dog"]
IMAGES = np.arange(6 * 4, dtype=np.uint8).reshape(6, 2, 2, 1)
LABELS = np.array([0, 1, 0, 1, 0, 1])


def write_table(path: Path, images: NDArray[np.uint8], labels: NDArray[np.int64], predicted: list[int]) -> Path:
    predictions = Predictions.of([5 * np.eye(2, dtype=np.float32)[predicted]], labels, classes=CLASSES, temperature=1)
    path.write_text(predictions_table(predictions, image_ids(images)))
    return path


def test_another_models_table_is_read_by_picture_not_by_place(tmp_path: Path) -> None:
    order = [3, 0, 5, 1, 4, 2]
    path = write_table(tmp_path / "a.csv", IMAGES[order], LABELS[order], [1, 1, 1, 1, 0, 0])
    assert read_predicted(path, image_ids(IMAGES), LABELS, CLASSES).tolist() == [1, 1, 0, 1, 0, 1]


def test_tables_of_other_pictures_labels_or_classes_are_refused(tmp_path: Path) -> None:
    ids = image_ids(IMAGES)
    other = write_table(tmp_path / "other.csv", IMAGES + 100, LABELS, [0] * 6)
    with pytest.raises(UserError, match=r"other.csv lacks 6 of 6 test pictures.*another split"):
        read_predicted(other, ids, LABELS, CLASSES)
    swapped = write_table(tmp_path / "swapped.csv", IMAGES, 1 - LABELS, [0] * 6)
    with pytest.raises(UserError, match="gives other labels"):
        read_predicted(swapped, ids, LABELS, CLASSES)
    (tmp_path / "metrics.csv").write_text("epoch,loss\n1,2\n")
    with pytest.raises(UserError, match="is no table of predictions: give reports/evaluation/predictions.csv"):
        read_predicted(tmp_path / "metrics.csv", ids, LABELS, CLASSES)
    (tmp_path / "picture.csv").write_bytes(bytes(range(256)))
    with pytest.raises(UserError, match="is no table of predictions"):
        read_predicted(tmp_path / "picture.csv", ids, LABELS, CLASSES)
    rows = list(csv.reader((tmp_path / "swapped.csv").read_text().splitlines()))
    strange = [[cell.replace("cat", "cow") if i == 3 else cell for i, cell in enumerate(row)] for row in rows]
    (tmp_path / "strange.csv").write_text("\n".join(",".join(row) for row in strange))
    with pytest.raises(UserError, match="predicts 'cow', which is none of the classes here"):
        read_predicted(tmp_path / "strange.csv", ids, 1 - LABELS, CLASSES)


def test_a_file_or_a_folder_of_files_and_never_nothing(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("")
    assert list(others(tmp_path)) == []
    for name in ("b.csv", "a.csv"):
        (tmp_path / name).write_text("")
    assert [name for name, _ in others(tmp_path)] == ["a", "b"]
    assert list(others(tmp_path / "b.csv")) == [("b", tmp_path / "b.csv")]
    with pytest.raises(
        UserError, match=r"evaluate.against: .*gone.csv is missing: name reports/evaluation/predictions.csv"
    ):
        list(others(tmp_path / "gone.csv"))

"""darkroom.evaluation.scores against scikit-learn, and the rules that scikit-learn leaves open."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, log_loss, precision_recall_fscore_support, top_k_accuracy_score

from darkroom.evaluation.scores import log_probabilities, log_softmax, scores


def guesses(seed: int, num_images: int, num_classes: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=num_images)
    logits = rng.normal(size=(num_images, num_classes)).astype(np.float32)
    logits[np.arange(num_images), labels] += 1
    return logits, labels


@given(seed=st.integers(0, 10_000), num_images=st.integers(1, 60), num_classes=st.integers(2, 12))
def test_scores_equal_scikit_learns(seed: int, num_images: int, num_classes: int) -> None:
    logits, labels = guesses(seed, num_images, num_classes)
    found = scores(logits, labels)
    present = np.unique(labels)
    predicted = logits.argmax(axis=1)
    expected = precision_recall_fscore_support(labels, predicted, labels=present, zero_division=0.0)
    for name, values in zip(("precision", "recall", "f1", "support"), expected, strict=True):
        np.testing.assert_allclose(getattr(found, name)[present], values)
    assert found.macro_precision == pytest.approx(expected[0].mean())
    assert found.macro_recall == pytest.approx(expected[1].mean())
    assert found.macro_f1 == pytest.approx(expected[2].mean())
    assert found.accuracy == (predicted == labels).mean()
    assert (found.confusion == confusion_matrix(labels, predicted, labels=range(num_classes))).all()
    assert found.nll == pytest.approx(log_loss(labels, np.exp(log_softmax(logits)), labels=range(num_classes)))


def test_top5_equals_scikit_learns() -> None:
    logits, labels = guesses(0, 500, 20)
    assert scores(logits, labels).top5_accuracy == top_k_accuracy_score(labels, logits, k=5, labels=range(20))


@pytest.mark.parametrize(("num_classes", "given"), [(5, False), (6, True)])
def test_top5_only_where_there_are_more_than_five_classes(num_classes: int, given: bool) -> None:
    assert ("top5_accuracy" in scores(*guesses(0, 50, num_classes)).metrics()) == given


def test_a_class_without_pictures_has_no_score_and_no_part_in_a_mean() -> None:
    logits = np.eye(3)[[0, 1, 2]]
    found = scores(logits, np.array([0, 1, 1]))
    assert np.isnan([found.precision[2], found.recall[2], found.f1[2]]).all()
    assert found.macro_recall == (1 + 1 / 2) / 2
    assert found.support.tolist() == [1, 2, 0]


def test_a_class_never_predicted_counts_as_zero() -> None:
    found = scores(np.eye(3)[[0, 0, 2]], np.array([0, 1, 2]))
    assert (found.precision[1], found.recall[1], found.f1[1]) == (0, 0, 0)
    assert found.macro_f1 == pytest.approx((2 / 3 + 0 + 1) / 3)


def test_all_logits_equal_is_a_guess_of_the_first_class() -> None:
    found = scores(np.zeros((4, 8)), np.array([0, 3, 4, 5]))
    assert (found.accuracy, found.top5_accuracy, found.nll) == (1 / 4, 3 / 4, pytest.approx(np.log(8)))


def test_a_diverged_network_scores_no_hit() -> None:
    found = scores(np.full((4, 8), np.nan), np.array([1, 3, 4, 5]))
    assert found.accuracy == found.top5_accuracy == 0
    assert np.isnan(found.nll)


def test_nll_of_large_logits_is_exact() -> None:
    assert scores(np.array([[1000.0, 0.0]]), np.array([1])).nll == 1000


def test_log_probabilities_score_as_logits_do() -> None:
    logits, labels = guesses(1, 200, 7)
    again = scores(log_probabilities(np.exp(log_softmax(logits))), labels)
    assert again.metrics() == pytest.approx(scores(logits, labels).metrics())


def test_a_probability_of_zero_leaves_a_finite_nll() -> None:
    assert scores(log_probabilities([[1.0, 0.0]]), np.array([1])).nll == pytest.approx(87.34, abs=0.01)

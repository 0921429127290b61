"""darkroom.evaluation.calibration and slices: whether probabilities mean what they say, and where a model is better."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss

from darkroom.evaluation.calibration import BINS, calibration
from darkroom.evaluation.predictions import Predictions
from darkroom.evaluation.slices import properties, slices


def of(probabilities: np.ndarray, labels: np.ndarray) -> Predictions:
    names = [str(i) for i in range(probabilities.shape[1])]
    return Predictions(names, labels, np.log(probabilities))


def sure(confidence: list[float], hits: list[bool]) -> Predictions:
    """Two classes: class 0 said with that confidence."""
    p = np.array(confidence)
    return of(np.column_stack([p, 1 - p]), np.where(hits, 0, 1))


def test_ece_by_hand() -> None:
    found = calibration(sure([0.9, 0.9, 0.9, 0.9, 0.6, 0.6], [True, True, True, False, True, False]))
    assert found.ece == pytest.approx((4 * abs(0.9 - 0.75) + 2 * abs(0.6 - 0.5)) / 6)
    assert [(b.confidence, b.accuracy, b.num_images) for b in found.bins] == [
        (pytest.approx(0.6), 0.5, 2), (pytest.approx(0.9), 0.75, 4),
    ]  # fmt: skip


def test_brier_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([1, 1, 1], 200)
    labels = rng.integers(3, size=200)
    expected = brier_score_loss(labels, probabilities, scale_by_half=False)
    assert calibration(of(probabilities, labels)).brier == pytest.approx(expected)


def test_calibrated_probabilities_have_no_error_and_boastful_ones_have() -> None:
    rng = np.random.default_rng(1)
    confidence = rng.uniform(0.5, 1, 100_000)
    hits = rng.random(100_000) < confidence
    honest = calibration(sure(confidence.tolist(), hits.tolist()))
    assert honest.ece < 0.01
    assert honest.ece_equal_mass < 0.01
    boastful = calibration(sure((confidence / 2 + 0.5).tolist(), hits.tolist()))
    assert boastful.ece == pytest.approx(0.125, abs=0.01)
    assert boastful.ece_equal_mass == pytest.approx(0.125, abs=0.01)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 1 - 1e-9), st.booleans()), min_size=1, max_size=60))
def test_whatever_the_pictures_every_one_is_in_a_bin(pairs: list[tuple[float, bool]]) -> None:
    confidence, hits = map(list, zip(*pairs, strict=True))
    found = calibration(sure(confidence, hits))
    assert sum(b.num_images for b in found.bins) == len(pairs)
    assert len(found.bins) <= BINS
    assert 0 <= found.ece <= 1
    assert 0 <= found.ece_equal_mass <= 1
    assert 0 <= found.brier <= 2


def test_views_are_averaged_as_probabilities() -> None:
    logits = [np.array([[0.0, 2.0]], np.float32), np.array([[1.0, -3.0]], np.float32)]
    merged = Predictions.of(logits, np.array([0]), classes=["a", "b"], temperature=2.0)
    each = [np.exp(view / 2) / np.exp(view / 2).sum() for view in logits]
    assert np.exp(merged.log_probabilities) == pytest.approx(np.mean(each, axis=0), rel=1e-6)


def test_quarters_by_brightness_find_the_dark_pictures() -> None:
    levels = np.repeat(np.arange(100, dtype=np.uint8), 2)
    images = np.broadcast_to(levels[:, None, None, None], (200, 4, 4, 1)).copy()
    hits = levels >= 25
    found = list(slices(properties(images, None), hits))
    assert [(s.name, s.num_images, s.accuracy) for s in found] == [
        ("brightness", 50, 0.0) if i == 0 else ("brightness", 50, 1.0) for i in range(4)
    ], "contrast is the same everywhere, so it has no quarters"
    assert found[0].low == 0
    assert found[0].high == pytest.approx(24 / 255)


def test_sizes_are_a_property_where_they_are_known() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(40, 4, 4, 3)).astype(np.uint8)
    sides = np.array([100, 200] * 20)
    found = [s for s in slices(properties(images, sides), sides == 200) if s.name == "shorter side"]
    assert [(s.low, s.high, s.num_images, s.accuracy) for s in found] == [(100, 100, 20, 0.0), (200, 200, 20, 1.0)]

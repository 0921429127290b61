"""darkroom.data.splits and duplicates: properties of any set that is split."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.data.duplicates import same_pictures
from darkroom.data.splits import hold_out, quotas, split_rows
from darkroom.errors import UserError
from darkroom.packed import SplitName
from published_archives import sha256

fractions = st.floats(0.01, 0.99)
labelled = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(lambda labels: np.array(labels, np.int64))


def keys(count: int) -> list[str]:
    return [sha256(bytes([i])) for i in range(count)]


def different(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(count)


@given(labels=labelled, fraction=fractions, seed=st.integers(0, 5))
def test_each_class_gives_and_keeps_at_least_one(
    labels: np.ndarray[tuple[int], np.dtype[np.int64]], fraction: float, seed: int
) -> None:
    held_out = hold_out(labels, different(len(labels)), keys(len(labels)), fraction, str(seed))
    for label, count in Counter(labels.tolist()).items():
        taken = int(held_out[labels == label].sum())
        assert taken == 0 if count == 1 else 1 <= taken < count
        assert count == 1 or abs(taken - fraction * count) <= 1


@given(counts=st.dictionaries(st.integers(0, 9), st.integers(20, 500), min_size=1), fraction=st.floats(0.05, 0.95))
def test_the_whole_comes_to_its_fraction(counts: dict[int, int], fraction: float) -> None:
    assert sum(quotas(counts, fraction).values()) == pytest.approx(fraction * sum(counts.values()), abs=0.5)


@given(labels=labelled, fraction=fractions)
def test_the_same_twice_and_in_any_order(labels: np.ndarray[tuple[int], np.dtype[np.int64]], fraction: float) -> None:
    count = len(labels)
    first = hold_out(labels, different(count), keys(count), fraction, "salt")
    assert np.array_equal(first, hold_out(labels, different(count), keys(count), fraction, "salt"))
    backwards = hold_out(labels[::-1], different(count), keys(count)[::-1], fraction, "salt")
    assert np.array_equal(first, backwards[::-1])


def test_another_seed_is_another_choice() -> None:
    labels = np.zeros(200, np.int64)
    first, *others = (hold_out(labels, different(200), keys(200), 0.5, salt) for salt in ("val/0", "val/1", "test/0"))
    for other in others:
        assert 35 < (first & other).sum() < 65  # of 100 each: 50 by chance


def test_adding_a_picture_moves_few_others() -> None:
    labels = np.zeros(201, np.int64)
    before = hold_out(labels[:200], different(200), keys(200), 0.2, "val/0")
    after = hold_out(labels, different(201), keys(201), 0.2, "val/0")
    assert (before != after[:200]).sum() <= 1


@given(copies=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2)), min_size=4, max_size=60), fraction=fractions)
def test_equal_pictures_stay_together(copies: list[tuple[int, int]], fraction: float) -> None:
    ids = np.array([picture for picture, _ in copies], np.int64)
    labels = np.array([label for _, label in copies], np.int64)
    held_out = hold_out(labels, ids, keys(len(copies)), fraction, "salt")
    for picture in np.unique(ids):
        assert len(set(held_out[ids == picture].tolist())) == 1
        if len(set(labels[ids == picture].tolist())) > 1:
            assert not held_out[ids == picture].any()


@given(
    labels=st.lists(st.integers(0, 4), min_size=60, max_size=120),
    own=st.lists(st.sampled_from(["train", "train", "val", "test"]), min_size=120, max_size=120),
    seed=st.integers(0, 3),
)
def test_splits_are_disjoint_complete_and_keep_what_was_given(
    labels: list[int], own: list[SplitName], seed: int
) -> None:
    count = len(labels)
    given_splits: list[SplitName] = ["train", "train", "train", *own[3:count]]
    rows = split_rows(
        np.array(labels), given_splits, different(count), keys(count), list("abcde"),
        val_fraction=0.2, test_fraction=0.3, seed=seed,
    )  # fmt: skip
    assert list(rows) == ["train", "val", "test"]
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(count))
    assert all((np.diff(members) > 0).all() for members in rows.values())
    for name, members in rows.items():
        if name in given_splits and name != "train":
            assert members.tolist() == [i for i in range(count) if given_splits[i] == name]


def test_a_class_with_one_picture_stays_in_train_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    labels = np.array([0] * 10 + [1] * 10 + [2])
    rows = split_rows(
        labels, ["train"] * 21, different(21), keys(21), ["cat", "dog", "emu"],
        val_fraction=0.2, test_fraction=0.2, seed=0,
    )  # fmt: skip
    assert 20 in rows["train"]
    assert capsys.readouterr().out.splitlines() == [
        "too few pictures to hold any out for test: emu",
        "too few pictures to hold any out for val: emu",
    ]


def test_nothing_to_hold_out_is_an_error() -> None:
    with pytest.raises(UserError, match="no picture is left for"):
        split_rows(
            np.array([0, 1]), ["train"] * 2, different(2), keys(2), ["a", "b"],
            val_fraction=0.2, test_fraction=0.2, seed=0,
        )  # fmt: skip


def test_without_a_test_fraction_evaluation_has_nothing() -> None:
    with pytest.raises(UserError, match=r"data\.test_fraction: 0 leaves no test pictures"):
        split_rows(
            np.zeros(9, np.int64), ["train"] * 9, different(9), keys(9), ["a"],
            val_fraction=0.2, test_fraction=0.0, seed=0,
        )  # fmt: skip


def test_pictures_are_the_same_where_all_pixels_are() -> None:
    images = np.zeros((5, 4, 4, 3), np.uint8)
    images[1, 0, 0, 0] = images[3, 0, 0, 0] = 1
    images[4, 3, 3, 2] = 1
    assert same_pictures(images).tolist() == [0, 1, 0, 1, 2]

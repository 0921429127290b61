"""Pictures from a memory map: the same whether read ahead or not, and read ahead in the right places."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from darkroom.training import shelf
from darkroom.training.shelf import Shelf
from sessions import Digits, digits, records, same_weights, session, small

CPU = torch.device("cpu")


@pytest.fixture
def mapped(tmp_path: Path) -> Digits:
    plain = digits(0, 150)
    np.save(tmp_path / "images.npy", plain.images)
    return Digits(np.load(tmp_path / "images.npy", mmap_mode="r"), plain.labels)


def test_places_are_taken_in_their_order(mapped: Digits) -> None:
    places = np.array([5, 3, 3, 149])
    assert np.array_equal(Shelf(mapped.images, CPU).take(places).numpy(), np.array(mapped.images)[places])


def test_a_set_larger_than_memory_is_read_ahead_picture_by_picture(
    mapped: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, start, length, _advice: read.append((start, length)))
    Shelf(mapped.images, CPU).read_ahead(np.array([7, 2]))
    assert read == [], "a small set is in the page cache"
    monkeypatch.setattr(shelf, "_memory", lambda: 1000)
    large = Shelf(mapped.images, CPU)
    large.read_ahead(np.array([7, 2]))
    content = Path(str(mapped.images.filename)).read_bytes()  # type: ignore[attr-defined]  # a memory map's
    assert [content[start : start + length] for start, length in read] == [
        mapped.images[2].tobytes(), mapped.images[7].tobytes(),
    ]  # fmt: skip


def test_reading_ahead_changes_nothing(mapped: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = session(small(), digits(0, 150), digits(150, 250))
    records(plain)
    monkeypatch.setattr(shelf, "_memory", lambda: 1000)
    ours = session(small(), mapped, digits(150, 250))
    records(ours)
    assert ours.batches.shelf._file is not None
    assert same_weights(ours.result().weights, plain.result().weights)


def test_a_set_that_is_no_file_is_simply_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "_memory", lambda: 1)
    few = Shelf(digits(0, 10).images, CPU)
    few.read_ahead(np.array([1]))
    assert few.take(np.array([1])).shape == (1, 8, 8, 1)

"""darkroom.sheets: each picture in its place, captions under it, the same bytes each time."""

from __future__ import annotations

import io

import numpy as np
import pytest

from darkroom.sheets import GAP, LINE_HEIGHT, contact_sheet, picture, shorten


def pictures(count: int, size: int = 8, channels: int = 1) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The i-th has the value 10 · i everywhere."""
    values = (np.arange(count, dtype=np.uint8) * 10).reshape(-1, 1, 1, 1)
    return np.broadcast_to(values, (count, size, size, channels)).copy()


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_lie_row_by_row(channels: int) -> None:
    sheet = np.asarray(contact_sheet(pictures(5, channels=channels), [""] * 5, columns=3, scale=2))
    cell = 16 + GAP
    assert sheet.shape == (2 * cell + GAP, 3 * cell + GAP, 3)
    for i in range(5):
        top, left = GAP + i // 3 * cell, GAP + i % 3 * cell
        assert (sheet[top : top + 16, left : left + 16] == 10 * i).all()
    assert (sheet[:GAP] == 255).all()


def test_small_pictures_are_enlarged_until_they_can_be_seen() -> None:
    assert contact_sheet(pictures(1), [""], columns=1).width == 64 + 2 * GAP
    assert contact_sheet(pictures(1, size=100), [""], columns=1).width == 100 + 2 * GAP


def test_captions_stand_under_their_pictures() -> None:
    sheet = np.asarray(contact_sheet(pictures(2), ["cat", "dog\n0.98"], columns=2))
    assert sheet.shape[0] == 64 + 2 * LINE_HEIGHT + 2 * GAP
    under = sheet[GAP + 64 : -GAP]
    assert (under[:LINE_HEIGHT, : 64 + GAP] < 128).any()
    assert (under[LINE_HEIGHT:, : 64 + GAP] == 255).all()  # one line only
    assert (under[LINE_HEIGHT:, 64 + GAP :] < 128).any()


def test_a_long_caption_is_cut_with_an_ellipsis() -> None:
    assert shorten("cat", 64) == "cat"
    cut = shorten("a very long name of a class", 64)
    assert cut.endswith("…")
    assert "a very long name of a class".startswith(cut[:-1])


def test_the_same_sheet_has_the_same_bytes() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    contact_sheet(pictures(3), ["é", "字", ""], columns=2).save(first, "PNG")
    contact_sheet(pictures(3), ["é", "字", ""], columns=2).save(second, "PNG")
    assert first.getvalue() == second.getvalue()


def test_a_picture_alone() -> None:
    assert picture(pictures(1)[0], scale=3).size == (24, 24)

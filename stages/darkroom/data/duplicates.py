"""The same picture twice: in two splits it makes scores too good, under two labels it teaches nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from darkroom.data.collection import Collection
from darkroom.door import say
from darkroom.errors import UserError
from darkroom.packed import SplitName

SHOWN = 20
"""pairs that are named one by one"""


def same_pictures(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """A number for each of N×H×W×C, equal where the pixels are: what the network cannot tell apart is one picture."""
    seen: dict[bytes, int] = {}
    return np.array(
        [seen.setdefault(hashlib.sha256(image.tobytes()).digest(), len(seen)) for image in images], np.int64
    )


def check_duplicates(
    collection: Collection,
    ids: NDArray[np.int64],
    rows: Mapping[SplitName, NDArray[np.int64]],
    *,
    name: str,
    allowed: bool,
) -> int:
    """How many pictures of validation and test are in another split too.

    Raises UserError where there are any in one's own pictures, unless allowed. In a published set they are counted and
    said: its scores are compared with other people's, who have them too.
    """
    pairs = _pairs(ids, rows)
    if pairs:
        lines = [f"  {collection.sources[first]} = {collection.sources[second]}" for first, second in pairs[:SHOWN]]
        if len(pairs) > SHOWN:
            lines.append(f"  and {len(pairs) - SHOWN:,} more")
        count = f"{len(pairs):,} picture{'s are' if len(pairs) > 1 else ' is'} in two splits"
        if name != "image_folder":
            say(f"{count}, as published")
        elif allowed:
            say("\n".join([f"{count} (data.on_duplicate: allow):", *lines]))
        else:
            advice = "remove one of each, or set data.on_duplicate: allow to go on with them"
            raise UserError("\n".join([f"{count}, so that scores would be too good:", *lines, advice]))
    _say_two_labels(collection, ids)
    return len(pairs)


def _pairs(ids: NDArray[np.int64], rows: Mapping[SplitName, NDArray[np.int64]]) -> list[tuple[int, int]]:
    """(row in an earlier split, row in a later one) of the same picture."""
    first: dict[int, int] = {}
    pairs = []
    for members in rows.values():
        pairs += [(first[picture], row) for row in members.tolist() if (picture := int(ids[row])) in first]
        for row in members.tolist():
            first.setdefault(int(ids[row]), row)
    return pairs


def _say_two_labels(collection: Collection, ids: NDArray[np.int64]) -> None:
    first: dict[int, int] = {}
    pairs = []
    for row, picture in enumerate(ids.tolist()):
        other = first.setdefault(picture, row)
        if collection.labels[other] != collection.labels[row]:
            pairs.append((other, row))
    if pairs:
        other, row = pairs[0]
        example = f"{collection.sources[other]} = {collection.sources[row]}"
        say(f"{len(pairs):,} picture{'s have' if len(pairs) > 1 else ' has'} two labels, such as {example}")

"""Which pictures are held out: stratified, the same on every machine, and moving little when pictures are added.

The choice is by a hash of each picture and the seed, not by a random generator, whose stream may change with numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from darkroom.door import say
from darkroom.errors import UserError, some_of
from darkroom.packed import SPLITS, SplitName


def split_rows(
    labels: NDArray[np.int64],
    own: Sequence[SplitName],
    ids: NDArray[np.int64],
    keys: Sequence[str],
    classes: Sequence[str],
    *,
    val_fraction: float,
    test_fraction: float,
    seed: int,
) -> dict[SplitName, NDArray[np.int64]]:
    """Rows of each split, in order. The set's own splits stay; what it lacks is held out of its training pictures.

    `ids`: equal for equal pictures, which stay together. `keys`: N texts that know each picture again.
    Raises UserError where a split would be empty.
    """
    splits = np.array(own)
    fractions: dict[SplitName, float] = {"test": test_fraction, "val": val_fraction}
    for name, fraction in fractions.items():
        if name not in own:
            if not fraction:
                raise UserError(
                    f"data.{name}_fraction: 0 leaves no {name} pictures, which evaluation needs "
                    f"(above 0, below 1; or bring a folder {name}/)"
                )
            pool = np.flatnonzero(splits == "train")
            held_out = hold_out(
                labels[pool], ids[pool], [keys[row] for row in pool.tolist()], fraction, f"{name}/{seed}"
            )
            splits[pool[held_out]] = name
            _say_too_small(labels[pool], held_out, classes, name)
    rows: dict[SplitName, NDArray[np.int64]] = {name: np.flatnonzero(splits == name) for name in SPLITS}
    for name, members in rows.items():
        if not len(members):
            raise UserError(
                f"no picture is left for {name}: a class needs three different ones, to train on, validate and test"
            )
    return rows


def hold_out(
    labels: NDArray[np.int64], ids: NDArray[np.int64], keys: Sequence[str], fraction: float, salt: str
) -> NDArray[np.bool_]:
    """Which of N pictures are held out: `fraction` of each class, of two or more at least one and never all.

    Equal pictures count as one and share their fate; one that has two labels is never held out.
    """
    key_of: dict[int, str] = {}
    label_of: dict[int, int | None] = {}
    for picture, key, label in zip(ids.tolist(), keys, labels.tolist(), strict=True):
        key_of[picture] = min(key, key_of.get(picture, key))
        label_of[picture] = label if label_of.get(picture, label) == label else None
    members: dict[int, list[int]] = {}
    for picture, single in label_of.items():
        if single is not None:
            members.setdefault(single, []).append(picture)
    chosen: list[int] = []
    for label, quota in quotas({label: len(pictures) for label, pictures in members.items()}, fraction).items():
        chosen += sorted(members[label], key=lambda picture: _draw(salt, key_of[picture]))[:quota]
    return np.isin(ids, chosen)


def _draw(salt: str, key: str) -> bytes:
    return hashlib.sha256(f"{salt}/{key}".encode()).digest()


def quotas(counts: Mapping[int, int], fraction: float) -> dict[int, int]:
    """How many of each class: `fraction` of all, by largest remainders; of two or more at least one, never all."""
    exact = {label: fraction * count for label, count in counts.items()}
    taken = {label: int(share) for label, share in exact.items()}
    left = int(fraction * sum(counts.values()) + 0.5) - sum(taken.values())
    for label in sorted(counts, key=lambda label: (taken[label] - exact[label], label))[: max(left, 0)]:
        taken[label] += 1
    return {label: min(max(taken[label], 1), count - 1) if count > 1 else 0 for label, count in counts.items()}


def _say_too_small(
    labels: NDArray[np.int64], held_out: NDArray[np.bool_], classes: Sequence[str], name: SplitName
) -> None:
    small = [classes[label] for label in np.setdiff1d(labels, labels[held_out]).tolist()]
    if small:
        say(f"too few pictures to hold any out for {name}: {some_of(small)}")

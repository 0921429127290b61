"""Decodes, checks, splits and packs the pictures.

Reads   data/raw
Writes  data/packed, plots/data, metrics/data.json
Keys    data.image_size, data.resize, data.channels, data.val_fraction, data.test_fraction, data.seed,
        data.on_bad_image, data.on_duplicate

data/packed holds a memory map of each split with splits.json and meta.json, plots/data a contact sheet of each class.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

from darkroom.door import enter, say
from darkroom.params import read_params

KEYS = (
    "data.image_size",
    "data.resize",
    "data.channels",
    "data.val_fraction",
    "data.test_fraction",
    "data.seed",
    "data.on_bad_image",
    "data.on_duplicate",
)


def main() -> None:
    data = read_params().data
    prepare(
        Path("data/raw"),
        Path("data/packed"),
        metrics=Path("metrics/data.json"),
        plots=Path("plots/data"),
        **data.model_dump(include={key.removeprefix("data.") for key in KEYS}),
    )


def prepare(
    raw: Path,
    packed: Path,
    *,
    metrics: Path,
    plots: Path,
    image_size: int | Literal["auto"],
    resize: str,
    channels: int | Literal["auto"],
    val_fraction: float,
    test_fraction: float,
    seed: int,
    on_bad_image: str,
    on_duplicate: str,
) -> dict[str, Any]:
    """Packs what download left in `raw`; returns what `metrics` then holds. Raises UserError, and then writes nothing."""
    from darkroom.data import collection, duplicates, packing, splits, summary
    from darkroom.data.manifest import read_manifest
    from darkroom.files import write_json, written_folder

    manifest = read_manifest(raw)
    packed.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".decoded.", dir=packed.parent, ignore_cleanup_errors=True) as scratch:
        shape = collection.Shape(image_size, channels, resize)
        found = collection.collect(raw, manifest, shape, on_bad_image, Path(scratch, "images"))
        collection.check_classes(found)
        ids = duplicates.same_pictures(found.images)
        rows = splits.split_rows(
            found.labels, found.splits, ids, found.keys, found.classes,
            val_fraction=val_fraction, test_fraction=test_fraction, seed=seed,
        )  # fmt: skip
        num_duplicates = duplicates.check_duplicates(
            found, ids, rows, name=manifest.name, allowed=on_duplicate == "allow"
        )
        with written_folder(packed) as draft:
            meta = packing.pack(found, rows, draft, name=manifest.name, resize=resize)
            with written_folder(plots) as sheets:
                num_sheets = summary.draw_sheets(found, rows["train"], sheets)
    numbers = summary.metrics(meta, num_left_out=len(found.left_out), num_duplicates=num_duplicates)
    write_json(metrics, numbers)
    counts = ", ".join(f"{len(members):,} {split}" for split, members in rows.items())
    size = f"{meta.image_size}×{meta.image_size}×{meta.channels}"
    say(f"wrote {packed}: {meta.name}, {len(meta.classes)} classes, {size}, {counts}")
    say(f"wrote {metrics}, and {num_sheets} contact sheets in {plots}")
    return numbers


if __name__ == "__main__":
    enter(main)

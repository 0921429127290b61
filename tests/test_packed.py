"""darkroom.packed: the memory maps between prepare and the later stages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from darkroom.errors import UserError
from darkroom.packed import SPLITS, Meta, open_packed, write_meta

META = Meta(
    name="digits",
    classes=["zero", "one", "ünïcode"],
    image_size=8,
    channels=3,
    resize="crop",
    mean=[0.1, 0.2, 0.3],
    std=[0.4, 0.5, 0.6],
    counts={split: [2, 3, 0] for split in SPLITS},
    sha256="0" * 64,
    split_sha256=dict.fromkeys(SPLITS, "0" * 64),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for split in SPLITS:
        np.save(tmp_path / f"{split}.images.npy", generator.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8))
        np.save(tmp_path / f"{split}.labels.npy", generator.integers(0, 3, 5))
    write_meta(tmp_path, META)
    return tmp_path


def test_what_was_written_is_read_back(folder: Path):
    packed = open_packed(folder)
    assert packed.meta == META
    split = packed.split("val")
    assert len(split) == 5
    assert (split.images.shape, split.images.dtype) == ((5, 8, 8, 3), np.uint8)
    assert (split.labels.shape, split.labels.dtype) == ((5,), np.int64)
    assert np.array_equal(split.images, np.load(folder / "val.images.npy"))


def test_the_arrays_are_maps_that_nobody_can_write_to(folder: Path):
    images = open_packed(folder).split("train").images
    assert isinstance(images, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 0


def test_a_flipped_byte_is_seen_in_the_split_that_is_verified(folder: Path):
    hashes = {split: open_packed(folder).split(split).sha256() for split in SPLITS}
    assert len(set(hashes.values())) == 3
    write_meta(folder, replace(META, split_sha256=hashes))
    open_packed(folder, *SPLITS)
    path = folder / "val.images.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    open_packed(folder, "train", "test")
    with pytest.raises(
        UserError, match=r"val\.\*\.npy do not match their sha256 in meta\.json.*--no-run-cache prepare"
    ):
        open_packed(folder, "val")


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # it is only looked at
def test_a_permuted_view_is_channels_last_without_a_copy(folder: Path):
    images = torch.from_numpy(open_packed(folder).split("train").images)
    view = images.permute(0, 3, 1, 2)
    assert view.shape == (5, 3, 8, 8)
    assert view.data_ptr() == images.data_ptr()
    assert view.is_contiguous(memory_format=torch.channels_last)


def test_a_split_is_touched_only_when_asked_for(folder: Path):
    (folder / "test.images.npy").unlink()
    packed = open_packed(folder)
    assert len(packed.split("train")) == 5
    with pytest.raises(UserError, match="test.images.npy is missing: run dvc repro prepare"):
        packed.split("test")


def test_an_absent_set_says_what_to_run(tmp_path: Path):
    with pytest.raises(UserError, match=r"packed is missing: run dvc repro prepare"):
        open_packed(tmp_path / "packed")
    with pytest.raises(UserError, match=r"meta.json is missing: run dvc repro prepare"):
        open_packed(tmp_path)


@pytest.mark.parametrize("values", [{}, {"name": "digits"}, {"unknown": 1}, []])
def test_a_description_of_another_version_says_so(folder: Path, values: object):
    (folder / "meta.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="meta.json is of another version: run dvc repro prepare"):
        open_packed(folder)


@pytest.mark.parametrize("damage", ["cut", "text", "empty", "pickle"])
def test_a_damaged_array_is_named(folder: Path, damage: str):
    path = folder / "train.images.npy"
    content = path.read_bytes()
    if damage == "pickle":
        np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    else:
        path.write_bytes({"cut": content[:-1], "text": b"<html>", "empty": b""}[damage])
    with pytest.raises(UserError, match=r"train.images.npy is damaged \(.*\): run dvc repro prepare"):
        open_packed(folder).split("train")


def test_the_description_is_sorted_json_that_git_can_show(folder: Path):
    write_meta(folder, replace(META, mean=[0.0], std=[1.0], channels=1))
    values = json.loads((folder / "meta.json").read_text())
    assert list(values) == sorted(values)
    assert "ünïcode" in (folder / "meta.json").read_text()

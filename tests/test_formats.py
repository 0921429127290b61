"""darkroom.data's readers: the published formats give the pictures that went in; anything else is damaged."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from darkroom.data.cifar import read_batch, read_names
from darkroom.data.formats import read_digits, read_idx, read_idx_pair, read_svhn
from darkroom.data.known import KNOWN
from darkroom.errors import UserError
from darkroom.params.data import DataName
from darkroom.sources.catalogue import CATALOGUE
from published_archives import (
    Labelled,
    cifar10_files,
    cifar100_files,
    idx,
    mnist_files,
    pictures,
    python2_pickle,
    svhn_files,
)


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def same(found: Labelled, expected: Labelled) -> bool:
    assert found[0].dtype == np.uint8
    assert found[1].dtype == np.int64
    return np.array_equal(found[0], expected[0]) and np.array_equal(found[1], expected[1])


@pytest.mark.parametrize(
    ("name", "write", "size", "channels", "num_classes"),
    [
        ("mnist", mnist_files, 28, 1, 10),
        ("fashion_mnist", mnist_files, 28, 1, 10),
        ("cifar10", cifar10_files, 32, 3, 10),
        ("cifar100", cifar100_files, 32, 3, 100),
        ("svhn", svhn_files, 32, 3, 10),
    ],
)
def test_what_was_packed_comes_out(name, write, size, channels, num_classes, tmp_path) -> None:  # type: ignore[no-untyped-def]
    train = pictures(2 * num_classes, size, channels, num_classes)
    test = pictures(num_classes, size, channels, num_classes, seed=1)
    known = KNOWN[name]
    found = known.read(put(tmp_path, write(train, test)))
    assert same(found["train"], train)
    assert same(found["test"], test)
    assert len(set(known.classes(tmp_path))) == num_classes


def test_cifars_names_are_those_in_the_file(tmp_path: Path) -> None:
    put(tmp_path, {"meta": python2_pickle({b"fine_label_names": [b"apple", b"aquarium_fish"]})})
    assert read_names(tmp_path / "meta", b"fine_label_names") == ["apple", "aquarium_fish"]


def test_digits_are_scaled_to_all_of_eight_bits(tmp_path: Path) -> None:
    values = [*range(17), *[0] * 47]
    put(tmp_path, {"digits.csv": f"{','.join(map(str, values))},7\n".encode()})
    images, labels = read_digits(tmp_path / "digits.csv")
    assert images.reshape(-1)[:17].tolist() == [
        0,
        16,
        32,
        48,
        64,
        80,
        96,
        112,
        128,
        143,
        159,
        175,
        191,
        207,
        223,
        239,
        255,
    ]
    assert labels.tolist() == [7]


def test_digits_are_scikit_learns() -> None:
    """The file that is read without importing scikit-learn is what load_digits gives."""
    from sklearn.datasets import load_digits

    from download import _scikit_learns_data

    images, labels = read_digits(_scikit_learns_data() / "digits.csv.gz")
    bunch = load_digits()
    assert np.array_equal(labels, bunch.target)
    assert np.abs(images[..., 0] - bunch.images * 255 / 16).max() <= 0.5


def test_every_set_has_a_source_and_a_reader() -> None:
    names = set(DataName.__args__) - {"image_folder"}  # type: ignore[attr-defined]  # a Literal's choices
    assert names == set(CATALOGUE) == set(KNOWN)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0", b"text that is no IDX", idx(np.zeros((3, 4), np.uint8))[:-1], bytes([0, 0, 13, 1, 0, 0, 0, 0])],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, {"images": content})
    with pytest.raises(UserError, match=r"images is damaged .*: run dvc repro download"):
        read_idx(tmp_path / "images")


def test_idx_files_that_do_not_belong_together(tmp_path: Path) -> None:
    put(tmp_path, {"images": idx(np.zeros((3, 28, 28), np.uint8)), "labels": idx(np.zeros(2, np.uint8))})
    with pytest.raises(UserError, match="damaged"):
        read_idx_pair(tmp_path / "images", tmp_path / "labels")


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    ("content", "how"),
    [
        (pickle.dumps(Evil(), 2), "asks for"),
        (b"", "Ran out of input"),
        (python2_pickle({b"data": np.zeros((2, 3072), np.uint8)}), "no CIFAR batch"),
        (python2_pickle({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}), "with 1 labels"),
        (python2_pickle({b"labels": [1]})[:-4], ""),
    ],
)
def test_a_pickle_can_hold_arrays_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, {"batch": content})
    with pytest.raises(UserError, match=rf"batch is damaged \(.*{how}"):
        read_batch(tmp_path / "batch", b"labels")
    assert not Path("evil").exists()


def test_a_damaged_mat_file_is_named(tmp_path: Path) -> None:
    put(tmp_path, {"train_32x32.mat": b"no MATLAB file"})
    with pytest.raises(UserError, match=r"train_32x32\.mat is damaged"):
        read_svhn(tmp_path / "train_32x32.mat")

"""darkroom.data.layout: what folders mean."""

from __future__ import annotations

import random

import pytest

from darkroom.data.layout import Layout, read_layout
from darkroom.errors import UserError


def layout(*paths: str, empty: tuple[str, ...] = ()) -> Layout:
    return read_layout(paths, empty)


def placed(found: Layout) -> dict[str, tuple[str, str]]:
    places = zip(found.paths, found.splits, found.labels, strict=True)
    return {path: (split, found.classes[label]) for path, split, label in places}


def test_folders_are_classes_in_alphabetical_order() -> None:
    found = layout("dog/1.jpg", "cat/2.jpg", "cat/1.jpg", "cat/deep/er/0.jpg", "Emu/1.jpg")
    assert found.classes == ["Emu", "cat", "dog"]
    assert found.paths == sorted(found.paths)
    assert placed(found)["cat/deep/er/0.jpg"] == ("train", "cat")
    assert set(found.splits) == {"train"}


@pytest.mark.parametrize(
    "folders", [("train", "val", "test"), ("Training", "validation", "TEST"), ("train", "valid", "test")]
)
def test_splits_above_the_classes(folders: tuple[str, str, str]) -> None:
    train, val, test = folders
    found = layout(f"{train}/cat/1.jpg", f"{train}/dog/x/2.jpg", f"{val}/dog/3.jpg", f"{test}/cat/4.jpg")
    assert found.classes == ["cat", "dog"]
    assert placed(found) == {
        f"{train}/cat/1.jpg": ("train", "cat"),
        f"{train}/dog/x/2.jpg": ("train", "dog"),
        f"{val}/dog/3.jpg": ("val", "dog"),
        f"{test}/cat/4.jpg": ("test", "cat"),
    }


def test_train_alone_is_a_split() -> None:
    assert layout("train/cat/1.jpg", "train/dog/1.jpg").classes == ["cat", "dog"]


def test_a_train_may_be_a_class_too() -> None:
    assert layout("train/1.jpg", "bus/1.jpg").classes == ["bus", "train"]
    assert layout("train/steam/1.jpg", "bus/red/1.jpg").classes == ["bus", "train"]
    assert layout("train/1.jpg", "test/1.jpg").classes == ["test", "train"]


def test_labels_are_those_of_train_where_a_split_lacks_a_class() -> None:
    found = layout("train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", "val/c/2.jpg", "val/a/2.jpg")
    assert placed(found)["val/c/2.jpg"] == ("val", "c")
    assert found.labels[found.paths.index("val/c/2.jpg")] == 2


def test_the_order_of_the_files_does_not_matter() -> None:
    paths = [f"{split}/{name}/{i}.jpg" for split in ("train", "test") for name in "abc" for i in range(9)]
    shuffled = random.Random(0).sample(paths, len(paths))
    assert placed(layout(*shuffled)) == placed(layout(*paths))
    assert layout(*shuffled).paths == layout(*paths).paths


def test_accents_are_spelled_one_way() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert layout(f"{decomposed}/1.jpg", f"{composed}/2.jpg", "tea/1.jpg").classes == [composed, "tea"]


def test_pictures_beside_the_classes_of_a_split_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = layout("train/a/1.jpg", "train/b/1.jpg", "test/loose.jpg", "test/a/1.jpg")
    assert "test/loose.jpg" not in found.paths
    assert capsys.readouterr().out == "left out, in no class folder: test/loose.jpg\n"


@pytest.mark.parametrize(
    ("paths", "empty", "problem"),
    [
        (["cat/1.jpg", "dog/1.jpg"], ["emu"], "no picture in emu"),
        (["train/cat/1.jpg", "train/dog/1.jpg"], ["train/emu"], "no picture in train/emu"),
        (["cat/1.jpg"], [], r"one class \(cat\), at least two"),
        (["pets/cat/1.jpg", "pets/dog/1.jpg"], [], "let data.folder end in /pets"),
        (["val/cat/1.jpg", "test/cat/1.jpg"], [], "test, val but no train/"),
        (["train/cat/1.jpg", "val/cat/1.jpg", "extra/cat/1.jpg"], [], "extra beside train, val"),
        (["train/cat/1.jpg", "val/cat/1.jpg", "valid/cat/1.jpg"], [], "train, val, valid: two folders for one split"),
        (["train/cat/1.jpg", "train/dog/1.jpg", "val/Cat/1.jpg"], [], r"val: Cat \(train has cat, dog\)"),
    ],
)
def test_folders_that_make_no_classes_say_why(paths: list[str], empty: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem) as fault:
        read_layout(paths, empty)
    assert str(fault.value).startswith("data.folder: ")


def test_an_empty_class_of_a_split_that_is_not_train_is_no_error() -> None:
    assert layout("train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", empty=("val/b", "test")).classes == ["a", "b"]

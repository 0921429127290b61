"""darkroom.sources: one's own pictures are found and copied; containers give nothing but what was named."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
from pathlib import Path

import pytest

from darkroom.errors import UserError
from darkroom.sources.catalogue import CATALOGUE
from darkroom.sources.containers import WrongContentError, unpack
from darkroom.sources.own import copy, find
from darkroom.sources.progress import size
from published_archives import sha256


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def test_pictures_are_found_in_any_depth_and_case(tmp_path: Path) -> None:
    put(tmp_path, "dog/b.JPG", "cat/deep/er/a.jpeg", "cat/c.Png", "train/cat/1.webp")
    found = find(tmp_path)
    assert found.pictures == ["cat/c.Png", "cat/deep/er/a.jpeg", "dog/b.JPG", "train/cat/1.webp"]
    assert found.left_out == found.empty_folders == []


def test_litter_is_neither_picture_nor_class(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "cat/._1.jpg", "cat/.DS_Store", "cat/Thumbs.db", "cat/desktop.ini", ".DS_Store")
    put(tmp_path, ".ipynb_checkpoints/1.jpg", "cat/.ipynb_checkpoints/1-checkpoint.jpg", "__MACOSX/cat/1.jpg")
    put(tmp_path, "cat/@eaDir/1.jpg", "README.md", "pets.dvc", ".gitignore")
    found = find(tmp_path)
    assert found.pictures == ["cat/1.jpg"]
    assert found.left_out == found.empty_folders == []


def test_what_is_no_picture_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "cat/1.jpg", "cat/notes.txt", "loose.jpg", *[f"cat/{i}.heic" for i in range(9)])
    found = find(tmp_path)
    assert found.left_out == sorted(["cat/notes.txt", "loose.jpg", *[f"cat/{i}.heic" for i in range(9)]])
    copy(tmp_path, found, tmp_path / "raw")
    assert "cat/0.heic" in (said := capsys.readouterr().out)
    assert "and 6 more" in said
    assert not (tmp_path / "raw" / "loose.jpg").exists()


def test_empty_folders_of_the_first_two_levels_are_kept_in_mind(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg", "train/cat/1.jpg", "fish/notes.txt")
    for name in ("dog", "train/dog", "train/cat/deeper", "bird/nest"):
        (tmp_path / name).mkdir(parents=True)
    assert find(tmp_path).empty_folders == ["bird", "bird/nest", "dog", "fish", "train/dog"]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([], "holds no pictures\n"),
        (["a.txt", "b/c.csv"], "holds no pictures but a.txt, b/c.csv"),
        (["a.jpg", "b.jpg"], r"lie in no class folder \(a.jpg, b.jpg\)"),
    ],
)
def test_a_folder_without_classes_says_what_is_expected(tmp_path: Path, names: list[str], problem: str) -> None:
    put(tmp_path, *names)
    with pytest.raises(UserError, match=problem) as fault:
        find(tmp_path)
    assert "cat/1.jpg" in str(fault.value)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", "1.jpg", "more/2.jpg")
    own = tmp_path / "own"
    (own / "dog").mkdir(parents=True)
    (own / "cat").symlink_to(tmp_path / "elsewhere")
    (own / "dog" / "3.jpg").symlink_to(tmp_path / "elsewhere" / "1.jpg")
    (own / "dog" / "round").symlink_to(own)
    found = find(own)
    assert found.pictures == ["cat/1.jpg", "cat/more/2.jpg", "dog/3.jpg"]
    copy(own, found, tmp_path / "raw")
    assert not (tmp_path / "raw" / "dog" / "3.jpg").is_symlink()
    assert (tmp_path / "raw" / "dog" / "3.jpg").read_bytes() == b"1.jpg"


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    put(tmp_path, "cat/1.jpg")
    (tmp_path / "cat" / "2.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(UserError, match=r"cat/2\.jpg in .*: links that lead nowhere"):
        find(tmp_path)


def test_copies_leave_the_originals_alone(tmp_path: Path) -> None:
    own = tmp_path / "own"
    put(own, "cat/1.jpg", "dog/2.jpg", "dog/empty.jpg")
    (own / "dog" / "empty.jpg").write_bytes(b"")
    hashes = copy(own, find(own), tmp_path / "raw")
    assert hashes == {
        "cat/1.jpg": sha256(b"cat/1.jpg"),
        "dog/2.jpg": sha256(b"dog/2.jpg"),
        "dog/empty.jpg": sha256(b""),
    }
    for name in hashes:
        assert (tmp_path / "raw" / name).read_bytes() == (own / name).read_bytes()
        assert not (tmp_path / "raw" / name).samefile(own / name)


def test_without_the_kernels_help_copies_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    put(tmp_path / "own", "cat/1.jpg")
    assert copy(tmp_path / "own", find(tmp_path / "own"), tmp_path / "raw") == {"cat/1.jpg": sha256(b"cat/1.jpg")}


def test_a_picture_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    put(tmp_path / "own", "cat/1.jpg")
    found = find(tmp_path / "own")
    (tmp_path / "own" / "cat" / "1.jpg").unlink()
    with pytest.raises(UserError, match=r"data\.folder: .*1\.jpg cannot be read"):
        copy(tmp_path / "own", found, tmp_path / "raw")


def test_an_archive_writes_only_what_was_named(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("../wanted", "/etc/other", "link"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"text"))
    unpack(archive, {"wanted": sha256(b"text")}, tmp_path / "into")
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "a.tar.gz", "into", "into/wanted",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.gz", gzip.compress(b"x" * 5000)[:-20], "a.gz is damaged"),
        ("a.gz", b"<html>oops", "is a web page"),
        ("a.gz", b"", "is empty"),
        ("a.gz", gzip.compress(b"other"), "instead of"),
        ("a.tar.gz", gzip.compress(b"no tar" * 200), "a.tar.gz is damaged"),
        ("a.tar.gz", b"text", "a.tar.gz is damaged"),
        ("a", b"other", "instead of"),
    ],
    ids=["cut", "web page", "empty", "other, packed", "no tar", "no archive", "other"],  # gzip's bytes hold the time
)
def test_what_was_not_published_leaves_nothing(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WrongContentError) as fault:
        unpack(tmp_path / name, {"wanted": sha256(b"text")}, tmp_path / "into")
    assert problem in str(fault.value)
    assert not list((tmp_path / "into").glob("*"))


def test_a_member_that_is_missing_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz"):
        pass
    with pytest.raises(WrongContentError, match=r"a\.tar\.gz does not hold one, two"):
        unpack(tmp_path / "a.tar.gz", {"one": "", "two": ""}, tmp_path)


def test_the_catalogue_is_complete() -> None:
    for name, entry in CATALOGUE.items():
        assert all(len(checksum) == 64 for checksum in entry.contents.values()), name
        assert all(address.endswith("/") for address in entry.addresses), name
        assert len(entry.contents) == sum(len(archive.contents) for archive in entry.archives), name
    checksums = [checksum for entry in CATALOGUE.values() for checksum in entry.contents.values()]
    assert len(checksums) == len(set(checksums))


def test_sizes_for_people() -> None:
    assert [size(count) for count in (999, 1000, 26_421_856, 5 * 10**12)] == [
        "999 bytes",
        "1.0 kB",
        "26.4 MB",
        "5.0 TB",
    ]

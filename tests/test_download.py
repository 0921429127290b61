"""stages/download.py: the whole verified set, or what was there before."""

from __future__ import annotations

import errno
import gzip
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from darkroom.errors import UserError
from darkroom.sources import catalogue, transfer
from download import KEYS, download
from pipelines import REPOSITORY
from published_archives import (
    Site,
    cifar10_files,
    cifar100_files,
    gzipped_set,
    mnist_files,
    pictures,
    plain_set,
    serve,
    sha256,
    svhn_files,
    tarred_set,
)

FILES = mnist_files(pictures(20, 28, 1, 10), pictures(10, 28, 1, 10, seed=1))
FASHION = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(transfer, "FIRST_PAUSE", 0.01)
    (tmp_path / "own").mkdir()


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as site:
        yield site


@pytest.fixture
def mnist(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site that publishes a small MNIST, and a catalogue that knows it."""
    published, site.files = gzipped_set(FILES, site.address)
    monkeypatch.setitem(catalogue.CATALOGUE, "mnist", published)
    return site


def fetch(name: str = "mnist", source: str = "", folder: str | Path = "own", root: str = ".") -> dict[str, Any]:
    return download(Path("data/raw"), name=name, source=source, folder=Path(folder), root=Path(root).resolve())


def content(folder: str = "data/raw") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != "manifest.json"}


def manifest() -> dict[str, Any]:
    values: dict[str, Any] = json.loads(Path("data/raw/manifest.json").read_text())
    return values


def test_the_stage_takes_the_keys_that_dvc_yaml_lists() -> None:
    stages = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]
    assert list(KEYS) == stages["download"]["params"]


# From the web


def test_a_set_is_downloaded_unpacked_and_named(mnist: Site) -> None:
    assert fetch() == {"num_files": 4, "num_bytes": sum(map(len, FILES.values()))}
    assert content() == FILES
    assert manifest() == {
        "name": "mnist",
        "origin": mnist.address,
        "files": {name: sha256(file) for name, file in FILES.items()},
    }


@pytest.mark.parametrize(
    ("name", "published", "files"),
    [
        ("cifar10", "cifar-10-python.tar.gz", cifar10_files(pictures(20, 32, 3, 10), pictures(10, 32, 3, 10, 1))),
        (
            "cifar100",
            "cifar-100-python.tar.gz",
            cifar100_files(pictures(100, 32, 3, 100), pictures(100, 32, 3, 100, 1)),
        ),
    ],
)
def test_of_a_tar_the_named_members_are_taken(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str, published: str, files: dict[str, bytes]
) -> None:
    entry, site.files = tarred_set(published, "somewhere/../else", files, site.address)
    monkeypatch.setitem(catalogue.CATALOGUE, name, entry)
    fetch(name)
    assert content() == files
    assert not Path("data/else").exists()


def test_files_without_a_container(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    files = svhn_files(pictures(12, 32, 3, 10), pictures(10, 32, 3, 10, 1))
    entry, site.files = plain_set(files, site.address)
    monkeypatch.setitem(catalogue.CATALOGUE, "svhn", entry)
    fetch("svhn")
    assert content() == files


def test_a_second_download_uses_the_verified_copy(mnist: Site, capsys: pytest.CaptureFixture[str]) -> None:
    fetch()
    asked = len(mnist.requests)
    mnist.files = {}
    fetch()
    assert content() == FILES
    assert len(mnist.requests) == asked
    assert "is whole" in capsys.readouterr().out


def test_experiments_share_the_copy_below_the_root(
    mnist: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch()
    copy = tmp_path / "temporary"
    (copy / "own").mkdir(parents=True)
    monkeypatch.chdir(copy)
    mnist.files = {}
    fetch(root="..")
    assert content() == FILES
    assert not (copy / ".downloads").exists()


def test_two_experiments_at_once_download_once(mnist: Site, capsys: pytest.CaptureFixture[str]) -> None:
    def experiment(name: str) -> dict[str, Any]:
        return download(Path(name), name="mnist", source="", folder=Path("own"), root=Path.cwd())

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(experiment, ["first", "second"])
    assert first == second
    assert content("first") == content("second") == FILES
    assert len(mnist.requests) == 4


def test_a_copy_that_was_damaged_meanwhile_is_fetched_again(mnist: Site) -> None:
    fetch()
    mnist.requests.clear()
    damaged = Path(".downloads/mnist/t10k-labels-idx1-ubyte")
    damaged.unlink()
    damaged.write_bytes(b"other")
    fetch()
    assert content() == FILES
    assert [name for name, _ in mnist.requests] == ["t10k-labels-idx1-ubyte.gz"]


def test_a_dropped_connection_goes_on_where_it_broke_off(mnist: Site) -> None:
    mnist.troubles = ["drop", "drop"]
    fetch()
    assert content() == FILES
    whole = len(mnist.files["train-images-idx3-ubyte.gz"])
    assert [asked for _, asked in mnist.requests[:3]] == [
        None,
        f"bytes={whole // 2}-",
        f"bytes={whole // 2 + (whole - whole // 2) // 2}-",
    ]


def test_a_server_that_cannot_go_on_starts_anew(mnist: Site) -> None:
    mnist.ranges = False
    mnist.troubles = ["drop"]
    fetch()
    assert content() == FILES


def test_the_next_run_goes_on_too(mnist: Site) -> None:
    mnist.troubles = ["drop", *[503] * 10]
    with pytest.raises(UserError, match="503"):
        fetch()
    assert not Path("data/raw").exists()
    mnist.requests.clear()
    mnist.troubles = []
    fetch()
    assert content() == FILES
    name, asked = mnist.requests[0]
    assert (name, asked) == ("train-images-idx3-ubyte.gz", f"bytes={len(mnist.files[name]) // 2}-")


def test_a_file_that_grew_shorter_meanwhile_is_fetched_anew(mnist: Site) -> None:
    name = "train-images-idx3-ubyte.gz"
    right, mnist.files[name] = mnist.files[name], b"x" * 10 * len(mnist.files[name])
    mnist.troubles = ["drop", *[503] * 10]
    with pytest.raises(UserError):
        fetch()
    mnist.files[name] = right
    mnist.troubles = []
    fetch()
    assert content() == FILES


def test_passing_trouble_is_waited_out(mnist: Site) -> None:
    mnist.troubles = [503, 429, 500, "ok"]
    fetch()
    assert content() == FILES


def test_addresses_are_tried_in_turn(mnist: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as first:
        published, _ = gzipped_set(FILES, first.address, mnist.address)
        monkeypatch.setitem(catalogue.CATALOGUE, "mnist", published)
        fetch()
    assert content() == FILES
    assert len(first.requests) == 4  # 404 is not asked twice


def test_a_mirror_is_asked_instead_of_the_sets_own_address(mnist: Site) -> None:
    with serve() as mirror:
        mirror.files, mnist.files = mnist.files, {}
        fetch(source=mirror.address.rstrip("/"))
        assert len(mirror.requests) == 4
    assert not mnist.requests
    assert manifest()["origin"] == mirror.address.rstrip("/")
    assert content() == FILES


def test_a_mirror_may_pack_otherwise(mnist: Site) -> None:
    mnist.files = {f"{name}.gz": gzip.compress(file, 1) for name, file in FILES.items()}
    fetch()
    assert content() == FILES


WRONG = {
    "another file": gzip.compress(b"other pictures"),
    "an error page": b"<!DOCTYPE html><html>log in first</html>",
    "half of it": gzip.compress(FILES["train-images-idx3-ubyte"])[:200],
    "nothing": b"",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_content_is_thrown_away_and_asked_for_once_more(mnist: Site, wrong: str) -> None:
    fetch()
    name = "train-images-idx3-ubyte.gz"
    mnist.files[name] = WRONG[wrong]
    mnist.requests.clear()
    Path(".downloads/mnist/train-images-idx3-ubyte").unlink()
    with pytest.raises(UserError) as fault:
        fetch()
    assert f"{mnist.address}{name}" in str(fault.value)
    assert "data.source" in str(fault.value)
    assert len(mnist.requests) == 2
    assert content() == FILES  # yesterday's
    assert not [path for path in Path(".downloads").rglob("*") if "train-images" in path.name]


def test_a_wrong_checksum_names_what_was_expected_and_found(mnist: Site) -> None:
    mnist.files["train-labels-idx1-ubyte.gz"] = gzip.compress(b"others")
    with pytest.raises(UserError) as fault:
        fetch()
    assert sha256(FILES["train-labels-idx1-ubyte"]) in str(fault.value)
    assert sha256(b"others") in str(fault.value)


def test_after_wrong_content_the_right_one_is_taken(mnist: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as first:
        first.files = dict.fromkeys(mnist.files, b"<html>")
        published, _ = gzipped_set(FILES, first.address, mnist.address)
        monkeypatch.setitem(catalogue.CATALOGUE, "mnist", published)
        fetch()
    assert content() == FILES


def test_without_a_network_the_ways_out_are_named(mnist: Site) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/"
    with pytest.raises(UserError) as fault:
        fetch(source=closed)
    message = str(fault.value)
    assert f"{closed}train-images-idx3-ubyte.gz: " in message
    assert "refused" in message
    assert "data.source" in message
    assert "data.folder" in message
    assert "Traceback" not in message
    assert not Path("data/raw").exists()


def test_a_full_disk_is_named_and_gives_its_room_back(mnist: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch()
    Path(".downloads/mnist/train-images-idx3-ubyte").unlink()

    class FullDisk(FileIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transfer, "_opened", lambda part, _start: FullDisk(part, "w"))
    with pytest.raises(UserError, match="the disk is full"):
        fetch()
    assert not list(Path(".downloads").rglob("*.part"))
    assert content() == FILES


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_a_disk_that_is_full_while_unpacking_leaves_yesterdays_files(tmp_path: Path) -> None:
    """With a real limit on what a file may hold, in a process of its own."""
    Path("data/raw").mkdir(parents=True)
    Path("data/raw/yesterday").write_text("here")
    script = (
        "import resource, signal, sys; from pathlib import Path; from download import download\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "download(Path('data/raw'), name='digits', source='', folder=Path('own'), root=Path('.'))"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "stages")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "UserError" in done.stderr
    assert "too large" in done.stderr
    assert content() == {"yesterday": b"here"}
    assert [path.name for path in Path("data").iterdir()] == ["raw"]


# From a folder


def put(folder: str, files: dict[str, bytes]) -> None:
    for name, file in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file)


@pytest.mark.parametrize("how", ["gz", "decoded", "unpacked by the browser", "dots", "torchvision", "repacked"])
def test_published_files_in_a_folder_are_used_however_they_are_packed(
    mnist: Site, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = {
        "gz": mnist.files,
        "decoded": FILES,
        "unpacked by the browser": {f"{name}.gz": file for name, file in FILES.items()},
        "dots": {name.replace("-idx", ".idx"): file for name, file in FILES.items()},
        "torchvision": {f"MNIST/raw/{name}": file for name, file in (FILES | mnist.files).items()},
        "repacked": {f"{name}.gz": gzip.compress(file, 1) for name, file in FILES.items()},
    }
    put("own", ways[how] | {"README.md": b"notes", "other.txt": b"ignored"})
    fetch()
    assert content() == FILES
    assert manifest()["origin"] == "data.folder"
    assert not mnist.requests
    assert "published files in own" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["tar", "unpacked"])
def test_a_tar_or_what_was_in_it(site: Site, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    files = cifar10_files(pictures(20, 32, 3, 10), pictures(10, 32, 3, 10, 1))
    entry, archive = tarred_set("cifar-10-python.tar.gz", "cifar-10-batches-py", files, site.address)
    monkeypatch.setitem(catalogue.CATALOGUE, "cifar10", entry)
    put("own", archive if how == "tar" else {f"cifar-10-batches-py/{name}": file for name, file in files.items()})
    fetch("cifar10")
    assert content() == files


def test_of_two_sets_with_the_same_file_names_the_right_one_is_found(mnist: Site) -> None:
    other = mnist_files(pictures(20, 28, 1, 10, 7), pictures(10, 28, 1, 10, 8))
    put("own/FashionMNIST/raw", other)
    put("own/MNIST/raw", FILES)
    fetch()
    assert content() == FILES


@pytest.mark.parametrize("notes", [{}, {"README.md": b"", ".gitignore": b"", "pets.dvc": b"", ".DS_Store": b""}])
def test_a_folder_with_nothing_but_notes_means_download(mnist: Site, notes: dict[str, bytes]) -> None:
    put("own", notes)
    fetch()
    assert content() == FILES


def test_ones_own_pictures_in_the_default_folder_are_no_published_files(
    mnist: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    put("data/own", {"pets/cat/1.jpg": b"a cat"})
    fetch(folder="data/own")
    assert content() == FILES
    assert "mnist: data/own holds no file of it, only your own: it is downloaded" in capsys.readouterr().out
    put("data/own", {"t10k-labels-idx1-ubyte": b"half a set"})
    with pytest.raises(UserError, match="data/own"):
        fetch(folder="data/own")


def test_a_folder_that_holds_something_else(mnist: Site) -> None:
    put("own", {"cat/1.jpg": b"", "dog/1.jpg": b"", "notes.txt": b""})
    with pytest.raises(UserError) as fault:
        fetch()
    assert "own holds something else (cat, dog, notes.txt)" in str(fault.value)
    assert "train-images-idx3-ubyte.gz" in str(fault.value)
    assert "image_folder" in str(fault.value)


def test_a_folder_with_a_part_of_the_set(mnist: Site) -> None:
    put("own", {name: file for name, file in mnist.files.items() if "labels" not in name})
    with pytest.raises(UserError, match=r"a part of mnist, but not train-labels-idx1-ubyte\.gz"):
        fetch()


def test_a_folder_with_another_set_says_which(site: Site, mnist: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    other = mnist_files(pictures(20, 28, 1, 10, 7), pictures(10, 28, 1, 10, 8))
    monkeypatch.setitem(catalogue.CATALOGUE, "fashion_mnist", gzipped_set(other)[0])
    put("own", other)
    with pytest.raises(
        UserError, match="train-images-idx3-ubyte in own/train-images-idx3-ubyte is that of fashion_mnist"
    ):
        fetch()


def test_a_changed_file_in_a_folder(mnist: Site) -> None:
    put("own", FILES | {"t10k-labels-idx1-ubyte": b"changed"})
    with pytest.raises(UserError, match=f"has sha256 {sha256(b'changed')} instead of"):
        fetch()


def test_a_missing_folder(mnist: Site) -> None:
    with pytest.raises(UserError, match=r"data\.folder: nowhere is missing"):
        fetch(folder="nowhere")
    Path("file").write_text("")
    with pytest.raises(UserError, match=r"data\.folder: file is a file"):
        fetch("image_folder", folder="file")


@pytest.mark.parametrize("name", ["image_folder", "mnist"])
def test_a_temporary_experiment_that_does_not_see_the_pictures(
    mnist: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    put("own/pets", {"cat/1.jpg": b""})
    copy = tmp_path / ".dvc" / "tmp" / "exps" / "copy"
    (copy / "own").mkdir(parents=True)
    monkeypatch.chdir(copy)
    for folder in ("own/pets", "own"):
        with pytest.raises(UserError) as fault:
            fetch(name, folder=folder, root=str(tmp_path))
        assert f"dvc add {folder}" in str(fault.value)
        assert str(tmp_path / folder) in str(fault.value)


def test_digits_need_neither_network_nor_folder() -> None:
    assert fetch("digits", folder="nowhere")["num_files"] == 1
    assert manifest()["origin"] == "embedded"
    table = np.loadtxt("data/raw/digits.csv", delimiter=",")
    assert table.shape == (1797, 65)


@pytest.mark.fashion
@pytest.mark.skipif(
    not FASHION.is_dir() and not os.environ.get("CI"),
    reason="apt-get install dataset-fashion-mnist brings the pictures",
)
def test_debians_fashion_mnist_works_as_it_is() -> None:
    assert fetch("fashion_mnist", folder=FASHION)["num_bytes"] == 54_950_048


# As a script


def script(tmp_path: Path, **data: str) -> subprocess.CompletedProcess[str]:
    values = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    values["data"] |= data
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
    command = [sys.executable, str(REPOSITORY / "stages" / "download.py")]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"DVC_ROOT": str(tmp_path)})


def test_the_script_brings_the_digits(tmp_path: Path) -> None:
    done = script(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "wrote data/raw: digits, 1 file, 264.7 kB, checked\n"
    assert (tmp_path / "data" / "raw" / "digits.csv").is_file()


def test_the_script_says_a_users_mistake_in_a_line(tmp_path: Path) -> None:
    done = script(tmp_path, name="image_folder", folder="own")
    assert done.returncode == 1
    assert "error: data.folder: own holds no pictures" in done.stderr
    assert "Traceback" not in done.stderr

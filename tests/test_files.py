"""darkroom.files: files are whole or absent, JSON is strict, locks name their holder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.errors import UserError
from darkroom.files import (
    finite,
    lock,
    missing,
    read_json,
    sha256_bytes,
    sha256_code,
    sha256_file,
    write_bytes,
    write_json,
    write_text,
    written_whole,
)
from pipelines import REPOSITORY


@contextmanager
def program(source: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs `source`, killed at the end; its first line of output says that it is under way."""
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY / 'stages')!r})\n{source}"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_written_file_replaces_the_old_one_and_leaves_nothing_beside_it(tmp_path: Path):
    path = tmp_path / "new" / "folder" / "model.pt"
    write_bytes(path, b"old")
    with written_whole(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
        assert temporary.parent == path.parent, "a rename is atomic only within a file system"
    assert path.read_bytes() == b"new"
    assert names_in(path.parent) == ["model.pt"]


def test_an_exception_while_writing_leaves_the_old_file_alone(tmp_path: Path):
    path = tmp_path / "model.pt"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), written_whole(path) as temporary:
        temporary.write_text("half")
        _ = 1 / 0
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["model.pt"]


def test_a_process_killed_while_writing_leaves_the_old_file_whole(tmp_path: Path):
    path = tmp_path / "model.pt"
    write_text(path, "old")
    source = (
        "from pathlib import Path; import time\nfrom darkroom.files import written_whole\n"
        "with written_whole(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half'); print('writing', flush=True); time.sleep(60)"
    )
    with program(source, path) as process:
        assert process.stdout
        assert process.stdout.readline() == "writing\n"
        process.kill()
        process.wait()
    assert path.read_text() == "old"


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions_follow_the_umask(tmp_path: Path, mask: int):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a.txt", "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "the disk is full: free some space and run the same command again"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EROFS, "the disk is read-only"),
        (errno.EACCES, "no permission to write here"),
    ],
)
def test_a_disk_that_takes_nothing_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
):
    path = tmp_path / "model.pt"
    write_text(path, "old")

    def refuse(_handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError) as error:
        write_text(path, "new")
    assert str(error.value).startswith(f"{path}: {sentence}")
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["model.pt"]


def test_a_folder_that_cannot_be_made_is_said_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match="the disk is full"):
        write_text(tmp_path / "new" / "a.txt", "a")


def test_another_error_of_the_system_stays_itself(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    with pytest.raises(OSError, match="directory"):
        write_text(tmp_path / "folder", "a file where a folder lies")


def test_json_is_sorted_and_strict(tmp_path: Path):
    path = tmp_path / "train.json"
    write_json(path, {"val_loss": float("nan"), "accuracy": 0.5, "é": [1, float("inf"), (2, -float("inf"))], 3: None})
    assert path.read_text() == (
        '{\n  "3": null,\n  "accuracy": 0.5,\n  "val_loss": null,\n  "é": [\n    1,\n    null,\n    [\n      2,\n      null\n    ]\n  ]\n}\n'
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_whatever_is_written_is_read_back_with_null_for_what_is_not_finite(values: Any):
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    plain = finite(values)
    text = json.dumps(plain, allow_nan=False, sort_keys=True)
    assert json.loads(text, parse_constant=refuse) == plain
    assert finite(plain) == plain


def test_reading_json_names_the_command_that_makes_it(tmp_path: Path):
    path = tmp_path / "train.json"
    with pytest.raises(UserError, match="train.json is missing: run dvc repro train"):
        read_json(path, "dvc repro train")
    for content in (b"", b"{", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"train.json is damaged \(.*\): run dvc repro train"):
            read_json(path, "dvc repro train")
    write_json(path, {"a": 1})
    assert read_json(path, "dvc repro train") == {"a": 1}
    assert str(missing(path, "dvc repro train")) == f"{path} is missing: run dvc repro train"


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_hashes_are_those_of_the_joined_bytes(parts: list[bytes]):
    expected = hashlib.sha256(b"".join(parts)).hexdigest()
    assert sha256_bytes(*parts) == expected


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path):
    content = os.urandom(3_000_000)
    write_bytes(tmp_path / "a.bin", content)
    assert sha256_file(tmp_path / "a.bin") == hashlib.sha256(content).hexdigest()


def code_in(folder: Path) -> Path:
    (folder / "room" / "inner").mkdir(parents=True)
    (folder / "room" / "a.py").write_text("a = 1\n")
    (folder / "room" / "inner" / "b.py").write_text("b = 1\n")
    return folder / "room"


def test_the_hash_of_code_follows_every_source_file_and_nothing_else(tmp_path: Path):
    room = code_in(tmp_path / "one")
    same = sha256_code(room)
    assert sha256_code(code_in(tmp_path / "two")) == same, "the folder above is no part of it"
    (room / "__pycache__").mkdir()
    (room / "__pycache__" / "a.pyc").write_bytes(b"cached")
    (room / "README.md").write_text("words")
    assert sha256_code(room) == same
    (room / "inner" / "b.py").write_text("b = 2\n")
    edited = sha256_code(room)
    (room / "inner" / "b.py").rename(room / "inner" / "c.py")
    renamed = sha256_code(room)
    (room / "new.py").touch()
    assert len({same, edited, renamed, sha256_code(room), sha256_code(room / "a.py")}) == 5


HOLD = (
    "from pathlib import Path; import time\nfrom darkroom.files import lock\n"
    "with lock(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(float(sys.argv[2]))"
)


def test_a_second_process_is_told_who_holds_the_lock_and_waits(tmp_path: Path):
    path = tmp_path / "checkpoints" / "run.lock"
    with program(HOLD, path, 1) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        told: list[str] = []
        started = time.monotonic()
        with lock(path, told.append):
            waited = time.monotonic() - started
        assert told == [f"process {process.pid} on {os.uname().nodename}"]
        assert waited > 0.5
    with lock(path, told.append):
        assert len(told) == 1, "a free lock is taken without a word"


def test_a_lock_that_stays_held_is_given_up_with_its_holder_named(tmp_path: Path):
    path = tmp_path / "run.lock"
    with program(HOLD, path, 60) as process:
        assert process.stdout
        process.stdout.readline()
        with (
            pytest.raises(UserError, match=f"held by process {process.pid} on .*: wait for it, or stop it"),
            lock(path, timeout=0.1),
        ):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        with lock(path, timeout=5):
            assert path.with_suffix(".holder").read_text().startswith(f"process {os.getpid()} ")
    assert not path.with_suffix(".holder").exists()

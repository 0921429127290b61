"""darkroom.door: how a script ends, seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from darkroom import door
from pipelines import REPOSITORY

SCRIPT = """
import sys, time
sys.path.insert(0, {stages!r})
from pathlib import Path
from darkroom.door import enter, orderly_stop, say
from darkroom.errors import UserError

def main():
    try:
{body}
    finally:
        Path(sys.argv[1]).write_text("closed")

enter(main)
"""
SLEEP = "say('started'); time.sleep(60)"


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """The file that a script writes when its open things get closed."""
    return tmp_path / "closed"


def command(body: str, closed: Path) -> list[str]:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return [sys.executable, "-c", SCRIPT.format(stages=str(REPOSITORY / "stages"), body=lines), str(closed)]


def run(body: str, closed: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(body, closed), capture_output=True, text=True, env=os.environ | environment)


@contextmanager
def started(arguments: list[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The process once it has said so, in a group of its own that is killed at the end."""
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout
            assert process.stdout.readline() == "started\n"
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_users_mistake_is_one_line_and_exit_code_1(closed: Path):
    done = run("raise UserError('train.lr: 0 is too small (above 0.0)')", closed)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "\nerror: train.lr: 0 is too small (above 0.0)\n"
    assert closed.exists()


def test_under_dvc_the_last_line_says_how_to_have_the_outputs_back(closed: Path):
    done = run("raise UserError('no')", closed, DVC_STAGE="train")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == door.BROUGHT_BACK


def test_a_programmers_mistake_keeps_its_traceback(closed: Path):
    done = run("raise ValueError('shape')", closed)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("ValueError: shape\n")


def test_code_that_git_does_not_know_is_named_in_a_temporary_experiment(closed: Path, tmp_path: Path):
    mine = tmp_path / "stages" / "darkroom" / "mine.py"
    mine.parent.mkdir(parents=True)
    mine.touch()
    done = run("import darkroom.mine", closed, DVC_ROOT=str(tmp_path))
    assert (done.returncode, done.stderr) == (
        1,
        (
            "\nerror: stages/darkroom/mine.py is not in git, so this temporary experiment has no copy of it: "
            "git add stages/darkroom/mine.py, and run it again\n"
        ),
    )
    for module, environment in (("darkroom.mine", {}), ("darkroom.nowhere", {"DVC_ROOT": str(tmp_path)})):
        assert run(f"import {module}", closed, **environment).stderr.endswith(f"No module named '{module}'\n")


@pytest.mark.parametrize("code", [0, 3])
def test_sys_exit_keeps_its_code(closed: Path, code: int):
    assert run(f"sys.exit({code})", closed).returncode == code


@pytest.mark.parametrize(("number", "code", "said"), [(signal.SIGTERM, 143, ""), (signal.SIGINT, 130, "\nstopped\n")])
def test_a_signal_closes_what_is_open(closed: Path, number: signal.Signals, code: int, said: str):
    with started(command(SLEEP, closed)) as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (code, said)
    assert closed.read_text() == "closed"


def test_a_reader_that_goes_away_is_no_error(closed: Path):
    with started(command("say('started')\nfor _ in range(100_000): say('row')", closed)) as process:
        assert process.stdout
        process.stdout.close()
        assert process.stderr
        assert process.stderr.read() == ""
        assert process.wait(timeout=10) == 0


PARENT = "import subprocess, sys; subprocess.run(sys.argv[2:], shell=False)"
SHELL = "import shlex, subprocess, sys; subprocess.run(shlex.join(sys.argv[2:]) + '; true', shell=True)"


@pytest.mark.parametrize("parent", [PARENT, SHELL], ids=["at once", "with a shell between"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stage_stops_in_order_when_dvc_alone_is_killed(closed: Path, parent: str, number: signal.Signals):
    dvc = [sys.executable, "-c", parent, "dvc", *command(SLEEP, closed)]
    with started(dvc, DVC_STAGE="train") as process:
        time.sleep(0.3)
        process.send_signal(number)
        process.wait()
        for _ in range(100):
            if closed.exists():
                break
            time.sleep(0.1)
    assert closed.read_text() == "closed"


def test_a_script_run_by_hand_outlives_its_shell(closed: Path):
    with started(
        [sys.executable, "-c", PARENT, "shell", *command("say('started'); time.sleep(1.5)", closed)]
    ) as process:
        process.kill()
        process.wait()
        time.sleep(0.8)
        assert not closed.exists()
        time.sleep(1.5)
        assert closed.exists()


def test_work_in_hand_is_saved_before_a_stop_is_obeyed(closed: Path, tmp_path: Path):
    body = (
        "with orderly_stop() as stop:\n"
        "    say('started')\n"
        "    while stop.signal is None: time.sleep(0.01)\n"
        f"    Path({str(tmp_path / 'saved')!r}).touch()\n"
        "    stop.obey()"
    )
    with started(command(body, closed)) as process:
        process.terminate()
        assert process.wait(timeout=10) == 143
    assert (tmp_path / "saved").exists()
    assert closed.exists()


def test_a_second_signal_ends_work_that_does_not_stop(closed: Path):
    with started(command("with orderly_stop() as stop:\n    say('started'); time.sleep(60)", closed)) as process:
        for _ in range(2):
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 130
    assert closed.exists()


def test_signals_are_as_before_after_an_orderly_stop():
    before = signal.getsignal(signal.SIGTERM)
    with door.orderly_stop() as stop:
        assert signal.getsignal(signal.SIGTERM) is not before
        assert stop.signal is None
    assert signal.getsignal(signal.SIGTERM) is before
    seen: list[object] = []

    def in_a_thread() -> None:
        with door.orderly_stop():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert seen == [before]


def test_the_root_is_the_repository_or_what_dvc_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert door.root() == REPOSITORY
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert door.root() == tmp_path.resolve()
    monkeypatch.setenv("DVC_ROOT", "")
    assert door.root() == REPOSITORY

"""`make` on a bare machine: what it sets up, once, and what it says where it cannot."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from pipelines import REPOSITORY
from servers import postgres_programs
from slurms import missing_packages

LOCK = (REPOSITORY / "requirements.lock").read_text()
GPU_ONLY = re.compile(r"^(torch|torchvision|triton|nvidia-\S*?|cuda-\S*?)==", re.MULTILINE)
NAME = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", re.MULTILINE)

# Stands for the interpreter: everything is the real one's, but a venv is a folder with this script again and installing
# is a line in a file. Setting up takes minutes and gigabytes otherwise; one test below takes the real thing.
FAKE_PYTHON = """#!/bin/sh
case "$1 $2" in
"-m venv")
    mkdir -p .venv/bin && cp "$0" .venv/bin/python
    printf '#!/bin/sh\\necho "dvc $@" >> dvc-calls\\n' > .venv/bin/dvc
    cp .venv/bin/dvc .venv/bin/pytest && chmod +x .venv/bin/*
    echo venv >> calls ;;
"-m pip") shift 2; echo "pip $@" >> calls; {pip} ;;
*) exec {python} "$@" ;;
esac
"""


class Machine:
    """A checkout of what set-up needs, in a git repository, with an interpreter to be made."""

    def __init__(self, folder: Path, *, pip: str = "true", lock: str = LOCK) -> None:
        self.folder = folder
        self.python = folder / "fake-python"
        for name in ("Makefile", "setup.sh"):
            shutil.copy(REPOSITORY / name, folder)
        (folder / "requirements.lock").write_text(lock)
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        self.interpreter(FAKE_PYTHON.format(pip=pip, python=sys.executable))

    def interpreter(self, script: str) -> None:
        self.python.write_text(script)
        self.python.chmod(0o755)

    def make(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", *arguments], cwd=self.folder, capture_output=True, text=True,
            env=os.environ | {"PYTHON": str(self.python)} | environment,
        )  # fmt: skip

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_help_lists_every_target_with_a_line():
    listed = subprocess.run(["make"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    targets = [line.split()[1] for line in listed.splitlines()]
    assert set(targets) >= {"help", "repro", "test", "lint", "ui", "lock", "generate", "clean", "gc", "soak"}
    assert all(len(line.split()) > 4 for line in listed.splitlines())


def test_the_first_target_sets_up_and_goes_on_and_the_second_sets_up_nothing(machine: Machine):
    first = machine.make("repro")
    assert first.returncode == 0, first.stderr
    assert machine.calls() == [
        "venv", "pip install --no-deps --no-input --disable-pip-version-check --progress-bar off --require-hashes -r requirements.lock",
    ]  # fmt: skip
    stamps = {path: path.stat().st_mtime_ns for path in (machine.folder / ".venv").glob("installed-*")}
    assert len(stamps) == 1
    second = machine.make("test", "ARGS=-k params")
    assert (second.returncode, second.stdout) == (0, "")
    assert len(machine.calls()) == 2
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    told = (machine.folder / "dvc-calls").read_text()
    assert told == "dvc repro\ndvc -n auto --maxprocesses 8 --dist loadfile -k params\n"


def test_another_lock_is_installed_over_the_old_one(machine: Machine):
    machine.make("setup")
    (machine.folder / "requirements.lock").write_text(LOCK + "another==1.0 \\\n    --hash=sha256:00\n")
    assert machine.make("setup").returncode == 0
    assert [call.split()[0] for call in machine.calls()] == ["venv", "pip", "pip"]
    assert len(list((machine.folder / ".venv").glob("installed-*"))) == 1


def test_an_environment_made_by_hand_is_taken(machine: Machine):
    subprocess.run([machine.python, "-m", "venv", ".venv"], cwd=machine.folder, check=True)
    machine.make("setup")
    assert [call.split()[0] for call in machine.calls()] == ["venv", "pip"]


def test_a_moved_project_gets_a_new_environment(machine: Machine, tmp_path: Path):
    machine.make("setup")
    moved = tmp_path / "moved here"
    moved.mkdir()
    for name in ("Makefile", "setup.sh", "requirements.lock", "fake-python", ".venv", ".git", "calls"):
        shutil.move(tmp_path / name, moved / name)
    machine.folder, machine.python = moved, moved / "fake-python"
    done = machine.make("setup")
    assert "making .venv afresh: it was made for default" in done.stdout
    assert [call.split()[0] for call in machine.calls()] == ["venv", "pip", "venv", "pip"]


def entries(lock: str) -> dict[str, list[str]]:
    """The lines of each package in a lock."""
    found: dict[str, list[str]] = {}
    for line in lock.splitlines():
        if not line.startswith(" "):
            found[line] = []
        found[list(found)[-1]].append(line)
    return found


def test_the_cpu_build_leaves_out_what_only_cuda_needs_and_keeps_all_else(machine: Machine):
    done = machine.make("setup", "TORCH=cpu")
    assert done.returncode == 0, done.stderr
    kept = entries((machine.folder / ".venv" / "requirements-cpu.lock").read_text())
    whole = entries(LOCK)
    assert kept == {name: lines for name, lines in whole.items() if not GPU_ONLY.match(name)}
    assert not [name for name in kept if re.match(r"nvidia|cuda|triton|torch", name)]
    assert all(any("--hash=sha256:" in line for line in lines) for lines in kept.values())
    versions = dict(NAME.findall(LOCK))
    hashed, torch = machine.calls()[1:]
    assert hashed.endswith("--require-hashes -r .venv/requirements-cpu.lock")
    assert torch.endswith(
        f"--index-url https://download.pytorch.org/whl/cpu torch=={versions['torch']} torchvision=={versions['torchvision']}"
    )


def test_the_chosen_build_is_remembered_until_another_is_asked_for(machine: Machine):
    machine.make("setup", "TORCH=cpu")
    calls = len(machine.calls())
    assert machine.make("setup").returncode == 0
    assert len(machine.calls()) == calls
    assert "afresh" in machine.make("setup", "TORCH=default").stdout
    assert [call.split()[0] for call in machine.calls()[calls:]] == ["venv", "pip"]
    assert machine.calls()[-1].endswith("-r requirements.lock")


def test_an_unknown_build_is_refused(machine: Machine):
    done = machine.make("setup", "TORCH=rocm")
    assert done.returncode != 0
    assert "error: TORCH=rocm is no build of PyTorch here (cpu, default)" in done.stderr
    assert machine.calls() == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('case "$1" in --version) echo Python 3.9.2 ;; *) exit 1 ;; esac',
         "error: Python 3.9.2 is too old (3.11 or newer): make PYTHON=/path/to/python3.11"),
        ('case "$2" in *ensurepip*) exit 1 ;; esac',
         "comes without ensurepip, which makes .venv: apt-get install python3-venv (Debian, Ubuntu)"),
    ],
    ids=["too old", "no ensurepip"],
)  # fmt: skip
def test_an_interpreter_that_will_not_do_is_named_in_a_line(machine: Machine, script: str, said: str):
    machine.interpreter(f"#!/bin/sh\n{script}\n")
    done = machine.make("test")
    assert done.returncode != 0
    assert said in done.stderr
    assert len([line for line in done.stderr.splitlines() if not line.startswith("make")]) == 1
    assert not (machine.folder / ".venv").exists()


def test_a_missing_interpreter_is_named_in_a_line(machine: Machine):
    done = machine.make("test", "PYTHON=python9")
    assert "error: python9 is not there: install Python 3.11 or newer, or say make PYTHON=" in done.stderr


def test_a_failed_installation_shows_pips_error_and_is_taken_up_again(tmp_path: Path):
    noise = (
        "WARNING: Location 'file:///nowhere' is ignored: it is either a non-existing path or lacks a specific scheme."
    )
    machine = Machine(tmp_path, pip=f'echo "{noise}"; echo "ERROR: No matching distribution found for x"; exit 1')
    done = machine.make("repro")
    assert done.returncode != 0
    assert "ERROR: No matching distribution found for x" in done.stderr
    assert "is ignored" not in done.stdout + done.stderr
    assert "error: pip could not install requirements.lock (all it said: .venv/pip.log)" in done.stderr
    assert not (machine.folder / "dvc-calls").exists()
    assert noise in (tmp_path / ".venv" / "pip.log").read_text()
    fixed = FAKE_PYTHON.format(pip="true", python=sys.executable)
    (tmp_path / ".venv" / "bin" / "python").write_text(fixed)
    assert machine.make("repro").returncode == 0
    assert (tmp_path / "dvc-calls").read_text() == "dvc repro\n"


def test_the_progress_of_large_downloads_is_shown(tmp_path: Path):
    said = "Collecting torch\\n  Downloading torch-2.whl.metadata (3 MB)\\n  Downloading torch-2.whl (902.7 MB)\\nInstalling collected packages: a, b"
    done = Machine(tmp_path, pip=f"printf '{said}\\n'").make("setup")
    assert done.stdout.splitlines()[1:3] == ["  Downloading torch-2.whl (902.7 MB)", "  unpacking: a few minutes"]


def test_a_folder_without_git_is_told_before_anything_is_installed(machine: Machine):
    shutil.rmtree(machine.folder / ".git")
    done = machine.make("repro", GIT_CEILING_DIRECTORIES=str(machine.folder.parent))
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].startswith(
        "error: dvc needs a git repository here: git clone the project, or type: git init"
    )
    assert machine.calls() == []


def wheel(folder: Path) -> str:
    """A package with the command `dvc` in a wheel; its line in a lock."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", "def main():\n    print('dvc repro ran')\n")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/entry_points.txt", "[console_scripts]\ndvc = tiny:main\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "tiny-1.0.dist-info/RECORD,,\n")
    return f"tiny==1.0 \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def test_a_real_environment_runs_what_it_installed_and_refuses_another_hash(tmp_path: Path):
    machine = Machine(tmp_path, lock=wheel(tmp_path))
    machine.python = Path(sys.executable)
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    done = machine.make("repro", **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "dvc repro ran"
    lock = tmp_path / "requirements.lock"
    lock.write_text(re.sub("sha256:....", "sha256:0000", lock.read_text()).replace("tiny==1.0", "tiny==1.0 "))
    subprocess.run([tmp_path / ".venv/bin/python", "-m", "pip", "uninstall", "-qy", "tiny"], check=True)
    done = machine.make("repro", **environment)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "dvc repro ran" not in done.stdout


def test_clean_leaves_what_cannot_be_made_again(machine: Machine):
    kept = ["mlflow.db", "optuna.db", "mlruns/1/a", ".checkpoints/a/b", "data/raw/a", "data/packed/b", ".downloads/a",
            "models/model.pt", "export/model.onnx", ".venv/bin/python", ".dvc/cache/a", "metrics/test.json",
            "stages/train.py", "tests/a.py", "benchmarks/a.py"]  # fmt: skip
    cached = [".mypy_cache/a", ".ruff_cache/a", ".pytest_cache/a", ".hypothesis/a", "dvc_plots/a",
              "stages/__pycache__/a.pyc", "tests/__pycache__/b.pyc"]  # fmt: skip
    for name in kept + cached:
        path = machine.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert machine.make("clean").returncode == 0
    assert [name for name in kept if not (machine.folder / name).exists()] == []
    assert [name for name in cached if (machine.folder / name).exists()] == []
    assert machine.calls() == []


def test_ui_leads_to_the_table_of_runs(machine: Machine):
    done = machine.make("ui")
    assert done.returncode != 0
    assert "no runs yet: make repro" in done.stderr
    mlflow = machine.folder / ".venv" / "bin" / "mlflow"
    mlflow.write_text('#!/bin/sh\necho "mlflow $@"\n')
    mlflow.chmod(mlflow.stat().st_mode | stat.S_IXUSR)
    with sqlite3.connect(machine.folder / "mlflow.db") as database:
        database.execute("create table experiments (experiment_id integer, name text, lifecycle_stage text)")
        rows = [(0, "Default", "active"), (1, "old", "deleted"), (2, "darkroom", "active")]
        database.executemany("insert into experiments values (?, ?, ?)", rows)
    database.close()
    done = machine.make("ui", "PORT=5001")
    assert done.stdout.splitlines() == [
        "runs of darkroom: http://127.0.0.1:5001/#/experiments/2/runs", "mlflow ui --port 5001",
    ]  # fmt: skip


def test_the_lock_pins_every_dependency_with_hashes_for_all_platforms():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    wanted = [*map(Requirement, project["project"]["dependencies"] + project["dependency-groups"]["dev"])]
    locked = {canonicalize_name(name): number for name, number in NAME.findall(LOCK)}
    assert [str(need) for need in wanted if locked.get(canonicalize_name(need.name), "") not in need.specifier] == []
    assert [name for name, lines in entries(LOCK).items() if "--hash=sha256:" not in "".join(lines)] == []
    assert "sys_platform == 'win32'" in LOCK
    assert "sys_platform == 'linux'" in LOCK


@pytest.mark.parametrize(
    ("name", "floor", "ceiling"),
    [
        ("torch", "2.10", "2.14.1"), ("torchvision", "0.25", "0.29.1"), ("mlflow", "3.17", "3.17.999"), ("onnx", "1.21", "9"),
        ("pillow", "12.3", "99"),
    ],
)  # fmt: skip
def test_the_lock_keeps_to_versions_without_known_holes(name: str, floor: str, ceiling: str):
    assert Version(floor) <= Version(dict(NAME.findall(LOCK))[name]) <= Version(ceiling)


def test_the_licence_says_what_pyproject_says():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["license"] == "MIT"
    assert (REPOSITORY / "LICENSE").read_text().startswith("MIT License\n\nCopyright (c) 2026 the darkroom authors")


def test_ci_fetches_what_shows_real_pictures_and_pages():
    script = (REPOSITORY / ".ci" / "run").read_text()
    assert "dataset-fashion-mnist" in script
    assert "chromium" in script
    assert "postgresql" in script
    assert {"slurmctld", "slurmd", "slurm-client", "munge"} <= set(re.findall(r"missing\+=\(([\w-]+)\)", script))
    if os.environ.get("CI"):
        assert Path("/usr/share/datasets/fashion-mnist").is_dir()
        assert shutil.which("chromium")
        assert postgres_programs().is_dir()
        assert missing_packages() == []

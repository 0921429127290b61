"""What the tests share: a clean environment, parameters to change, and one pipeline that has run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ruamel.yaml

from darkroom.params import Params, check_params, parse_yaml

REPOSITORY = Path(__file__).resolve().parents[1]
FASHION = Path("/usr/share/datasets/fashion-mnist")

# A person's own settings must not change what the tests see, nor where they write.
for _name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "DVC_ROOT", "DVC_STAGE", "DVC_EXP_NAME",
              "DARKROOM_FRESH", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON", "TORCH"):  # fmt: skip
    os.environ.pop(_name, None)
os.environ |= {
    # dvc, python and mlflow are called by name, as a person does in an activated .venv
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.org",
    "DVC_NO_ANALYTICS": "1",
}  # fmt: skip


@pytest.fixture
def params_values() -> dict[str, Any]:
    """The repository's params.yaml as nested mappings, to be changed at will."""
    values: dict[str, Any] = parse_yaml((REPOSITORY / "params.yaml").read_text())
    return values


@pytest.fixture
def params(params_values: dict[str, Any]) -> Params:
    return check_params(params_values)


@pytest.fixture(scope="session")
def fashion_folder() -> Path:
    """Debian's Fashion-MNIST; without it the test is skipped, but never in CI."""
    if not FASHION.is_dir():
        assert not os.environ.get("CI"), "CI has to install dataset-fashion-mnist"
        pytest.skip("real pictures: apt-get install dataset-fashion-mnist")
    return FASHION


@dataclass(frozen=True)
class Pipeline:
    """A clone of the working tree in a folder of its own."""

    folder: Path

    def run(self, *command: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs the command in the clone; fails with all that it printed where it ends with another exit code."""
        done = subprocess.run(
            command, cwd=self.folder, env=os.environ | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )  # fmt: skip
        assert done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def set(self, changes: Mapping[str, Any]) -> None:
        """Edits params.yaml: {"train.lr": 0.1}."""
        yaml = ruamel.yaml.YAML()
        values = yaml.load(self.folder / "params.yaml")
        for key, value in changes.items():
            section, name = key.split(".")
            values[section][name] = value
        yaml.dump(values, self.folder / "params.yaml")

    def commit(self, message: str) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--allow-empty", f"--message={message}")


SMALL = {
    "model.width": 8, "model.blocks": [1], "train.epochs": 2, "train.warmup_epochs": 0, "train.threads": 1,
    "train.ema_decay": 0.0, "export.timing_runs": 2, "export.parity_images": 64,
}  # fmt: skip
"""Seconds instead of a minute; everything is still done once."""


def clone(folder: Path) -> Pipeline:
    """The working tree as git would keep it, committed or not, as a repository of its own."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
    (folder / "dvc.lock").unlink(missing_ok=True)
    pipeline = Pipeline(folder)
    pipeline.run("git", "init", "--quiet", "--initial-branch=main")
    return pipeline


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A clone in which `dvc repro` has run once, on digits and a small network; tests leave it as they find it."""
    pipeline = clone(tmp_path_factory.mktemp("clone"))
    pipeline.set(SMALL)
    pipeline.commit("As cloned")
    pipeline.run("dvc", "repro")
    pipeline.commit("First results")
    return pipeline

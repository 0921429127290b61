"""What the tests share: a clean environment, parameters to change, and one pipeline that has run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from darkroom.params import Params, check_params, parse_yaml
from pipelines import REPOSITORY, SMALL, Pipeline, clone

if TYPE_CHECKING:
    from darkroom.tracking.store import Store

# A person's own settings must not change what the tests see, nor where they write.
for _name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "OPTUNA_STORAGE", "DVC_ROOT", "DVC_STAGE", "DVC_EXP_NAME",
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


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A project's store with nothing in it."""
    from stores import store_at  # only here: mlflow takes two seconds

    return store_at(tmp_path)


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A clone in which `dvc repro` has run once, on digits and a small network; tests leave it as they find it."""
    pipeline = clone(tmp_path_factory.mktemp("clone"))
    pipeline.set(SMALL)
    pipeline.commit("As cloned")
    pipeline.run("dvc", "repro")
    pipeline.commit("First results")
    return pipeline

"""What the tests share: where the repository is, parameters to change, and a clean environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from darkroom.params import Params, check_params, parse_yaml

REPOSITORY = Path(__file__).resolve().parents[1]

# A person's own settings must not change what the tests see, nor where they write.
for _name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "DVC_ROOT", "DVC_STAGE", "DARKROOM_FRESH",
              "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON", "TORCH"):  # fmt: skip
    os.environ.pop(_name, None)
# dvc, python and mlflow are called by name, as a person does in an activated .venv.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


@pytest.fixture
def params_values() -> dict[str, Any]:
    """The repository's params.yaml as nested mappings, to be changed at will."""
    values: dict[str, Any] = parse_yaml((REPOSITORY / "params.yaml").read_text())
    return values


@pytest.fixture
def params(params_values: dict[str, Any]) -> Params:
    return check_params(params_values)

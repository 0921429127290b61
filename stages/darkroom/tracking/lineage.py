"""What a run came from: commit, uncommitted code, DVC experiment, parameters file, packages.

Gathered once a process, in plain values, so that a sweep's workers get it handed instead of asking git eight times.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from darkroom.errors import UserError
from darkroom.tracking import machine

CODE = ("stages", "dvc.yaml", "requirements.lock", "pyproject.toml")
"""What `git.dirty` is about. params.yaml and dvc.lock are left out: inside an experiment they always differ."""

TRAINING = ("download", "prepare", "train")
"""Stages that make the model, as dvc.lock names them."""

FILES = ("params.yaml", "dvc.yaml", "dvc.lock")
"""Files of the working folder that go into the run as they are."""


@dataclass(frozen=True)
class Lineage:
    """Where a run's code, parameters and packages came from."""

    folder: Path
    """the working folder: the repository, or the copy of a temporary experiment"""
    commit: str | None
    """of HEAD; None outside git"""
    branch: str | None
    """None where HEAD is detached, as in an experiment"""
    diff: str
    """uncommitted code against `commit`, as `git apply` takes it; empty where there is none"""
    packages: str
    """one `name==version` a line"""
    experiment: str | None
    """the DVC experiment's name"""
    baseline: str | None
    """the commit that the DVC experiment started from"""
    facts: dict[str, str] = field(default_factory=dict)
    """Python, operating system, processor"""

    @property
    def dirty(self) -> bool:
        return bool(self.diff)

    def tags(self) -> dict[str, str]:
        """The tags of a run; mlflow.* are the ones that MLflow's own pages show."""
        known = {
            "git.commit": self.commit,
            "mlflow.source.git.commit": self.commit,
            "git.branch": self.branch,
            "git.dirty": str(self.dirty).lower() if self.commit else None,
            "dvc.exp": self.experiment,
            "dvc.baseline": self.baseline,
            "mlflow.user": _user(),
            "mlflow.source.name": Path(sys.argv[0]).name or "python",
            "mlflow.source.type": "LOCAL",
        }
        return {key: value for key, value in known.items() if value is not None} | self.facts

    def present_values(self) -> dict[str, Any]:
        """The flattened values of the working folder's params.yaml; empty where there is none."""
        path = self.folder / "params.yaml"
        return _flat(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def command(self, values: Mapping[str, Any]) -> str:
        """What to type in a fresh clone to train with these `values` again, which go before those of params.yaml."""
        from darkroom.params import as_yaml

        if self.commit is None:
            return ""
        before: dict[str, Any] = {}
        with contextlib.suppress(UserError):  # what is committed may be no such file: then every key is named
            before = _flat(_git(self.folder, "show", "HEAD:params.yaml") or "")
        wanted = self.present_values() | dict(values)
        settings = [f"{key}={as_yaml(value)}" for key, value in sorted(wanted.items()) if before.get(key) != value]
        patch = "git apply code.diff && " if self.dirty else ""  # an artifact of the run
        return f"git checkout {self.commit} && {patch}{shlex.join(['dvc', 'exp', 'run', *_options(settings)])}"

    def locked_values(self) -> dict[str, Any]:
        """The values that made the outputs in the working folder, as its dvc.lock has them; empty where there is none.

        For a run that replaces one that is gone: the outputs were pulled, say, and their run is on another machine.
        """
        from darkroom.params import flatten, parse_yaml

        path = self.folder / "dvc.lock"
        locked = parse_yaml(path.read_text(encoding="utf-8"), "dvc.lock") if path.is_file() else {}
        values: dict[str, Any] = {}
        for stage in TRAINING:
            values |= flatten(
                ((locked or {}).get("stages", {}).get(stage, {}).get("params", {})).get("params.yaml", {})
            )
        return values


def gather(folder: Path | None = None) -> Lineage:
    """The lineage of the code and files in `folder` (the working folder where None)."""
    place = (folder or Path.cwd()).resolve()
    commit = _git(place, "rev-parse", "--verify", "HEAD")
    return Lineage(
        folder=place,
        commit=commit,
        branch=_git(place, "symbolic-ref", "--short", "--quiet", "HEAD") if commit else None,
        diff=_uncommitted_code(place) if commit else "",
        packages=installed_packages(),
        experiment=os.environ.get("DVC_EXP_NAME") or None,
        baseline=os.environ.get("DVC_EXP_BASELINE_REV") or None,
        facts=machine.facts(),
    )


def _flat(text: str) -> dict[str, Any]:
    """The flattened values of a params.yaml; empty where it holds none."""
    from darkroom.params import flatten, parse_yaml

    values = parse_yaml(text)
    return flatten(values) if isinstance(values, dict) else {}


def _options(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("-S", setting)]


def installed_packages() -> str:
    found = {(dist.metadata["Name"] or "", dist.version) for dist in importlib.metadata.distributions()}
    return "".join(f"{name}=={version}\n" for name, version in sorted(found, key=lambda pair: pair[0].lower()) if name)


def _git(folder: Path, *arguments: str, index: Path | None = None) -> str | None:
    """What git prints; None where it fails or is not there."""
    environment = os.environ | ({"GIT_INDEX_FILE": str(index)} if index else {}) | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.decode(errors="replace").removesuffix("\n")


def _uncommitted_code(folder: Path) -> str:
    """The difference of the code to HEAD, new files included.

    New files enter through a copy of the index (`add --intent-to-add`), so the user's own index stays as it is.
    """
    code = [place for place in CODE if (folder / place).exists()]
    known = _git(folder, "rev-parse", "--git-path", "index")
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch) / "index"
        if known and (folder / known).is_file():
            shutil.copyfile(folder / known, index)
        _git(folder, "add", "--intent-to-add", "--", *code, index=index)
        diff = _git(folder, "diff", "--no-ext-diff", "--no-color", "--binary", "HEAD", "--", *CODE, index=index)
    return f"{diff}\n" if diff else ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"

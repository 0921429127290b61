"""`dvc repro` with nothing to do: this pipeline beside a repository of one stage, in pairs.

    python benchmarks/noop_repro.py [--quick] [--pairs 5]

Needs a repository in which `dvc repro` has run (`make repro`). The toy's stage copies one small file. Promised: at most
twice the toy's time, or half a second more; the median of the pairs counts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from comparing import REPOSITORY, arguments, show

TOY = """stages:
  copy:
    cmd: cp source target
    deps: [source]
    outs: [target]
"""
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "DVC_NO_ANALYTICS": "1",
}  # fmt: skip


def make_toy(folder: Path) -> None:
    (folder / "source").write_text("a\n")
    (folder / "dvc.yaml").write_text(TOY)
    for command in (["git", "init", "-q"], ["dvc", "init", "-q"], ["dvc", "repro", "-q"]):
        subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)


def seconds(folder: Path) -> float:
    """Of a `dvc repro`, which must have nothing to do."""
    started = time.perf_counter()
    done = subprocess.run(["dvc", "repro"], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    taken = time.perf_counter() - started
    assert "Data and pipelines are up to date" in done.stdout, f"{folder}: dvc repro has work to do:\n{done.stdout}"
    return taken


def check_up_to_date(folder: Path) -> None:
    """Ends the program where a `dvc repro` would run something."""
    if subprocess.run(["dvc", "status", "--quiet"], cwd=folder, env=ENVIRONMENT, check=False).returncode:
        sys.exit("error: `dvc repro` has work to do here: make repro first")


def pairs(folder: Path, num: int) -> list[tuple[float, float]]:
    """Seconds of the toy and of the repository in `folder`, in turns."""
    with tempfile.TemporaryDirectory() as name:
        make_toy(Path(name))
        return [(seconds(Path(name)), seconds(folder)) for _ in range(num)]


def main() -> None:
    wanted = arguments(__doc__, pairs=5)
    check_up_to_date(REPOSITORY)
    found = pairs(REPOSITORY, 1 if wanted.quick else wanted.pairs)
    toy, ours = (statistics.median(values) for values in zip(*found, strict=True))
    show(["dvc repro, nothing to do", "seconds"], [["a toy of one stage", f"{toy:.2f}"], ["darkroom", f"{ours:.2f}"]])
    print(f"\ndarkroom / toy: {ours / toy:.2f}, {ours - toy:+.2f} s (promised: at most 2.00, or +0.50 s)")


if __name__ == "__main__":
    main()

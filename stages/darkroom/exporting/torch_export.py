"""torch.export's .pt2: the graph for AOTInductor and ExecuTorch.

Parts of such a file load through pickle inside torch, which runs what a stranger put there. So this project writes it and
checks its own, and never loads one from elsewhere.
"""

from __future__ import annotations

import io
from pathlib import Path

import torch

from darkroom.exporting.description import EXTRA_FILE
from darkroom.exporting.module import run_module
from darkroom.exporting.parity import Run
from darkroom.exporting.source import Source


def write_torch_export(path: Path, source: Source) -> None:
    content = io.BytesIO()  # into memory: torch names the archive inside after a file that it opens by itself
    torch.export.save(source.program, content, extra_files={EXTRA_FILE: source.description.json()})
    path.write_bytes(content.getvalue())


def load_torch_export(path: Path, _threads: int) -> Run:
    return run_module(torch.export.load(path).module())

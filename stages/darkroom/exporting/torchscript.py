"""TorchScript: traced and frozen, for LibTorch.

torch.jit is deprecated, and LibTorch takes nothing else that pip's torch writes without a compiler. Its warnings are held
back here, and only they: those that it is deprecated, and those that a size becomes a constant of the graph. The height
and width are constants; whether the batch stayed free is what the comparison with PyTorch shows.
"""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from darkroom.exporting.description import EXTRA_FILE
from darkroom.exporting.module import run_module
from darkroom.exporting.parity import Run
from darkroom.exporting.source import Source

CLASSES_FILE = "classes.txt"
"""the name of a second extra file: a class a line, for C++, which reads no JSON by itself"""
MARKS = (".debug_pkl", ".data/serialization_id")
"""Ends of the records that are left out: source lines with their paths, and a hash over them."""


def write_torchscript(path: Path, source: Source) -> None:
    content = io.BytesIO()
    with _quiet(), torch.no_grad():
        # No check by tracing twice: the file is compared with PyTorch as loaded back.
        traced = torch.jit.trace(source.module, source.example, check_trace=False)  # type: ignore[no-untyped-call]  # torch gives no types here
        frozen = torch.jit.freeze(traced)
        extra = {EXTRA_FILE: source.description.json(), CLASSES_FILE: _lines(source.description.classes)}
        torch.jit.save(frozen, content, _extra_files=extra)
    path.write_bytes(_without_marks(content))


def load_torchscript(path: Path, _threads: int) -> Run:
    with _quiet():
        module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]  # torch gives no types here
        return run_module(module)


def _lines(names: list[str]) -> str:
    return "".join(f"{name}\n" for name in names)


def _without_marks(archive: io.BytesIO) -> bytes:
    """The zip archive without the records that say where the code lay."""
    kept = io.BytesIO()
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(kept, "w") as new:
        for record in old.infolist():
            if not record.filename.endswith(MARKS):
                fresh = zipfile.ZipInfo(record.filename)  # at the zip format's first day
                fresh.compress_type = record.compress_type
                new.writestr(fresh, old.read(record))
    return kept.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`?torch\.jit\.\w+`? is (deprecated|not supported)")
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]  # public, but not in __all__
        yield

"""The formats by name. A new one is a pair of functions and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from darkroom.exporting.onnx_file import load_onnx, write_onnx
from darkroom.exporting.parity import Run
from darkroom.exporting.source import Source
from darkroom.exporting.torch_export import load_torch_export, write_torch_export
from darkroom.exporting.torchscript import load_torchscript, write_torchscript


@dataclass(frozen=True)
class Format:
    """One way for a model to leave."""

    file: str
    write: Callable[[Path, Source], None]
    load: Callable[[Path, int], Run]
    """the file as its users load it, on so many threads"""


FORMATS = {
    "onnx": Format("model.onnx", write_onnx, load_onnx),
    "torchscript": Format("model.ts", write_torchscript, load_torchscript),
    "torch_export": Format("model.pt2", write_torch_export, load_torch_export),
}
"""By the names that `export.formats` takes."""

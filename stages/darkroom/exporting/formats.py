"""The formats by name. A new one is a pair of functions and a line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from darkroom.exporting.onnx_file import EXACT, load_onnx, write_onnx
from darkroom.exporting.parity import Run
from darkroom.exporting.quantising import NotQuantisedError, write_int8
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

    exact: bool = True
    """held to `export.tolerance`; a file of fewer bits has a limit of its own, on its accuracy"""


FORMATS = {
    "onnx": Format(EXACT, write_onnx, load_onnx),
    "torchscript": Format("model.ts", write_torchscript, load_torchscript),
    "torch_export": Format("model.pt2", write_torch_export, load_torch_export),
    "int8": Format("model.int8.onnx", write_int8, load_onnx, exact=False),
}
"""By the names that `export.formats` takes, in the order of writing: int8 is made from onnx."""


def write_formats(folder: Path, source: Source, wanted: Sequence[str]) -> dict[str, str]:
    """Writes the files of the formats `wanted` into `folder`; gives those that could not be, with the reason."""
    absent: dict[str, str] = {}
    for name, form in FORMATS.items():
        if name in wanted:
            try:
                form.write(folder / form.file, source)
            except NotQuantisedError as error:
                absent[name] = f"the network cannot be quantised ({error})"
    return absent

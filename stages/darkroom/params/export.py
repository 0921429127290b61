"""Section `export`: the files that leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from darkroom.params.base import Count, Fault, Fraction, Positive, Section, key

Format = Literal["onnx", "torchscript", "torch_export", "int8"]


class Export(Section):
    """Formats, and how far they may be from PyTorch."""

    formats: Annotated[list[Format], Field(min_length=1)] = key(
        "onnx, torchscript, torch_export, int8 (ONNX in 8 bits)", also=("format",)
    )
    opset: Annotated[int, Field(ge=18, le=23)] = key("ONNX operator set", also=("opset_version",))
    tolerance: Positive = key("largest difference of a logit from PyTorch's before the stage fails", also=("atol",))
    parity_images: Annotated[int, Field(ge=64)] = key("test pictures that all formats are compared on")
    timing_runs: Count = key("calls a format, with one picture, that latencies are taken of; with 64, a tenth as many")
    calibration_images: Count = key("training pictures that the ranges of int8 are taken of", also=("calib_images",))
    int8_max_drop: Fraction = key("largest loss of test accuracy beside onnx for int8 to be kept; a share")

    def faults(self) -> Iterator[Fault]:
        if len(set(self.formats)) < len(self.formats):
            yield "export.formats", f"{self.formats} names a format twice"
        if "onnx" not in self.formats:
            yield "export.formats", f"{self.formats} lacks onnx, which prediction and the registry need"

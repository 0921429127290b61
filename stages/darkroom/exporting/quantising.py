"""ONNX in 8 bits: the fp32 file, quantised statically, with the ranges that its layers show on training pictures."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.quant_utils import add_pre_process_metadata

from darkroom.exporting.onnx_file import EXACT, finished
from darkroom.exporting.session import OnnxModel
from darkroom.exporting.source import INPUT, OUTPUTS, Source, versions_of

OPERATORS = (
    "Conv", "Gemm", "MatMul", "Add", "Concat", "Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool", "Slice", "Reshape",
    "Flatten", "Transpose",
)  # fmt: skip
"""What is computed in 8 bits: the products, and what lies between them, so that a map is not taken to floats and back."""
BATCH = 16
"""Pictures at a time: the ranges are taken of a graph that keeps all of its maps."""


class NotQuantisedError(Exception):
    """A network that onnxruntime cannot take to 8 bits; the text says why."""


def write_int8(path: Path, source: Source) -> None:
    """Writes the ONNX file beside `path` in 8 bits, as QuantizeLinear and DequantizeLinear around each operator (QDQ).

    Weights are int8, symmetric, with a scale for each channel; maps are uint8. The first scaling, the last layer and the
    softmax stay in fp32. Raises NotQuantisedError.
    """
    try:
        model = _quantised(path.with_name(EXACT), source.calibration)
        named = replace(source.description, versions=source.description.versions | versions_of("onnxruntime"))
        path.write_bytes(finished(model, named, source.opset))
        OnnxModel(path, threads=1).run(source.calibration[:2])
    except (OSError, MemoryError, NotQuantisedError):
        raise
    except (
        Exception
    ) as error:  # onnxruntime raises all kinds, from KeyError to its own, for a graph that it cannot take
        path.unlink(missing_ok=True)
        raise NotQuantisedError((str(error) or type(error).__name__).splitlines()[0]) from error


def _quantised(exact: Path, pictures: NDArray[np.uint8]) -> onnx.ModelProto:
    # onnxruntime leaves files beside the one that it reads, so it gets a folder of its own: on the same disk, where there is room.
    with tempfile.TemporaryDirectory(dir=exact.parent) as folder, _quiet():
        before, after = Path(folder, "fp32.onnx"), Path(folder, "int8.onnx")
        model = onnx.load(exact)
        add_pre_process_metadata(model)  # says that the graph needs no tidying first
        onnx.save(model, before)
        quantize_static(
            before,
            after,
            Pictures(pictures),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(OPERATORS),
            nodes_to_exclude=_left_in_fp32(model.graph),
            # int8 maps would leave a third of the convolutions in fp32: onnxruntime turns them to uint8 on x86 and then misses
            # the pattern that it fuses.
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            # Seven bits of each weight: a CPU without VNNI adds two products in 16 bits, where eight bits overflow, and the file
            # would answer otherwise there than where its accuracy was tested. It costs nothing that shows: of Fashion-MNIST's
            # 10,000 test pictures a ResNet has 0.8122 right (eight bits: 0.8119; fp32: 0.8132), a VGG 0.8296 (0.8298; 0.8302).
            reduce_range=True,
            # MinMax keeps two numbers a map; percentiles and entropy keep the maps of all pictures, gigabytes for large ones, and
            # were no better on these networks (0.8109 and 0.8122; 0.8298 and 0.8296).
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"MatMulConstBOnly": True},
        )
        return onnx.load(after)


def _left_in_fp32(graph: onnx.GraphProto) -> list[str]:
    """The last layer, whose 256 steps one would see in the logits, and sums with a constant, whose range is another's."""
    constants = {tensor.name for tensor in graph.initializer}
    return [
        node.name
        for node in graph.node
        if OUTPUTS[0] in node.output or (node.op_type == "Add" and constants & set(node.input))
    ]


class Pictures(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime publishes no types
    """Hands `images` (N×C×H×W) to onnxruntime, a batch a call."""

    def __init__(self, images: NDArray[np.uint8]) -> None:
        self._batches = iter([images[start : start + BATCH] for start in range(0, len(images), BATCH)])

    def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
        batch = next(self._batches, None)
        return None if batch is None else {INPUT: batch}


@contextmanager
def _quiet() -> Iterator[None]:
    """Holds back onnxruntime's remarks on single tensors, which go to the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)

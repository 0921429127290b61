"""ONNX: one file, any batch size, everything that is needed to use it inside."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch

from darkroom.errors import UserError
from darkroom.exporting.description import Description
from darkroom.exporting.parity import Run
from darkroom.exporting.session import OnnxModel
from darkroom.exporting.source import INPUT, OUTPUTS, Source

EXACT = "model.onnx"
"""name of the fp32 file, which the one in 8 bits is made from"""
LARGEST = 2**31 - 1
"""bytes: protobuf's limit"""


def write_onnx(path: Path, source: Source) -> None:
    """Raises UserError where torch writes another operator set than asked for, or the weights are too large for one file."""
    written = torch.onnx.export(
        source.program,
        dynamo=True,
        opset_version=source.opset,
        input_names=[INPUT],
        output_names=list(OUTPUTS),
        dynamic_shapes={INPUT: {0: "N"}},
        external_data=False,
        verbose=False,
    )
    assert written is not None
    model = written.model_proto
    path.write_bytes(finished(model, source.description, source.opset))


def load_onnx(path: Path, threads: int) -> Run:
    return OnnxModel(path, threads=threads).run


def finished(model: onnx.ModelProto, description: Description, opset: int) -> bytes:
    """The file's bytes: checked, stripped of where the code lay, with the description as its metadata.

    Raises UserError where the operator set is another than `opset`, and for a model that is too large for one file.
    """
    _strip(model)
    onnx.helper.set_model_props(model, description.texts())
    _check(model, opset)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _strip(model: onnx.ModelProto) -> None:
    """Takes out what the exporter notes of where the code lies: stack traces, class names, the graph as text."""
    graph = model.graph
    graph.ClearField("metadata_props")
    for item in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        item.ClearField("metadata_props")
        item.ClearField("doc_string")


def _check(model: onnx.ModelProto, opset: int) -> None:
    written = {entry.domain: entry.version for entry in model.opset_import}
    if written != {"": opset}:
        found = written.get("", written)
        raise UserError(f"export.opset: {opset} was asked for, torch wrote {found}: set export.opset: {found}")
    if model.ByteSize() > LARGEST:
        raise UserError(
            f"model.name: the weights take {model.ByteSize() / 1e9:.1f} GB, one ONNX file takes at most 2.1: choose a smaller network"
        )
    onnx.checker.check_model(model, full_check=True)

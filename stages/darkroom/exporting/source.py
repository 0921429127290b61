"""The model in the form that all formats are written from."""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from darkroom.exporting.description import Description
from darkroom.models import SavedModel

INPUT = "images"
OUTPUTS = ("logits", "probabilities")
WRITERS = ("torch", "onnx", "onnxscript")


class Answers(nn.Module):
    """uint8 N×C×H×W, as decoded and resized, to logits and calibrated probabilities, each float32 N×K."""

    def __init__(self, classifier: nn.Module, temperature: float) -> None:
        super().__init__()
        self.classifier = classifier
        self.temperature = temperature

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.classifier(images)
        return logits, torch.softmax(logits / self.temperature, dim=1)


@dataclass(frozen=True)
class Source:
    """A model on its way out."""

    module: nn.Module
    """`Answers` in evaluation mode, on the CPU, fp32"""
    description: Description
    opset: int
    """ONNX operator set"""
    calibration: NDArray[np.uint8]
    """training pictures, N×C×H×W, that int8 takes its ranges from; none where it is not asked for"""

    @property
    def example(self) -> Tensor:
        """Two pictures, uint8 2×C×H×W: a batch of one would be taken for a constant."""
        size = self.description.image_size
        return torch.zeros(2, self.description.channels, size, size, dtype=torch.uint8)

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The graph, for any number of pictures from one on, without the paths that torch notes beside each node."""
        batch = torch.export.Dim("N", min=1)
        with torch.no_grad():
            program = torch.export.export(self.module, (self.example,), dynamic_shapes={INPUT: {0: batch}})
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)
            node.meta.pop("from_node", None)
        return program


def source_of(saved: SavedModel, *, opset: int, calibration: NDArray[np.uint8]) -> Source:
    """The source of a trained model's files."""
    description = Description(
        classes=saved.classes,
        **asdict(saved.preprocessing),
        temperature=saved.temperature,
        data_sha256=saved.data_sha256,
        model_sha256=saved.model_sha256,
        run_id=saved.run_id,
        versions=versions_of(*WRITERS),
    )
    return Source(Answers(saved.build(), saved.temperature).eval(), description, opset, calibration)


def versions_of(*packages: str) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in packages}

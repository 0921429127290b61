"""From picture files to class probabilities: onnxruntime, numpy and Pillow alone."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from darkroom.exporting.session import OnnxModel
from darkroom.pictures import read_picture


class Predictor:
    """The model in an exported ONNX file. Several threads may use it at once.

    Raises UserError where the file is missing, damaged, or not exported by this project.
    """

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        """`threads` for one call; None for one a CPU that this process may use."""
        self._model = OnnxModel(path, threads=threads)
        self.description = self._model.description

    @property
    def classes(self) -> list[str]:
        """Names; their place is the column of the probabilities."""
        return self.description.classes

    def read(self, source: Path | bytes | BinaryIO) -> NDArray[np.uint8]:
        """The picture as the model sees it, C×H×W. Raises BadPictureError where it is no whole picture."""
        about = self.description
        pixels = read_picture(source, image_size=about.image_size, channels=about.channels, resize=about.resize)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def logits(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Logits (N×K) of `images` (N×C×H×W)."""
        return self._model.run(images)[0]

    def probabilities(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Calibrated probabilities (N×K) of `images` (N×C×H×W)."""
        return self._model.run(images)[1]

"""A torch module as a function of numpy arrays."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from darkroom.exporting.parity import Run


def run_module(module: nn.Module) -> Run:
    """`module` (uint8 N×C×H×W to logits and probabilities) as a function of numpy arrays, on the CPU."""

    def run(images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with torch.inference_mode():
            logits, probabilities = module(torch.from_numpy(images))
        return logits.numpy(), probabilities.numpy()

    return run

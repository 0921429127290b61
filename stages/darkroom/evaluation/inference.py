"""Logits of many pictures, the same whatever the batch size: fp32, no autocast, evaluation mode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

View = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]
"""N×H×W×C to the same pictures seen otherwise"""


def _shifted(rows: int, columns: int) -> View:
    """By whole pixels, the edge repeated."""

    def view(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        height, width = images.shape[1:3]
        down = np.clip(np.arange(height) + rows, 0, height - 1)
        across = np.clip(np.arange(width) + columns, 0, width - 1)
        return images[:, down][:, :, across]

    return view


VIEWS: dict[str, list[View]] = {
    "none": [lambda images: images],
    "flip": [lambda images: images, lambda images: images[:, :, ::-1]],
    "shift": [_shifted(rows, columns) for rows, columns in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))],
}
"""By the names that `evaluate.tta` takes."""


def logits_of(
    model: nn.Module, images: NDArray[np.uint8], *, batch_size: int, device: torch.device, view: View = VIEWS["none"][0]
) -> NDArray[np.float32]:
    """Logits (N×K) of a `view` of `images` (N×H×W×C), `batch_size` at a time.

    `model` takes uint8 N×C×H×W. It is moved to `device` and put into evaluation mode.
    """
    model.to(device).eval()
    parts: list[NDArray[np.float32]] = []
    # cuDNN's convolutions take TF32, and whichever algorithm is fastest today, unless told otherwise.
    exact = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
    with torch.inference_mode(), torch.autocast(device.type, enabled=False), exact:
        for start in range(0, len(images), batch_size):
            batch = torch.from_numpy(np.array(view(images[start : start + batch_size]))).to(device)
            parts.append(model(batch.permute(0, 3, 1, 2)).cpu().numpy())
    return np.concatenate(parts)


def device_like(trained_on: str) -> torch.device:
    """The kind of device that the model was trained on ("cuda:0", "cpu" ...), where this machine has one; else the CPU."""
    here = torch.accelerator.current_accelerator(check_available=True)
    wanted = torch.device(trained_on).type
    return here if here is not None and here.type == wanted else torch.device("cpu")

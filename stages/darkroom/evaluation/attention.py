"""Where a convolutional network looked: Grad-CAM (Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391), by captum."""

from __future__ import annotations

import numpy as np
import torch
from captum.attr import LayerAttribution, LayerGradCam
from numpy.typing import NDArray
from torch import Tensor, nn

from darkroom.models import Classifier


def class_activation(
    model: Classifier, images: NDArray[np.uint8], targets: NDArray[np.int64]
) -> NDArray[np.float64] | None:
    """What in `images` (N×H×W×C) speaks for the classes `targets` (N): N×H×W from 0 to 1, each picture by itself.

    On the CPU. None for networks without maps at their end, such as perceptrons and transformers.
    """
    model.cpu().eval()
    pixels = model.normalize(torch.from_numpy(np.array(images)).permute(0, 3, 1, 2))
    layer = _last_maps(model.network, pixels[:1])
    if layer is None:
        return None
    maps = LayerGradCam(model.network, layer).attribute(pixels, torch.from_numpy(targets), relu_attributions=True)
    heat = LayerAttribution.interpolate(maps.detach(), images.shape[1:3], "bilinear")[:, 0]
    peaks = heat.amax(dim=(1, 2), keepdim=True)
    return np.asarray((heat / peaks.where(peaks > 0, 1)).double().numpy())


def _last_maps(network: nn.Module, example: Tensor) -> nn.Module | None:
    """The module that gives the last maps of more than one pixel; None where attention comes after them, or none is."""
    found: list[nn.Module] = []

    def look(module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and output.dim() == 4 and output.shape[2] * output.shape[3] > 1:
            found.append(module)

    if any("Attention" in type(module).__name__ for module in network.modules()):
        return None
    hooks = [module.register_forward_hook(look) for module in network.modules()]
    try:
        with torch.inference_mode():
            network(example)
    finally:
        for hook in hooks:
            hook.remove()
    return found[-1] if found else None

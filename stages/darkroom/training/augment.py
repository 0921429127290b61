"""Augmentation of whole batches, on the device that trains."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from darkroom.training.draws import Boxes, Draw


class Normalizer:
    """uint8 N×H×W×C to float32 N×C×H×W: pixels to 0..1, minus the mean, over the deviation, a channel each."""

    def __init__(self, mean: list[float], std: list[float], image_size: int, device: torch.device) -> None:
        deviation = torch.tensor(std, dtype=torch.float64)
        # a value for each place of a row: with channels innermost, broadcasting C values would run in loops of three
        self.scale = (1 / (255 * deviation)).float().repeat(image_size).to(device)
        self.offset = (-torch.tensor(mean, dtype=torch.float64) / deviation).float().repeat(image_size).to(device)

    def __call__(self, images: Tensor) -> Tensor:
        rows = images.reshape(-1, len(self.scale)).float()
        return torch.addcmul(self.offset, rows, self.scale, out=rows).view(images.shape).permute(0, 3, 1, 2)


def augmented(images: Tensor, draw: Draw, padding: int, normalize: Normalizer) -> Tensor:
    """Training pictures, uint8 N×H×W×C (contiguous), changed as `draw` says and normalised: float32 N×C×H×W."""
    if draw.flip is not None:
        images = flipped(images, draw.flip)
    if draw.shift is not None:
        images = cropped(images, draw.shift, padding)
    if draw.operation is not None:
        images = trivially_augmented(images, draw.operation)
    pictures = normalize(images)
    if draw.crop is not None:
        pictures = resized_crop(pictures, draw.crop)
    if draw.erase is not None:
        pictures = erased(pictures, draw.erase)
    return pictures


def flipped(images: Tensor, flip: NDArray[np.bool_]) -> Tensor:
    """N×H×W×C, changed in place: those that `flip` picks are mirrored left to right."""
    picked = _on(flip.nonzero()[0], images)
    return images.index_copy_(0, picked, images.index_select(0, picked).flip(2))


def cropped(images: Tensor, shift: NDArray[np.int64], padding: int) -> Tensor:
    """Each picture, N×H×W×C, cut at its own place from its zero-padded self.

    All in one gather: the windows of a batch are rows of an overlapping view, and a row is picked by where it begins.
    """
    num, height, width, channels = images.shape
    padded = functional.pad(images, (0, 0, padding, padding, padding, padding))
    stride_n, stride_y, stride_x, _ = padded.stride()
    begins = np.arange(num) * stride_n + shift @ np.array([stride_y, stride_x])
    row = width * channels
    last = padded.numel() - ((height - 1) * stride_y + row)
    windows = padded.view(-1).as_strided((last + 1, height, row), (1, stride_y, 1))
    return windows.index_select(0, _on(begins, images)).view(num, height, width, channels)


def trivially_augmented(images: Tensor, seeds: NDArray[np.int64]) -> Tensor:
    """One random operation of TrivialAugmentWide a picture (Müller and Hutter 2021, https://arxiv.org/abs/2103.10158).

    uint8 N×H×W×C. Torch's global generator is seeded a picture; the loop seeds it again before the network runs.
    """
    operation = _trivial_augment()
    pictures = []
    for image, seed in zip(images.permute(0, 3, 1, 2), seeds, strict=True):
        torch.default_generator.manual_seed(int(seed))
        pictures.append(operation(image))
    return torch.stack(pictures).permute(0, 2, 3, 1).contiguous()


@cache
def _trivial_augment() -> Callable[[Tensor], Any]:
    from torchvision.transforms.v2 import InterpolationMode, TrivialAugmentWide

    operation: Callable[[Tensor], Any] = TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR)
    return operation


def resized_crop(pictures: Tensor, boxes: Boxes) -> Tensor:
    """Each box of a picture, float N×C×H×W, stretched bilinearly over the whole of it."""
    size = np.array(pictures.shape[-2:])
    scale = boxes[:, 2:] / size
    centre = (2 * boxes[:, :2] + boxes[:, 2:]) / size - 1
    theta = np.zeros((len(boxes), 2, 3), np.float32)
    theta[:, 0, 0], theta[:, 0, 2] = scale[:, 1], centre[:, 1]
    theta[:, 1, 1], theta[:, 1, 2] = scale[:, 0], centre[:, 0]
    grid = functional.affine_grid(_on(theta, pictures), list(pictures.shape), align_corners=False)
    return functional.grid_sample(pictures, grid, padding_mode="border", align_corners=False)


def erased(pictures: Tensor, boxes: Boxes) -> Tensor:
    """Each box of a normalised picture set to 0, the mean colour (Zhong et al. 2017, https://arxiv.org/abs/1708.04896)."""
    return pictures.masked_fill(_inside(pictures, boxes), 0.0)


def mixed(pictures: Tensor, others: Tensor, draw: Draw) -> Tensor:
    """Pictures with their partners mixed in: a patch of each where `draw` has one (cutmix), else the weighted mean."""
    if draw.patch is not None:
        return torch.where(_inside(pictures, draw.patch), others, pictures)
    assert draw.share is not None
    return torch.lerp(others, pictures, _on(draw.share, pictures).view(-1, 1, 1, 1))


def _inside(pictures: Tensor, boxes: Boxes) -> Tensor:
    """N×1×H×W: whether a pixel lies in its picture's box."""
    top, left, height, width = _on(boxes, pictures).view(-1, 4, 1, 1, 1).unbind(1)
    y = torch.arange(pictures.shape[2], device=pictures.device).view(1, 1, -1, 1)
    x = torch.arange(pictures.shape[3], device=pictures.device).view(1, 1, 1, -1)
    return (y >= top) & (y < top + height) & (x >= left) & (x < left + width)


def _on(values: NDArray[Any], like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device, non_blocking=True)

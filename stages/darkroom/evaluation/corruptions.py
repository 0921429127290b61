"""How accuracy falls when pictures get worse: six corruptions at five levels, on batches of tensors.

After Hendrycks and Dietterich 2019 (https://arxiv.org/abs/1903.12261), with their levels for small pictures. The mean
corruption error here is the plain mean of the error shares: not divided by AlexNet's, which has none on other data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

LEVELS = 5


@dataclass(frozen=True)
class Corrupted:
    """One corruption at one level."""

    corruption: str
    level: int
    """1 (mild) to 5"""
    accuracy: float


def score_corrupted(
    hits: Callable[[NDArray[np.uint8]], NDArray[np.bool_]],
    images: NDArray[np.uint8],
    *,
    batch_size: int,
    seconds: float,
) -> list[Corrupted]:
    """Accuracy on `images` (N×H×W×C) under each corruption; `hits` says of all of them, corrupted, which are recognised.

    No further corruption is begun after `seconds`: what is not in the list was not scored.
    """
    found: list[Corrupted] = []
    started = time.monotonic()
    for name, corrupt in CORRUPTIONS.items():
        if time.monotonic() - started > seconds:
            break
        worse = (corrupted(images, corrupt, level, batch_size) for level in range(1, LEVELS + 1))
        found += [Corrupted(name, level, float(hits(each).mean())) for level, each in enumerate(worse, 1)]
    return found


def corruption_errors(found: list[Corrupted]) -> dict[str, float]:
    """Error share of each corruption over its levels, and `mean` of all.

    No mean where a corruption was left out: over fewer it would be another number under the same name.
    """
    errors = {name: [1 - each.accuracy for each in found if each.corruption == name] for name in CORRUPTIONS}
    means = {name: mean(shares) for name, shares in errors.items() if shares}
    return means | ({"mean": mean(means.values())} if len(means) == len(CORRUPTIONS) else {})


Corrupt = Callable[[Tensor, int, np.random.Generator], Tensor]
"""Float N×C×H×W in 0..1, level 1 to 5, random numbers -> the same, to be clipped"""


def corrupted(images: NDArray[np.uint8], corrupt: Corrupt, level: int, batch_size: int) -> NDArray[np.uint8]:
    """`images` (N×H×W×C) corrupted, `batch_size` at a time; the same whatever the batch size."""
    rng = np.random.default_rng(level)  # one stream over all pictures
    parts = []
    for start in range(0, len(images), batch_size):
        pixels = torch.from_numpy(np.array(images[start : start + batch_size])).permute(0, 3, 1, 2).float() / 255
        worse = (corrupt(pixels, level, rng).clamp(0, 1) * 255).round().to(torch.uint8)
        parts.append(worse.permute(0, 2, 3, 1).contiguous().numpy())
    return np.concatenate(parts)


def _noise(pixels: Tensor, level: int, rng: np.random.Generator) -> Tensor:
    deviation = (0.04, 0.06, 0.08, 0.09, 0.10)[level - 1]
    return pixels + deviation * torch.from_numpy(rng.standard_normal(pixels.shape, np.float32))


def _blur(pixels: Tensor, level: int, _rng: np.random.Generator) -> Tensor:
    """Gaussian; wider in larger pictures, as a lens out of focus is."""
    size = pixels.shape[-1]
    deviation = (0.4, 0.6, 0.7, 0.8, 1.0)[level - 1] * max(size / 32, 1)
    reach = min(math.ceil(3 * deviation), size - 1)
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / deviation) ** 2)
    weights = weights / weights.sum()
    channels = pixels.shape[1]
    for shape, padding in (((1, 1, 1, -1), (reach, reach, 0, 0)), ((1, 1, -1, 1), (0, 0, reach, reach))):
        kernel = weights.view(shape).expand(channels, *weights.view(shape).shape[1:])
        pixels = functional.conv2d(functional.pad(pixels, padding, mode="reflect"), kernel, groups=channels)
    return pixels


def _jpeg(pixels: Tensor, level: int, _rng: np.random.Generator) -> Tensor:
    """JPEG's loss without its file: 8×8 blocks, DCT, quantised by the standard's tables, channels at full resolution."""
    quality = (80, 65, 58, 50, 40)[level - 1]
    scale = (200 - 2 * quality if quality >= 50 else 5000 / quality) / 100
    height, width = pixels.shape[-2:]
    padded = functional.pad(pixels, (0, -width % 8, 0, -height % 8), mode="replicate")
    colour = padded.shape[1] == 3
    planes = torch.einsum("ij,njhw->nihw", _YCBCR, padded) if colour else padded
    blocks = planes.unfold(2, 8, 8).unfold(3, 8, 8) * 255 - 128 * torch.tensor([1.0, 0, 0][: planes.shape[1]]).view(
        1, -1, 1, 1, 1, 1
    )
    tables = (torch.stack([_LUMA, _CHROMA, _CHROMA][: planes.shape[1]]) * scale).round().clamp(1, 255)[:, None, None]
    kept = torch.round(_DCT @ blocks @ _DCT.T / tables) * tables
    planes = _DCT.T @ kept @ _DCT + 128 * torch.tensor([1.0, 0, 0][: planes.shape[1]]).view(1, -1, 1, 1, 1, 1)
    planes = planes.permute(0, 1, 2, 4, 3, 5).reshape(padded.shape) / 255
    restored = torch.einsum("ij,njhw->nihw", torch.linalg.inv(_YCBCR), planes) if colour else planes
    return restored[:, :, :height, :width]


def _brightness(pixels: Tensor, level: int, _rng: np.random.Generator) -> Tensor:
    return pixels + (0.05, 0.1, 0.15, 0.2, 0.3)[level - 1]


def _contrast(pixels: Tensor, level: int, _rng: np.random.Generator) -> Tensor:
    middle = pixels.mean(dim=(2, 3), keepdim=True)
    return middle + (pixels - middle) * (0.75, 0.5, 0.4, 0.3, 0.15)[level - 1]


def _rotation(pixels: Tensor, level: int, rng: np.random.Generator) -> Tensor:
    """To either side, by the picture's own draw."""
    angle = math.radians((5, 10, 15, 20, 30)[level - 1])
    turns = angle * torch.from_numpy(rng.choice((-1.0, 1.0), len(pixels)))
    cos, sin, zero = turns.cos(), turns.sin(), torch.zeros_like(turns)
    places = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1).float()
    grid = functional.affine_grid(places, list(pixels.shape), align_corners=False)
    return functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


CORRUPTIONS: dict[str, Corrupt] = {
    "noise": _noise,
    "blur": _blur,
    "JPEG": _jpeg,
    "brightness": _brightness,
    "contrast": _contrast,
    "rotation": _rotation,
}

_YCBCR = torch.tensor([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])
"""ITU-T T.871"""
_PLACES = torch.arange(8)
_DCT = torch.cos((2 * _PLACES[None] + 1) * _PLACES[:, None] * math.pi / 16) / 2
_DCT[0] /= math.sqrt(2)
_LUMA = torch.tensor([
    [16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55], [14, 13, 16, 24, 40, 57, 69, 56],
    [14, 17, 22, 29, 51, 87, 80, 62], [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
    [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99],
])  # fmt: skip
_CHROMA = torch.tensor([
    [17, 18, 24, 47, 99, 99, 99, 99], [18, 21, 26, 66, 99, 99, 99, 99], [24, 26, 56, 99, 99, 99, 99, 99],
    [47, 66, 99, 99, 99, 99, 99, 99], *[[99] * 8] * 4,
])  # fmt: skip
"""Tables K.1 and K.2 of ITU-T T.81, for quality 50"""

"""The random numbers of a step, drawn for all its pictures at once, then sliced.

So neither the number of micro-batches nor of devices changes what happens to a picture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from darkroom.training.recipe import Augmentation

ATTEMPTS = 10
"""rectangles drawn a picture; the first that fits is taken (as torchvision does)"""
CROP_RATIOS = (3 / 4, 4 / 3)
ERASED_AREA = (0.02, 0.33)
ERASED_RATIOS = (0.3, 3.3)

Boxes = NDArray[np.int64]
"""N×4: top, left, height, width in pixels"""


@dataclass(frozen=True)
class Draw:
    """What happens to each picture of a step; None: that change is off."""

    shift: NDArray[np.int64] | None = None
    """N×2: top and left of the crop in the padded picture"""
    flip: NDArray[np.bool_] | None = None
    crop: Boxes | None = None
    """what a random-resized crop keeps"""
    erase: Boxes | None = None
    """height 0: nothing is erased"""
    operation: NDArray[np.int64] | None = None
    """seed of the picture's trivial augmentation"""
    partner: NDArray[np.int64] | None = None
    """row, in the whole step, of the picture that is mixed in"""
    share: NDArray[np.float32] | None = None
    """of a picture's own label, 0..1"""
    patch: Boxes | None = None
    """cutmix: what comes from the partner; None with a partner: mixup"""

    def rows(self, rows: slice | NDArray[np.int64]) -> Draw:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Draw(**{name: None if value is None else value[rows] for name, value in values.items()})


def draw(augmentation: Augmentation, rng: np.random.Generator, num_images: int, image_size: int) -> Draw:
    """Random numbers for `num_images` pictures of `image_size` pixels a side."""
    padding, smallest = augmentation.crop_padding, augmentation.random_resized_crop
    drawn = Draw(
        shift=rng.integers(0, 2 * padding + 1, (num_images, 2)) if padding else None,
        flip=rng.random(num_images) < 0.5 if augmentation.flip else None,
        crop=_crops(rng, num_images, image_size, smallest) if smallest else None,
        erase=_erasures(rng, num_images, image_size, augmentation.erasing) if augmentation.erasing else None,
        operation=rng.integers(0, 2**62, num_images) if augmentation.trivial_augment else None,
    )
    return _mixed(drawn, augmentation, rng, num_images, image_size)


def _boxes(
    rng: np.random.Generator, num_images: int, size: int, area: tuple[float, float], ratios: tuple[float, float]
) -> Boxes:
    """Rectangles of random area and shape at random places; the whole picture where none of the attempts fits."""
    shape = (num_images, ATTEMPTS)
    areas = rng.uniform(*area, shape) * size**2
    ratio = np.exp(rng.uniform(math.log(ratios[0]), math.log(ratios[1]), shape))
    heights = np.rint(np.sqrt(areas / ratio)).astype(np.int64)
    widths = np.rint(np.sqrt(areas * ratio)).astype(np.int64)
    fits = (heights >= 1) & (widths >= 1) & (heights <= size) & (widths <= size)
    first = (np.arange(num_images), fits.argmax(axis=1))
    found = fits.any(axis=1)
    height, width = np.where(found, heights[first], size), np.where(found, widths[first], size)
    top, left = rng.integers(0, size - height + 1), rng.integers(0, size - width + 1)
    return np.stack([top, left, height, width], axis=1)


def _crops(rng: np.random.Generator, num_images: int, size: int, smallest: float) -> Boxes:
    return _boxes(rng, num_images, size, (smallest, 1.0), CROP_RATIOS)


def _erasures(rng: np.random.Generator, num_images: int, size: int, probability: float) -> Boxes:
    boxes = _boxes(rng, num_images, size, ERASED_AREA, ERASED_RATIOS)
    unfit = boxes[:, 2] * boxes[:, 3] == size**2
    boxes[unfit | (rng.random(num_images) >= probability), 2] = 0
    return boxes


def _mixed(drawn: Draw, augmentation: Augmentation, rng: np.random.Generator, num_images: int, size: int) -> Draw:
    """`drawn` with partner, share and patch; one share and one patch for the whole step, as torchvision has it.

    Zhang et al. 2018, https://arxiv.org/abs/1710.09412; Yun et al. 2019, https://arxiv.org/abs/1905.04899.
    """
    alphas = [("mixup", augmentation.mixup), ("cutmix", augmentation.cutmix)]
    alphas = [(kind, alpha) for kind, alpha in alphas if alpha]
    if not alphas:
        return drawn
    kind, alpha = alphas[int(rng.integers(len(alphas)))]
    share = float(rng.beta(alpha, alpha))
    partner = rng.permutation(num_images)
    patch = None
    if kind == "cutmix":
        box = _patch(rng, share, size)
        share = 1 - float(box[2] * box[3]) / size**2
        patch = np.tile(box, (num_images, 1))
    return replace(drawn, partner=partner, share=np.full(num_images, share, np.float32), patch=patch)


def _patch(rng: np.random.Generator, share: float, size: int) -> Boxes:
    """A square of 1 - `share` of the area around a random pixel, cut off at the picture's edge."""
    half = int(size * np.sqrt(1 - share) / 2)
    y, x = rng.integers(0, size, 2)
    top, left = max(y - half, 0), max(x - half, 0)
    return np.array([top, left, min(y + half, size) - top, min(x + half, size) - left])

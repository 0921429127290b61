"""Section `augment`: what happens to training pictures, in batches, on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from darkroom.params.base import Fault, Probability, Section, key


class Augment(Section):
    """Augmentation of training pictures; validation and test pictures are never changed."""

    crop_padding: Annotated[int, Field(ge=0, le=64)] = key(
        "pixels of zeros around the picture before a random crop of its own size; 0: off"
    )
    flip: bool = key("mirror half of the pictures left to right", also=("hflip", "fliplr"))
    random_resized_crop: Annotated[float, Field(ge=0, le=1)] = key(
        "smallest share of the area that a random resized crop keeps; 0: off"
    )
    erasing: Probability = key("probability of erasing a rectangle of a picture", also=("random_erasing", "reprob"))
    trivial_augment: bool = key("one random operation a picture (TrivialAugmentWide, torchvision)")
    mixup: Annotated[float, Field(ge=0, le=10)] = key("alpha of the Beta distribution of mixup; 0: off")
    cutmix: Annotated[float, Field(ge=0, le=10)] = key(
        "alpha of the Beta distribution of cutmix; 0: off; with mixup each batch takes one of both"
    )

    def faults(self) -> Iterator[Fault]:
        if self.crop_padding and self.random_resized_crop:
            yield (
                "augment.crop_padding",
                f"{self.crop_padding} and augment.random_resized_crop: {self.random_resized_crop} are two croppings (set one of them to 0)",
            )

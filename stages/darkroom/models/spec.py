"""What a network is, in plain values: enough to build it again anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

TORCHVISION = "torchvision:"
AUTO_WIDTH = {"mlp": 256, "simple_cnn": 32, "vgg": 64, "resnet": 64}
AUTO_BLOCKS = {"vgg": (1, 1, 2, 2), "resnet": (2, 2, 2, 2)}
"""a VGG-11 without its last stage, a ResNet-18"""


@dataclass(frozen=True)
class NetworkSpec:
    """A network without its weights. Nothing in it is `auto`."""

    name: str
    """mlp, simple_cnn, vgg, resnet or torchvision:<name>"""
    width: int
    """hidden units of mlp, channels of the first layer of the others; 0 for torchvision"""
    blocks: tuple[int, ...]
    """convolutions in each stage of vgg, blocks in each of resnet; empty for the others"""
    dropout: float
    """probability of dropping a feature before the last layer"""
    channels: int
    """of a picture: 1 or 3"""
    image_size: int
    """pixels a side"""
    num_classes: int

    @property
    def torchvision_name(self) -> str | None:
        """Torchvision's own name for the network, None for the networks of this room."""
        return self.name.removeprefix(TORCHVISION) if self.name.startswith(TORCHVISION) else None

    def plain(self) -> dict[str, Any]:
        """The fields as JSON knows them."""
        return {**asdict(self), "blocks": list(self.blocks)}

    @classmethod
    def of(cls, values: dict[str, Any]) -> NetworkSpec:
        """The spec that `plain` wrote. Raises TypeError or KeyError on other values."""
        return cls(**{**values, "blocks": tuple(values["blocks"])})


def network_spec(
    name: str,
    *,
    width: int | Literal["auto"],
    blocks: Sequence[int] | Literal["auto"],
    dropout: float,
    channels: int,
    image_size: int,
    num_classes: int,
) -> NetworkSpec:
    """The spec that the `model` section of params.yaml and the data describe, with every `auto` resolved."""
    staged = AUTO_BLOCKS.get(name, ())
    return NetworkSpec(
        name=name,
        width=AUTO_WIDTH.get(name, 0) if width == "auto" else width,
        blocks=tuple(blocks) if staged and blocks != "auto" else staged,
        dropout=dropout,
        channels=channels,
        image_size=image_size,
        num_classes=num_classes,
    )

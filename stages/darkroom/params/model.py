"""Section `model`: which network."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import Field

from darkroom.params.base import Fault, Fraction, Section, key
from darkroom.params.torchvision_names import TORCHVISION_CLASSIFIERS

OWN_NETWORKS = ("mlp", "simple_cnn", "vgg", "resnet")
STAGED = ("vgg", "resnet")
"""networks that `blocks` means something for"""


class Model(Section):
    """The network; input channels and the number of classes follow the data."""

    name: str = key("mlp, simple_cnn, vgg, resnet or torchvision:<name>", also=("arch", "architecture", "backbone"))
    width: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = key(
        "hidden units of mlp, channels of the first layer of the others; auto: 256, or 32 (simple_cnn), or 64"
    )
    blocks: Literal["auto"] | Annotated[list[Annotated[int, Field(ge=1, le=64)]], Field(min_length=1, max_length=5)] = (
        key(
            "resnet: blocks in each stage, auto: [2, 2, 2, 2], a ResNet-18; vgg: convolutions, auto: [1, 1, 2, 2]",
            also=("layers", "depth"),
        )
    )
    dropout: Fraction = key(
        "probability of dropping a feature before the last layer; 0: off", also=("drop", "drop_rate")
    )
    pretrained: bool = key("torchvision only: start from its published weights", also=("weights",))
    freeze: Literal["none", "backbone"] = key("backbone: only the last layer trains, until train.unfreeze_epoch")
    init: str = key("start from an earlier model: a file, runs:/ID or models:/NAME@champion; empty: from scratch")

    def faults(self) -> Iterator[Fault]:
        is_torchvision = self.name.startswith("torchvision:")
        if is_torchvision and self.name.removeprefix("torchvision:") not in TORCHVISION_CLASSIFIERS:
            yield (
                "model.name",
                f"{self.name!r} is none of torchvision's classifiers{_nearest(self.name.removeprefix('torchvision:'))}",
            )
        elif not is_torchvision and self.name not in OWN_NETWORKS:
            yield (
                "model.name",
                f"{self.name!r} is no network here ({', '.join(OWN_NETWORKS)}, torchvision:<name>){_nearest(self.name)}",
            )
        if is_torchvision and self.width != "auto":
            yield "model.width", f"{self.width} means nothing for torchvision: networks (set it to auto)"
        if self.name not in STAGED and self.blocks != "auto":
            yield "model.blocks", f"{self.blocks} means nothing for {self.name} (set it to auto)"
        if self.pretrained and not is_torchvision:
            yield (
                "model.pretrained",
                f"true means nothing for {self.name}: only torchvision: networks have published weights (set it to false)",
            )
        if self.pretrained and self.init:
            yield "model.init", f"{self.init!r} and model.pretrained: true are two beginnings (drop one of them)"
        if self.init.strip().lower() in ("none", "null"):
            yield "model.init", f"{self.init!r} is text; for no earlier model leave it empty ('')"
        if self.freeze == "backbone" and not (self.pretrained or self.init):
            yield "model.freeze", "backbone would keep random weights (needs model.pretrained: true or model.init)"


def _nearest(name: str) -> str:
    close = get_close_matches(name, TORCHVISION_CLASSIFIERS, n=1)
    return f"; did you mean torchvision:{close[0]}?" if close else ""

"""Networks by name: one table, one function."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from darkroom.errors import UserError
from darkroom.models.layers import head_name
from darkroom.models.own import Mlp, ResNet, SimpleCnn, Vgg
from darkroom.models.published import build_published, built_for_size
from darkroom.models.spec import NetworkSpec

__all__ = ["NETWORKS", "build_network", "check_image_size", "head_name", "network_outline"]

NETWORKS: dict[str, Callable[[NetworkSpec], nn.Module]] = {
    "mlp": Mlp, "simple_cnn": SimpleCnn, "vgg": Vgg, "resnet": ResNet,
}  # fmt: skip
LARGEST_TRIED = 512
"""pixels a side up to which the smallest size that a network takes is looked for"""


def build_network(spec: NetworkSpec) -> nn.Module:
    """The bare network with random weights from torch's generator, in training mode.

    Takes normalised float N×C×H×W, gives logits N×num_classes.
    """
    return NETWORKS.get(spec.name, build_published)(spec)


def network_outline(spec: NetworkSpec) -> nn.Module:
    """The network on the meta device: shapes without numbers, in milliseconds; torch's generator is left alone."""
    try:
        with torch.device("meta"):
            return build_network(spec)
    except NotImplementedError:  # regnet computes its widths with tensors
        with torch.random.fork_rng(devices=[]):
            return build_network(spec).to("meta")


def check_image_size(spec: NetworkSpec) -> None:
    """Raises UserError, with the size that would do, where the network cannot take pictures of `image_size`."""
    fault = _fault(spec)
    if fault is None:
        return
    enough = _smallest_enough(spec)
    needed = f"set data.image_size: {enough}" if enough else "choose another model.name"
    raise UserError(
        f"model.name: {spec.name} cannot take pictures of {spec.image_size} pixels a side ({fault}): {needed}"
    )


def _smallest_enough(spec: NetworkSpec) -> int | None:
    """The smallest larger size that the network takes, up to LARGEST_TRIED."""
    sizes = range(spec.image_size + 1, LARGEST_TRIED + 1)
    if built_for_size(spec):
        return next((size for size in sizes if _fault(replace(spec, image_size=size)) is None), None)
    network = network_outline(spec)
    place = bisect_left(sizes, 1, key=lambda size: _fault(replace(spec, image_size=size), network) is None)
    return sizes[place] if place < len(sizes) else None


def _fault(spec: NetworkSpec, network: nn.Module | None = None) -> str | None:
    """What torch says of a forward pass at this size, None if nothing. Tried on the meta device: no memory, no weights."""
    images = torch.empty(2, spec.channels, spec.image_size, spec.image_size, device="meta")
    try:
        with torch.no_grad():
            logits = (network or network_outline(spec)).eval()(images)
    except (RuntimeError, ValueError, AssertionError) as error:
        return str(error).splitlines()[0]
    assert logits.shape == (2, spec.num_classes)
    return None

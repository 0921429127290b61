"""Torchvision's classifiers for any number of channels and classes, and their published weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from darkroom.errors import UserError
from darkroom.models.layers import DropoutLinear, first_convolution, head_name, replace
from darkroom.models.spec import NetworkSpec


def build_published(spec: NetworkSpec) -> nn.Module:
    """Torchvision's network with random weights: its first convolution takes `channels`, its last layer gives `num_classes`."""
    from torchvision.models import get_model

    name = spec.torchvision_name
    assert name is not None
    network: nn.Module = get_model(name, weights=None, num_classes=spec.num_classes, **_settings(name, spec))
    _take_channels(network, spec.channels)
    if spec.dropout:
        _drop_features(network, spec.dropout)
    return network


def built_for_size(spec: NetworkSpec) -> bool:
    """Whether the network's very layers depend on the picture's size."""
    name = spec.torchvision_name
    return name is None or any(setting in _settings(name, spec) for setting in ("image_size", "input_size"))


def _settings(name: str, spec: NetworkSpec) -> dict[str, Any]:
    """Arguments of torchvision that depend on the pictures, or that would add a second output."""
    if name in ("googlenet", "inception_v3"):
        # transform_input undoes ImageNet's normalisation, which these pictures never had
        return {"aux_logits": False, "init_weights": True, "transform_input": False}
    if name.startswith("vit_"):
        return {"image_size": spec.image_size}
    return {"input_size": (spec.image_size, spec.image_size)} if name == "maxvit_t" else {}


def _take_channels(network: nn.Module, channels: int) -> None:
    name = first_convolution(network)
    assert name is not None
    conv = network.get_submodule(name)
    assert isinstance(conv, nn.Conv2d)
    if conv.in_channels == channels:
        return
    adapted = nn.Conv2d(
        channels,
        conv.out_channels,
        conv.kernel_size,  # type: ignore[arg-type]  # torch types the attribute as any tuple, the argument as a pair
        conv.stride,  # type: ignore[arg-type]
        conv.padding,  # type: ignore[arg-type]
        bias=conv.bias is not None,
    )
    replace(network, name, adapted)


def _drop_features(network: nn.Module, probability: float) -> None:
    name = head_name(network)
    head = network.get_submodule(name)
    if isinstance(head, nn.Linear):
        replace(network, name, DropoutLinear(head, probability))
    else:  # squeezenet: a convolution right behind a dropout of its own
        for module in network.modules():
            if isinstance(module, nn.Dropout):
                module.p = probability


def published_weights(name: str) -> dict[str, Tensor]:
    """Torchvision's best published weights for the network, as float32 on the CPU, keys plain.

    Raises UserError in one line, with the address and the folder to put the file in, where they cannot be fetched.
    """
    from torchvision.models import get_model, get_model_weights

    best = get_model_weights(name).DEFAULT
    try:
        best.get_state_dict(progress=True, check_hash=True, weights_only=True)
    except Exception as error:
        raise UserError(
            f"model.pretrained: {best.url} cannot be read ({error}): fetch it into {torch.hub.get_dir()}/checkpoints "
            "(TORCH_HOME names another cache), or set model.pretrained: false"
        ) from None
    auxiliary = ("aux1.", "aux2.", "AuxLogits.")
    weights = get_model(name, weights=best).state_dict()
    return {key: value for key, value in weights.items() if not key.startswith(auxiliary)}

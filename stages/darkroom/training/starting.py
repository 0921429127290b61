"""The network that a training starts with: random, published or earlier weights; frozen or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from darkroom.errors import UserError
from darkroom.models import NetworkSpec, SavedModel, build_network, head_name
from darkroom.models.layers import first_convolution, load_plain
from darkroom.models.published import published_weights
from darkroom.training.freezing import freeze_backbone
from darkroom.training.randomness import Purpose, seed_torch, torch_seed


@dataclass(frozen=True)
class Start:
    """A network ready to train, and what is worth saying about where its weights come from."""

    network: nn.Module
    notes: list[str]


def start_network(
    spec: NetworkSpec, *, seed: int, pretrained: bool = False, init: SavedModel | None = None, freeze: bool = False
) -> Start:
    """The network of `spec` with its first weights, on the CPU.

    Random weights are a function of `seed`. `pretrained` takes torchvision's, `init` an earlier model's: a last layer
    of another size starts anew, a first convolution of other channels is adapted; both are said in the notes.
    Raises UserError that names every other mismatch, or the address of weights that cannot be fetched.
    """
    with torch.random.fork_rng(devices=[]):
        seed_torch(torch_seed(seed, Purpose.WEIGHTS), torch.device("cpu"))
        network = build_network(spec)
    notes: list[str] = []
    if pretrained and spec.torchvision_name:
        notes = load_weights(network, published_weights(spec.torchvision_name), "torchvision's weights")
    if init:
        notes = load_weights(network, init.weights, f"model.init ({init.network.name})")
    if freeze:
        freeze_backbone(network)
    return Start(network, notes)


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], source: str) -> list[str]:
    """Loads `weights` into `network` in place; what had to be changed for it, a sentence each.

    `source` names where they come from. Raises UserError that names weights that are missing, left over or of another
    shape, the first convolution's channels and the last layer aside.
    """
    own = network.state_dict()
    fitted = dict(weights)
    notes = [*_fit_channels(network, fitted, own, source), *_fit_head(network, fitted, own, source)]
    _fit_positions(fitted, own)
    faults = [f"{key} is missing" for key in own if key not in fitted]
    faults += [f"{key} is left over" for key in fitted if key not in own]
    faults += [
        f"{key} is {_shape(value)}, here {_shape(own[key])}"
        for key, value in fitted.items()
        if key in own and value.shape != own[key].shape
    ]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise UserError(
            f"{source} does not fit the network: {'; '.join(faults[:3])}{more} "
            "(set the model section as that model had it, or leave model.init empty)"
        )
    load_plain(network, fitted)
    return notes


def _fit_channels(network: nn.Module, fitted: dict[str, Tensor], own: dict[str, Tensor], source: str) -> list[str]:
    """RGB filters become grey ones by summing over the colours, grey ones RGB by sharing out: a grey picture gives the same."""
    name = first_convolution(network)
    key = f"{name}.weight"
    if name is None or key not in fitted:
        return []
    have, need = fitted[key].shape[1:2], own[key].shape[1:2]
    if have == need or {*have, *need} != {1, 3}:
        return []
    fitted[key] = fitted[key].sum(1, keepdim=True) if need == (1,) else fitted[key].repeat(1, 3, 1, 1) / 3
    return [f"{source}: the first convolution takes {need[0]} channel(s) instead of {have[0]}"]


def _fit_head(network: nn.Module, fitted: dict[str, Tensor], own: dict[str, Tensor], source: str) -> list[str]:
    """A last layer of another size keeps its random start."""
    head = head_name(network)
    key = f"{head}.weight"
    if key not in fitted or fitted[key].shape == own[key].shape:
        return []
    note = f"{source}: the last layer starts anew ({_shape(fitted[key])} there, {_shape(own[key])} here)"
    fitted.update({name: value for name, value in own.items() if name.startswith(f"{head}.")})
    return [note]


def _fit_positions(fitted: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    """A vision transformer's position embedding, stretched to this picture's number of patches (as torchvision does)."""
    key = "encoder.pos_embedding"
    if key not in fitted or key not in own or fitted[key].shape == own[key].shape:
        return
    token, grid = fitted[key][:, :1], fitted[key][:, 1:]
    before, after = (round((positions.shape[1] - 1) ** 0.5) for positions in (fitted[key], own[key]))
    picture = grid.permute(0, 2, 1).reshape(1, -1, before, before)
    stretched = nn.functional.interpolate(picture, size=(after, after), mode="bicubic", align_corners=True)
    fitted[key] = torch.cat([token, stretched.flatten(2).permute(0, 2, 1)], dim=1)


def _shape(tensor: Tensor) -> str:
    return "×".join(str(size) for size in tensor.shape)

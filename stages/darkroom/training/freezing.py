"""A frozen backbone: only the last layer trains, until it is opened."""

from __future__ import annotations

from torch import nn

from darkroom.models import head_name

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def freeze_backbone(network: nn.Module) -> None:
    """Takes the gradient from all weights but the last layer's."""
    network.requires_grad_(requires_grad=False)
    network.get_submodule(head_name(network)).requires_grad_(requires_grad=True)


def open_backbone(network: nn.Module) -> None:
    network.requires_grad_(requires_grad=True)


def is_frozen(network: nn.Module) -> bool:
    return not all(parameter.requires_grad for parameter in network.parameters())


def train_mode(network: nn.Module) -> None:
    """Training mode, save for frozen batch norms: their statistics belong to their weights and stay too."""
    network.train()
    for module in network.modules():
        if isinstance(module, NORMS) and module.weight is not None and not module.weight.requires_grad:
            module.eval()


def has_batch_norm(network: nn.Module) -> bool:
    return any(isinstance(module, NORMS) for module in network.modules())

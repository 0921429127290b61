"""SGD with Nesterov momentum and AdamW."""

from __future__ import annotations

import torch
from torch import nn

from darkroom.training.recipe import Recipe


def build_optimizer(network: nn.Module, recipe: Recipe, *, fused: bool) -> torch.optim.Optimizer:
    """The recipe's optimizer over all weights, frozen ones too (without a gradient they are passed over).

    Biases and norms, which have one dimension, are not decayed (Goyal et al. 2017, https://arxiv.org/abs/1706.02677).
    """
    parameters = list(network.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.lr, betas=(recipe.momentum, 0.999), fused=fused)
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.momentum > 0, fused=fused)


def can_fuse(network: nn.Module, precision: str) -> bool:
    """Whether one kernel may update all weights.

    Torch's fused SGD leaves its momentum uninitialised when the first step is skipped (fp16), and cannot start the
    momentum of weights that join later (a frozen backbone).
    """
    return precision != "fp16" and all(parameter.requires_grad for parameter in network.parameters())


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr

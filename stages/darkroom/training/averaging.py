"""Exponential moving average of the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Average:
    """Average of a network's weights and of its floating-point buffers (batch norm's statistics), a step at a time.

    The decay starts low, (1 + n) / (10 + n) at update n, so that early averages forget the random start, and rises to
    `decay` (as in TensorFlow's ExponentialMovingAverage). Statistics are averaged like the weights, so that they fit
    them; counters are copied.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.weights = {key: value.detach().clone() for key, value in network.state_dict().items()}

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        current = network.state_dict()
        floating = [key for key, value in current.items() if value.is_floating_point()]
        get_ema_multi_avg_fn(decay)(  # type: ignore[no-untyped-call]  # torch's
            [self.weights[key] for key in floating], [current[key] for key in floating], self.updates
        )
        for key in current.keys() - set(floating):
            self.weights[key].copy_(current[key])

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for key, value in self.weights.items():
            value.copy_(state["weights"][key])

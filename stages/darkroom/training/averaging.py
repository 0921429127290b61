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
        current = {key: value.detach() for key, value in network.state_dict().items()}
        self.weights = {key: value.clone() for key, value in current.items()}
        # training changes a network's tensors in place: they are looked up once, not at every step
        floating = [key for key, value in current.items() if value.is_floating_point()]
        self._averaged = [self.weights[key] for key in floating], [current[key] for key in floating]
        self._copied = [(self.weights[key], current[key]) for key in current if key not in floating]

    @torch.no_grad()
    def update(self) -> None:
        """Takes the network's present weights in."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        get_ema_multi_avg_fn(decay)(*self._averaged, self.updates)  # type: ignore[no-untyped-call]  # torch's
        for average, current in self._copied:
            average.copy_(current)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for key, value in self.weights.items():
            value.copy_(state["weights"][key])

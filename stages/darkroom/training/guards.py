"""What goes wrong in a network while it trains, found and named: gradients that vanish, explode or are no numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

VANISHING, EXPLODING = 1e-7, 1e4
"""Root mean square of a layer group's gradient norm over an epoch, relative to the norm of its weights."""


@dataclass(frozen=True)
class Norms:
    """2-norms of a step's gradient before clipping, on the device."""

    each: Tensor
    """of each weight, 0 for one without a gradient; in the network's order"""
    total: Tensor


def group_of(name: str) -> str:
    """The layer group of a weight: `stages.1.0.conv1.weight` is of `stages.1`, `head.bias` of `head`."""
    first, _, rest = name.partition(".")
    second = rest.partition(".")[0]
    return f"{first}.{second}" if second.isdigit() else first


class GradientWatch:
    """Gradient norms of each layer group over an epoch, and what is worth a word about them."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self.weights = dict(network.named_parameters())
        self.names = list(self.weights)
        self._squares = torch.zeros(len(self.names), device=device)
        self._steps = 0
        self._said: set[str] = set()

    def add(self, norms: Norms) -> None:
        """Takes a step in. Nothing is read from the device."""
        self._squares += norms.each.square()
        self._steps += 1

    def end_epoch(self) -> tuple[dict[str, float], list[str]]:
        """{group: root mean square of its gradient norm over the epoch's steps}, and a line for each new trouble."""
        steps = max(self._steps, 1)
        squares = dict(zip(self.names, (self._squares.double() / steps).tolist(), strict=True))  # device sync
        self._squares.zero_()
        self._steps = 0
        trained = [name for name in self.names if self.weights[name].requires_grad]
        groups: dict[str, float] = {}
        for name in trained:
            groups[group_of(name)] = groups.get(group_of(name), 0.0) + squares[name]
        norms = {group: math.sqrt(square) for group, square in groups.items()}
        return norms, [*self._new(self._dead(trained, squares)), *self._new(self._extreme(norms))]

    def _dead(self, trained: list[str], squares: dict[str, float]) -> Iterator[str]:
        dead = [name for name in trained if squares[name] == 0 and self.weights[name].ndim > 1]
        if dead:
            yield (
                f"dead: the gradient of {_listed(dead)} was 0 in every step of an epoch "
                "(no path to the loss, or units that no picture reaches: a lower train.lr may help)"
            )

    def _extreme(self, norms: dict[str, float]) -> Iterator[str]:
        sizes: dict[str, float] = {}
        for name, weight in self.weights.items():
            sizes[group_of(name)] = sizes.get(group_of(name), 0.0) + float(weight.detach().square().sum())
        relative = {group: norm / max(math.sqrt(sizes[group]), 1e-12) for group, norm in norms.items()}
        small = [group for group, value in relative.items() if 0 < value < VANISHING]
        large = [group for group, value in relative.items() if value > EXPLODING]
        if small:
            yield f"vanishing: the gradient of {_listed(small)} is below {VANISHING:g} of the weights"
        if large:
            yield f"exploding: the gradient of {_listed(large)} is above {EXPLODING:g} of the weights (a lower train.lr?)"

    def _new(self, lines: Iterator[str]) -> list[str]:
        new = [line for line in lines if line not in self._said]
        self._said.update(new)
        return new

    def state_dict(self) -> dict[str, Any]:
        return {"squares": self._squares, "steps": self._steps, "said": sorted(self._said)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._squares.copy_(state["squares"])
        self._steps = state["steps"]
        self._said = set(state["said"])


def where_not_finite(network: nn.Module, names: list[str], each: Tensor, forward: Callable[[], object]) -> str:
    """The place where a step's numbers stopped being finite, in words.

    `forward` runs the step's pictures through the network again. Found from the input on: a weight, a layer's output; else
    the gradient that the last layer with a bad one got, for gradients flow from there to the input.
    """
    bad = next((name for name, weight in network.named_parameters() if not torch.isfinite(weight).all()), None)
    if bad:
        return f"the weights {bad}"
    with _outputs(network) as found, torch.no_grad():
        forward()
    if found:
        return f"the output of {found[0]}"
    return bad_gradient(names, each)


def bad_gradient(names: list[str], each: Tensor) -> str:
    """The gradient that is not finite and comes first on the way back, in words; else the loss."""
    bad = [name for name, norm in zip(names, each.tolist(), strict=True) if not math.isfinite(norm)]
    return f"the gradient of {bad[-1]}" if bad else "the loss"


@contextmanager
def _outputs(network: nn.Module) -> Iterator[list[str]]:
    """The names of the layers whose outputs are not finite, in the order in which they come."""
    found: list[str] = []

    def look(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not torch.isfinite(output).all():
                found.append(name)

        return hook

    layers = [(name, module) for name, module in network.named_modules() if not any(module.children())]
    handles = [module.register_forward_hook(look(name)) for name, module in layers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

"""Where a network begins and ends, whichever family it is of."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional


def first_convolution(network: nn.Module) -> str | None:
    """The dotted name of the layer that sees the picture, None in a network without convolutions."""
    return next((name for name, module in network.named_modules() if isinstance(module, nn.Conv2d)), None)


def head_name(network: nn.Module) -> str:
    """The dotted name of the last layer, the one with an output for each class.

    The last linear layer or convolution in order of definition: so for all networks of this room and all of torchvision's
    classifiers, which a test holds.
    """
    names: list[str] = [name for name, module in network.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    return names[-1]


def replace(network: nn.Module, name: str, module: nn.Module) -> None:
    """Puts `module` where the dotted `name` points."""
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, module)


def load_plain(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Loads `weights`, which are exactly the network's, into it.

    Plain weights lack the version that torch notes beside a module's own, and mnasnet refuses weights of unknown version.
    """
    state = network.state_dict()
    assert state.keys() == weights.keys()
    state.update(weights)
    network.load_state_dict(state)


class DropoutLinear(nn.Linear):
    """A linear layer that drops features first; same keys as the plain layer, so weights fit both."""

    def __init__(self, linear: nn.Linear, probability: float) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None)
        self.weight, self.bias = linear.weight, linear.bias
        self.probability = probability

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(functional.dropout(features, self.probability, self.training))

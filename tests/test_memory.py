"""Gradient checkpointing: the same bits with less kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from darkroom.errors import UserError
from darkroom.models import NetworkSpec, build_network
from darkroom.training.memory import checkpoint_gradients
from sessions import digits, records, same_weights, session, small

TRAIN, VAL = digits(0, 150), digits(150, 250)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_checkpointed_is_plain_bit_for_bit(name: str, precision: str) -> None:
    settings: dict[str, Any] = {"precision": precision, "ema_decay": 0.9, "accumulate": 2, "clip_norm": 1.0}
    plain, ours = (
        session(small(name, dropout=0.3), TRAIN, VAL, grad_checkpoint=on, **settings) for on in (False, True)
    )
    told = [[(step.loss, step.grad_norm) for step in records(each)[0]] for each in (plain, ours)]
    assert told[0] == told[1]
    assert same_weights(plain.result().weights, ours.result().weights), "batch norm's statistics too"


def test_less_is_kept_for_the_backward_pass() -> None:
    def kept(*, checkpointed: bool) -> int:
        network = build_network(small("resnet", blocks=[3, 3]))
        if checkpointed:
            assert checkpoint_gradients(network) == 6
        num = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal num
            num += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            network(torch.rand(16, 1, 8, 8))
        return num

    assert kept(checkpointed=True) < 0.4 * kept(checkpointed=False)


def test_a_network_without_blocks_is_refused() -> None:
    with pytest.raises(UserError, match="train.grad_checkpoint: this network has no blocks"):
        session(small("mlp"), TRAIN, VAL, grad_checkpoint=True)


@pytest.mark.parametrize("name", ["densenet121", "efficientnet_b0", "vit_b_32", "resnet18"])
def test_published_networks_have_blocks(name: str) -> None:
    spec = NetworkSpec(f"torchvision:{name}", 0, (), 0.0, 1, 32, 10)
    network, images = build_network(spec).eval(), torch.rand(2, 1, 32, 32)
    expected = network(images)
    expected.sum().backward()
    gradient = next(network.parameters()).grad
    assert gradient is not None
    before = gradient.clone()
    network.zero_grad()
    assert checkpoint_gradients(network) >= 4
    network.train()
    for module in network.modules():
        if not any(module.children()):
            module.eval()  # no dropout, no batch statistics: the same numbers in training mode
    network(images).sum().backward()
    gradient = next(network.parameters()).grad
    assert gradient is not None
    assert torch.allclose(gradient, before, rtol=1e-4, atol=1e-5 * float(before.abs().max()))


def test_weights_keep_their_names() -> None:
    network = build_network(small("resnet"))
    before = list(network.state_dict())
    checkpoint_gradients(network)
    assert list(network.state_dict()) == before

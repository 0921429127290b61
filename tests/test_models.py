"""Networks by name: shapes, sizes that fit, and all of torchvision's classifiers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torchvision
from torch import nn

from darkroom.errors import UserError
from darkroom.models import NetworkSpec, build_network, check_image_size, head_name, network_spec
from darkroom.models.layers import DropoutLinear
from darkroom.models.networks import network_outline
from darkroom.params.torchvision_names import TORCHVISION_CLASSIFIERS


def spec(name: str, *, size: int = 28, channels: int = 1, classes: int = 10, dropout: float = 0.0) -> NetworkSpec:
    return network_spec(
        name, width="auto", blocks="auto", dropout=dropout, channels=channels, image_size=size, num_classes=classes
    )


def num_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_mlp_is_784_256_10() -> None:
    network = build_network(spec("mlp"))
    assert num_parameters(network) == 784 * 256 + 256 + 256 * 10 + 10
    assert network(torch.rand(3, 1, 28, 28)).shape == (3, 10)


def test_simple_cnn_has_32_and_64_channels() -> None:
    network = build_network(spec("simple_cnn"))
    assert num_parameters(network) == (9 * 32 + 32) + (9 * 32 * 64 + 64) + (64 * 14 * 14 * 10 + 10)
    assert network(torch.rand(3, 1, 28, 28)).shape == (3, 10)


def test_vgg_by_default_is_a_vgg_11_with_batch_norm_without_its_last_stage() -> None:
    vgg11 = torchvision.models.vgg11_bn().features[:22]
    assert num_parameters(build_network(spec("vgg", size=32, channels=3))) == (
        num_parameters(vgg11) - (64 + 128 + 256 + 256 + 512 + 512) + 512 * 10 + 10
    ), "its convolutions have no bias: batch norm has one"


def test_resnet_18_for_cifar_has_its_11_million_weights() -> None:
    # 11,173,962: the ResNet-18 with a 3×3 stem that CIFAR-10 is commonly trained with
    network = network_outline(spec("resnet", size=32, channels=3))
    assert num_parameters(network) == 11_173_962


@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_staged_networks_take_any_list_of_blocks_and_halve_the_maps_at_each_stage(name: str) -> None:
    for blocks in ([1], [2, 1], [1, 1, 1, 1, 1]):
        chosen = network_spec(name, width=8, blocks=blocks, dropout=0.1, channels=3, image_size=33, num_classes=7)
        network = build_network(chosen)
        assert network(torch.rand(2, 3, 33, 33)).shape == (2, 7)
        assert network.get_submodule("head").in_features == 8 * 2 ** (len(blocks) - 1)


@pytest.mark.parametrize("name", ["mlp", "simple_cnn", "vgg", "resnet"])
@pytest.mark.parametrize("width", [3, 16, 20])
def test_gradients_are_those_of_plain_kernels(name: str, width: int) -> None:
    torch.manual_seed(0)
    chosen = network_spec(name, width=width, blocks="auto", dropout=0.0, channels=1, image_size=16, num_classes=5)
    network = build_network(chosen).to(memory_format=torch.channels_last)
    images = torch.rand(8, 1, 16, 16).to(memory_format=torch.channels_last)

    def gradients() -> dict[str, torch.Tensor]:
        network.zero_grad()
        network(images).square().mean().backward()
        return {key: weight.grad.clone() for key, weight in network.named_parameters() if weight.grad is not None}

    fast = gradients()
    torch.backends.mkldnn.enabled, before = False, torch.backends.mkldnn.enabled
    try:
        plain = gradients()
    finally:
        torch.backends.mkldnn.enabled = before
    for key, gradient in plain.items():
        assert torch.allclose(fast[key], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max())), key


def test_no_published_network_has_the_layer_whose_gradient_onednn_gets_wrong() -> None:
    for name in TORCHVISION_CLASSIFIERS:
        size = 224 if name.startswith(("vit", "maxvit", "swin")) else 96
        for module in network_outline(spec(f"torchvision:{name}", size=size, channels=1)).modules():
            if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.stride != (1, 1):
                assert module.in_channels >= 16, f"{name}: {module}; see darkroom.models.own.Subsampled"


def test_spec_is_plain_and_comes_back() -> None:
    chosen = spec("resnet")
    assert chosen.blocks == (2, 2, 2, 2)
    assert chosen.width == 64
    assert NetworkSpec.of(chosen.plain()) == chosen
    assert spec("torchvision:resnet18").width == 0
    assert spec("mlp").blocks == ()


@pytest.mark.parametrize("name", ["mlp", "simple_cnn", "vgg", "resnet"])
def test_head_is_the_last_layer(name: str) -> None:
    assert head_name(build_network(spec(name))) == "head"


FAMILIES = [
    ("alexnet", 64), ("convnext_tiny", 32), ("densenet121", 32), ("efficientnet_b0", 32), ("googlenet", 32),
    ("inception_v3", 75), ("maxvit_t", 224), ("mnasnet0_5", 32), ("mobilenet_v2", 32), ("mobilenet_v3_small", 32),
    ("regnet_x_400mf", 32), ("resnet18", 32), ("shufflenet_v2_x0_5", 32), ("squeezenet1_1", 32), ("swin_t", 32),
    ("swin_v2_t", 32), ("vgg11", 32), ("vgg11_bn", 32), ("vit_b_32", 32),
]  # fmt: skip
"""One of each family, with a size that it takes."""


@pytest.mark.parametrize(("name", "size"), FAMILIES)
@pytest.mark.parametrize("channels", [1, 3])
def test_torchvisions_families_follow_channels_classes_and_size(name: str, size: int, channels: int) -> None:
    chosen = spec(f"torchvision:{name}", size=size, channels=channels, classes=7)
    check_image_size(chosen)
    head = network_outline(chosen).get_submodule(head_name(network_outline(chosen)))
    assert head.weight.shape[0] == 7


def test_every_family_of_torchvision_is_tried() -> None:
    import torchvision

    listed = torchvision.models.list_models(module=torchvision.models)
    assert tuple(listed) == TORCHVISION_CLASSIFIERS
    builders = {name: torchvision.models.get_model_builder(name).__module__ for name in listed}
    assert {builders[name] for name, _ in FAMILIES} == set(builders.values())


def test_torchvision_network_runs_and_gives_one_output() -> None:
    for name, size in (("googlenet", 32), ("inception_v3", 75)):
        with torch.random.fork_rng():
            network = build_network(spec(f"torchvision:{name}", size=size, classes=4))
        assert network(torch.rand(2, 1, size, size)).shape == (2, 4)  # in training mode, where torchvision adds two


@pytest.mark.parametrize(
    ("name", "size", "enough"), [("vgg11", 8, 32), ("inception_v3", 32, 75), ("vit_b_16", 28, 32), ("alexnet", 32, 63)]
)
def test_pictures_that_are_too_small_are_named_with_the_size_that_would_do(name: str, size: int, enough: int) -> None:
    chosen = spec(f"torchvision:{name}", size=size)
    with pytest.raises(UserError, match=f"cannot take pictures of {size} pixels a side .*data.image_size: {enough}$"):
        check_image_size(chosen)
    check_image_size(replace(chosen, image_size=enough))


def test_checking_a_size_leaves_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    check_image_size(spec("torchvision:regnet_x_400mf", size=32))
    check_image_size(spec("resnet"))
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_before_the_last_layer_keeps_its_keys() -> None:
    plain = build_network(spec("torchvision:resnet18", size=32))
    dropping = build_network(spec("torchvision:resnet18", size=32, dropout=0.5))
    assert plain.state_dict().keys() == dropping.state_dict().keys()
    head = dropping.get_submodule("fc")
    assert isinstance(head, DropoutLinear)
    features = torch.ones(1000, 512)
    with torch.no_grad():
        head.weight.fill_(1.0)
        head.bias.zero_()
        assert torch.equal(head.eval()(features), torch.full((1000, 10), 512.0))
        dropped = head.train()(features)
    assert dropped[:, 0].std() > 10  # of Binomial(512, 0.5) × 2: 22.6
    assert abs(float(dropped[:, 0].mean()) - 512) < 4


def test_squeezenets_own_dropout_is_set() -> None:
    network = build_network(spec("torchvision:squeezenet1_1", size=32, dropout=0.25))
    assert [module.p for module in network.modules() if isinstance(module, nn.Dropout)] == [0.25]

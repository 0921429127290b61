"""First weights: seeded, published, earlier ones; and a frozen backbone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.errors import UserError
from darkroom.models import Preprocessing, SavedModel, build_network, network_spec
from darkroom.training import Augmentation, EpochRecord, Session, devices, start_network
from darkroom.training.freezing import freeze_backbone
from darkroom.training.starting import load_weights
from sessions import digits, recipe, same_weights, small


def saved(name: str = "resnet", **changes: Any) -> SavedModel:
    spec = small(name, **changes)
    network = start_network(spec, seed=5).network
    return SavedModel.of(
        network=spec, weights=network.state_dict(), classes=[str(place) for place in range(spec.num_classes)],
        preprocessing=Preprocessing(8, spec.channels, "crop", [0.5], [0.5]), temperature=1.0, run_id="",
        data_sha256="", made_with={},
    )  # fmt: skip


def test_first_weights_follow_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = start_network(small("resnet"), seed=0).network.state_dict()
    state = torch.get_rng_state()
    torch.manual_seed(2)
    second = start_network(small("resnet"), seed=0).network.state_dict()
    assert same_weights(dict(first), dict(second))
    assert not same_weights(dict(first), dict(start_network(small("resnet"), seed=1).network.state_dict()))
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())  # and leave torch's generator alone


def test_init_takes_every_weight() -> None:
    earlier = saved()
    start = start_network(small("resnet"), seed=0, init=earlier)
    assert start.notes == []
    assert same_weights(dict(start.network.state_dict()), earlier.weights)


def test_a_head_of_another_size_starts_anew_and_is_said() -> None:
    earlier = saved()
    start = start_network(small("resnet", num_classes=4), seed=0, init=earlier)
    assert start.notes == ["model.init (resnet): the last layer starts anew (10×8 there, 4×8 here)"]
    weights = dict(start.network.state_dict())
    assert weights["head.weight"].shape == (4, 8)
    fresh = start_network(small("resnet", num_classes=4), seed=0).network.state_dict()
    assert torch.equal(weights["head.weight"], fresh["head.weight"])
    assert torch.equal(weights["stem.0.weight"], earlier.weights["stem.0.weight"])


def test_other_channels_are_adapted_so_that_grey_pictures_give_the_same() -> None:
    grey = torch.rand(4, 1, 8, 8)
    for have, need in ((3, 1), (1, 3)):
        earlier = saved(channels=have)
        start = start_network(small("resnet", channels=need), seed=0, init=earlier)
        assert start.notes == [f"model.init (resnet): the first convolution takes {need} channel(s) instead of {have}"]
        before = build_network(earlier.network)
        before.load_state_dict(earlier.weights)
        with torch.no_grad():
            expected = before.eval()(grey.expand(-1, have, -1, -1))
            logits = start.network.eval()(grey.expand(-1, need, -1, -1))
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_other_mismatches_are_named() -> None:
    with pytest.raises(UserError, match=r"model.init \(simple_cnn\) does not fit the network: .*is missing.* more"):
        start_network(small("resnet"), seed=0, init=saved("simple_cnn"))
    with pytest.raises(UserError, match=re.escape("conv1.weight is 4×4×3×3, here 8×8×3×3")):
        start_network(small("resnet", width=8), seed=0, init=saved())


def test_weights_that_cannot_be_fetched_name_address_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: Any, **__: Any) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.urlopen", no_network)
    spec = network_spec(
        "torchvision:resnet18", width="auto", blocks="auto", dropout=0.0, channels=1, image_size=32, num_classes=10
    )
    with pytest.raises(UserError) as caught:
        start_network(spec, seed=0, pretrained=True)
    message = str(caught.value)
    assert "https://download.pytorch.org/models/resnet18-f37072fd.pth" in message
    assert f"{tmp_path}/hub/checkpoints" in message
    assert "\n" not in message


@pytest.mark.parametrize(("name", "size"), [("resnet18", 32), ("googlenet", 32), ("densenet121", 32)])
def test_published_weights_from_the_cache_become_grey_with_our_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    import torchvision

    published = torchvision.models.get_model(name, weights=None, init_weights=False) if name == "googlenet" else (
        torchvision.models.get_model(name, weights=None)
    )  # fmt: skip
    file = torchvision.models.get_model_weights(name).DEFAULT.url.rsplit("/", 1)[-1]
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(published.state_dict(), tmp_path / "hub" / "checkpoints" / file)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    spec = network_spec(
        f"torchvision:{name}", width="auto", blocks="auto", dropout=0.0, channels=1, image_size=size, num_classes=10
    )
    start = start_network(spec, seed=0, pretrained=True, freeze=True)
    assert len(start.notes) == 2
    first = next(key for key in published.state_dict() if key.endswith("weight"))
    torch.testing.assert_close(start.network.state_dict()[first], published.state_dict()[first].sum(1, keepdim=True))
    trained = [key for key, parameter in start.network.named_parameters() if parameter.requires_grad]
    assert len(trained) == 2
    assert start.network(torch.rand(2, 1, size, size)).shape == (2, 10)


def test_position_embeddings_of_a_transformer_are_stretched() -> None:
    def vit(size: int) -> torch.nn.Module:
        spec = network_spec(
            "torchvision:vit_b_32",
            width="auto",
            blocks="auto",
            dropout=0.0,
            channels=3,
            image_size=size,
            num_classes=10,
        )
        with torch.device("meta"):
            return build_network(spec)

    weights = {key: torch.zeros(value.shape) for key, value in vit(224).state_dict().items()}
    weights["encoder.pos_embedding"] = torch.arange(50.0).view(1, 50, 1).expand(1, 50, 768).clone()
    target = vit(64).to_empty(device="cpu")
    assert load_weights(target, weights, "weights") == []
    stretched = target.state_dict()["encoder.pos_embedding"][0, :, 0]
    torch.testing.assert_close(stretched, torch.tensor([0.0, 1.0, 7.0, 43.0, 49.0]))  # token, then the four corners


def test_frozen_backbone_stays_bit_for_bit_until_it_is_opened() -> None:
    train, val = digits(0, 150), digits(150, 200)
    start = start_network(small("resnet", dropout=0.1), seed=0, init=saved(), freeze=True)
    ours = Session(
        start.network, train, val, recipe=recipe(epochs=3, unfreeze_epoch=2, weight_decay=0.1, momentum=0.9),
        augmentation=_nothing(), num_classes=10, mean=[0.3], std=[0.35],
    )  # fmt: skip
    before = {key: value.clone() for key, value in start.network.state_dict().items()}
    changed: list[set[str]] = []
    for record in ours.run():
        if isinstance(record, EpochRecord):
            now = ours.network.state_dict()
            changed.append({key for key in now if not torch.equal(now[key], before[key])})
    assert changed[0] == changed[1] == {"head.weight", "head.bias"}
    assert changed[2] == set(before)  # batch norm's statistics too


def test_freezing_names_the_last_layer_whatever_the_family() -> None:
    for name in ("mlp", "simple_cnn", "resnet"):
        network = build_network(small(name))
        freeze_backbone(network)
        assert [key for key, p in network.named_parameters() if p.requires_grad] == ["head.weight", "head.bias"]


def _nothing() -> Any:
    from darkroom.training import Augmentation

    return Augmentation()


def of_stages(stages: int, precision: str) -> Session:
    """A ResNet on 8×8 pictures; the fifth stage convolves a single pixel with a stride."""
    chosen = small("resnet", width=16, blocks=[1] * stages)
    taken = recipe(precision=precision, device="cpu")
    return Session(
        start_network(chosen, seed=0).network, digits(0, 40), digits(40, 60), recipe=taken, augmentation=Augmentation(),
        num_classes=10, mean=[0.5], std=[0.5],
    )  # fmt: skip


def test_bf16_is_not_taken_where_a_cpu_gets_its_gradient_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_cpu_has_bf16", lambda: True)
    automatic = of_stages(5, "auto")
    assert automatic.precision == "fp32"
    assert "train.precision: auto takes fp32: stages.4.0.conv1 convolves maps of one pixel" in automatic.note
    with pytest.raises(
        UserError, match=r"train.precision: bf16: stages.4.0.conv1 .*: take fp32, or a larger data.image"
    ):
        of_stages(5, "bf16")
    assert of_stages(5, "fp32").precision == "fp32"
    assert (of_stages(4, "auto").precision, of_stages(4, "auto").note) == ("bf16", "")

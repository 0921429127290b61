"""models/model.pt: what goes in comes out, the same bytes each time, and nothing damaged or foreign is taken."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from darkroom.errors import UserError
from darkroom.models import Preprocessing, SavedModel, build_network, load_model, save_model
from sessions import digits, same_weights, small


def saved(**changes: Any) -> SavedModel:
    torch.manual_seed(0)
    spec = small("resnet")
    values: dict[str, Any] = {
        "network": spec,
        "weights": build_network(spec).to(memory_format=torch.channels_last).state_dict(),
        "classes": [str(digit) for digit in range(10)],
        "preprocessing": Preprocessing(image_size=8, channels=1, resize="crop", mean=[0.3], std=[0.35]),
        "temperature": 1.25,
        "run_id": "a" * 32,
        "data_sha256": "b" * 64,
        "made_with": {"torch": torch.__version__, "threads": 2},
    }
    return SavedModel.of(**{**values, **changes})


def test_model_comes_back_whole(tmp_path: Path) -> None:
    model = saved()
    save_model(tmp_path / "model.pt", model)
    back = load_model(tmp_path / "model.pt")
    assert same_weights(back.weights, model.weights)
    assert {**vars(back), "weights": 0} == {**vars(model), "weights": 0}
    assert all(weight.is_contiguous() for weight in back.weights.values())


def test_same_content_gives_the_same_bytes_anywhere(tmp_path: Path) -> None:
    save_model(tmp_path / "model.pt", saved())
    save_model(tmp_path / "elsewhere" / "other.pt", saved())
    content = (tmp_path / "model.pt").read_bytes()
    assert content == (tmp_path / "elsewhere" / "other.pt").read_bytes()
    assert str(tmp_path).encode() not in content


def test_hash_follows_all_that_shapes_a_prediction_and_nothing_else() -> None:
    model = saved()
    assert saved(run_id="c" * 32, data_sha256="d" * 64, made_with={}).model_sha256 == model.model_sha256
    weights = {key: value.clone() for key, value in model.weights.items()}
    weights["head.bias"][3] += 1e-6
    others = [
        saved(weights=weights),
        saved(temperature=1.26),
        saved(classes=[*model.classes[:9], "ten"]),
        saved(preprocessing=Preprocessing(image_size=8, channels=1, resize="pad", mean=[0.3], std=[0.35])),
    ]
    assert len({model.model_sha256, *(other.model_sha256 for other in others)}) == 5


def test_built_classifier_normalises_by_itself() -> None:
    model = saved()
    images = torch.from_numpy(digits(0, 5).images).permute(0, 3, 1, 2)
    assert images.dtype == torch.uint8
    classifier = model.build()
    network = build_network(model.network)
    network.load_state_dict(model.weights)
    with torch.no_grad():
        expected = network.eval()((images.float() / 255 - 0.3) / 0.35)
        logits = classifier(images)
    assert not classifier.training
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    assert model.num_parameters() == sum(parameter.numel() for parameter in network.parameters())


def test_missing_file_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.pt is missing: run dvc repro train$"):
        load_model(tmp_path / "model.pt")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save_model(path, saved())
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for place in rng.integers(0, len(content), 60).tolist():
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(damaged))
        try:
            back = load_model(path)
        except UserError:
            refused += 1
        else:  # a flip in the padding between the container's records
            assert same_weights(back.weights, saved().weights)
            assert {**vars(back), "weights": 0} == {**vars(saved()), "weights": 0}
    assert refused > 30
    for content_of_another_kind in (b"", content[:1000], content[:-100], b"<html>no model</html>"):
        path.write_bytes(content_of_another_kind)
        with pytest.raises(UserError, match="damaged or no model"):
            load_model(path)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("/nowhere/evil"),))


def test_foreign_and_evil_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"state_dict": {}}, path)
    with pytest.raises(UserError, match="no model of this project"):
        load_model(path)
    torch.save({"format": 99}, path)
    with pytest.raises(UserError, match="another version"):
        load_model(path)
    torch.save({"format": 1, "network": {}}, path)
    with pytest.raises(UserError, match="damaged"):
        load_model(path)
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match="damaged or no model"):
        load_model(path)
    with pytest.raises(UserError, match="is a folder"):
        load_model(tmp_path)


def test_weights_of_a_network_that_asks_for_their_version() -> None:
    """torchvision's mnasnet refuses weights without the version that torch notes beside a module's own."""
    spec = replace(small("resnet"), name="torchvision:mnasnet0_5", width=0, blocks=(), image_size=32)
    network = build_network(spec).eval()
    model = saved(network=spec, weights=network.state_dict())
    images = torch.randint(0, 256, (2, 1, 32, 32), dtype=torch.uint8)
    with torch.inference_mode():
        expected = network((images / 255 - 0.3) / 0.35)
        assert torch.allclose(model.build()(images), expected)

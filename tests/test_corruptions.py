"""darkroom.evaluation.corruptions and attention: worse pictures, and what a network looks at."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from darkroom.evaluation.attention import class_activation
from darkroom.evaluation.corruptions import CORRUPTIONS, LEVELS, corrupted, corruption_errors, score_corrupted
from darkroom.models import NetworkSpec, build_network, network_spec
from darkroom.models.saved import Classifier, Normalize


def pictures(num: int, size: int, channels: int) -> np.ndarray:
    """Smooth ones, with an edge: what JPEG and blur have something to do on."""
    y, x = np.mgrid[:size, :size] / size
    planes = [np.sin(7 * x + i) * 60 + 128 + 60 * (y > 0.5) * (-1) ** c for i in range(num) for c in range(channels)]
    return np.array(planes).reshape(num, channels, size, size).transpose(0, 2, 3, 1).clip(0, 255).astype(np.uint8)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(float) - b).mean())


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize(("size", "channels"), [(8, 1), (30, 3)])
def test_each_level_is_worse_than_the_one_before_and_keeps_shape_and_kind(name: str, size: int, channels: int) -> None:
    images = pictures(6, size, channels)
    worse = [corrupted(images, CORRUPTIONS[name], level, 4) for level in range(1, LEVELS + 1)]
    assert {(each.shape, each.dtype) for each in worse} == {(images.shape, np.dtype(np.uint8))}
    distances = [distance(images, each) for each in worse]
    assert distances == sorted(distances)
    assert distances[0] > 0


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_batch_size_changes_no_picture(name: str) -> None:
    images = pictures(7, 16, 3)
    whole = corrupted(images, CORRUPTIONS[name], 3, 7)
    assert distance(whole, corrupted(images, CORRUPTIONS[name], 3, 2)) < 0.01
    assert np.array_equal(whole, corrupted(images, CORRUPTIONS[name], 3, 7))


def test_jpeg_is_as_far_from_the_picture_as_pillows() -> None:
    images = np.array([np.asarray(Image.fromarray(p).resize((64, 64))) for p in pictures(3, 24, 3)])
    ours = corrupted(images, CORRUPTIONS["JPEG"], 5, 8)
    for picture, mine in zip(images, ours, strict=True):
        content = io.BytesIO()
        Image.fromarray(picture).save(content, "JPEG", quality=40, subsampling=0)
        theirs = np.asarray(Image.open(content))
        assert distance(mine, theirs) < 1, "theirs rounds its colours, too"
        assert distance(mine, picture) == pytest.approx(distance(theirs, picture), rel=0.15)


def test_brightness_and_contrast_by_hand() -> None:
    images = np.array([50, 100, 150, 250], np.uint8).reshape(1, 2, 2, 1)
    assert corrupted(images, CORRUPTIONS["brightness"], 2, 1).ravel().tolist() == [76, 126, 176, 255]
    middle = (50 + 100 + 150 + 250) / 4
    expected = [round(middle + (v - middle) * 0.5) for v in (50, 100, 150, 250)]
    assert corrupted(images, CORRUPTIONS["contrast"], 2, 1).ravel().tolist() == pytest.approx(expected, abs=1)


def test_a_mean_error_is_of_all_or_there_is_none() -> None:
    images = pictures(4, 8, 1)
    found = score_corrupted(lambda worse: np.array([True, True, True, False]), images, batch_size=4, seconds=60)
    assert len(found) == len(CORRUPTIONS) * LEVELS
    assert corruption_errors(found) == dict.fromkeys([*CORRUPTIONS, "mean"], 0.25)
    none = score_corrupted(lambda worse: np.ones(4, bool), images, batch_size=4, seconds=0)
    assert corruption_errors(none) == {}
    assert set(corruption_errors(found[:10])) == {"noise", "blur"}


class Quadrant(nn.Module):
    """Class 1 for a bright top left quarter, class 0 for a dark one."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Conv2d(1, 2, 1)
        self.look.weight.data = torch.tensor([-1.0, 1.0]).view(2, 1, 1, 1)
        self.look.bias.data.zero_()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.look(images)
        return maps[:, :, :4, :4].mean((2, 3))


def test_what_decides_is_bright_and_the_rest_is_not() -> None:
    images = np.zeros((2, 8, 8, 1), np.uint8)
    images[:, :4, :4] = 255
    images[1, 4:, 4:] = 200
    model = Classifier(Normalize([0.0], [1.0]), Quadrant())
    heat = class_activation(model, images, np.array([1, 1]))
    assert heat is not None
    assert heat.shape == (2, 8, 8)
    assert heat[0, :4, :4].min() == heat.max() == 1.0
    assert heat[0, 5:].max() == 0


def spec(name: str, size: int) -> NetworkSpec:
    if name.startswith("torchvision"):
        return network_spec(name, width="auto", blocks="auto", dropout=0.0, channels=3, image_size=size, num_classes=5)
    return network_spec(name, width=8, blocks="auto", dropout=0.0, channels=3, image_size=size, num_classes=5)


@pytest.mark.parametrize(
    ("name", "size", "has_maps"),
    [
        ("resnet", 16, True), ("vgg", 16, True), ("simple_cnn", 8, True), ("mlp", 8, False),
        ("torchvision:resnet18", 64, True), ("torchvision:mobilenet_v3_small", 64, True),
        ("torchvision:densenet121", 64, True), ("torchvision:vit_b_32", 64, False), ("torchvision:swin_t", 64, False),
    ],
)  # fmt: skip
def test_convolutional_networks_show_where_they_looked_and_others_say_nothing(
    name: str, size: int, has_maps: bool
) -> None:
    model = Classifier(Normalize([0.5] * 3, [0.25] * 3), build_network(spec(name, size)))
    images = pictures(3, size, 3)
    heat = class_activation(model, images, np.array([0, 1, 4]))
    assert (heat is not None) == has_maps
    if heat is not None:
        assert heat.shape == (3, size, size)
        assert heat.min() >= 0
        assert heat.max() <= 1

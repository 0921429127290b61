"""The networks of this project: a perceptron, a small CNN, and VGGs and ResNets for small pictures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from darkroom.models.spec import NetworkSpec


class Mlp(nn.Module):
    """Two layers: pixels to `width` hidden units to classes."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.hidden = nn.Linear(spec.channels * spec.image_size**2, spec.width)
        self.dropout = nn.Dropout(spec.dropout)
        self.head = nn.Linear(spec.width, spec.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(functional.relu(self.hidden(images.flatten(1)))))
        return logits


class SimpleCnn(nn.Module):
    """Two 3×3 convolutions of `width` and 2 × `width` channels, 2×2 max-pool, one linear layer."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(spec.channels, spec.width, 3, padding=1)
        self.conv2 = nn.Conv2d(spec.width, 2 * spec.width, 3, padding=1)
        self.dropout = nn.Dropout(spec.dropout)
        self.head = nn.Linear(2 * spec.width * (spec.image_size // 2) ** 2, spec.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = functional.relu(self.conv2(functional.relu(self.conv1(images))))
        logits: Tensor = self.head(self.dropout(functional.max_pool2d(maps, 2).flatten(1)))
        return logits


class Vgg(nn.Module):
    """Stages of 3×3 convolutions with batch norm; each later stage halves the maps and doubles the width.

    Simonyan and Zisserman 2015 (https://arxiv.org/abs/1409.1556) for small pictures: the maximum over the last maps in place
    of the hidden layers. On a CPU the most accurate of these networks a minute of training.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.stages = nn.Sequential(*_plain_stages(spec.channels, spec.width, spec.blocks))
        self.dropout = nn.Dropout(spec.dropout)
        self.head = nn.Linear(spec.width * 2 ** (len(spec.blocks) - 1), spec.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.stages(images)
        logits: Tensor = self.head(self.dropout(maps.amax((2, 3))))
        return logits


def _plain_stages(before: int, width: int, blocks: Sequence[int]) -> list[nn.Sequential]:
    stages = []
    for stage, count in enumerate(blocks):
        layers: list[nn.Module] = [nn.MaxPool2d(2)] if stage else []
        for _ in range(count):
            channels = width * 2**stage
            norm = nn.BatchNorm2d(channels)
            layers += [nn.Conv2d(before, channels, 3, padding=1, bias=False), norm, nn.ReLU(inplace=True)]
            before = channels
        stages.append(nn.Sequential(*layers))
    return stages


BLOCK = 16
"""channels that a CPU's convolutions take at a time, at most (AVX-512)"""


class Subsampled(nn.Conv2d):
    """A 1×1 convolution with a stride, trained on the pixels that the stride leaves: for fewer than BLOCK input channels.

    The same numbers as nn.Conv2d(before, channels, 1, stride), whose weight gradient oneDNN gets wrong there on a CPU, writing
    past its memory (https://github.com/uxlfoundation/oneDNN/issues/6035). With more channels the plain one is right, and a
    seventh of a training step faster; without a gradient it is right, too, and what other engines know (export).
    """

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__(before, channels, 1, stride, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and self.weight.requires_grad):
            return super().forward(maps)
        down, across = self.stride
        return functional.conv2d(maps[:, :, ::down, ::across], self.weight)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut (He et al. 2016, https://arxiv.org/abs/1512.03385)."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != channels:
            narrow = before < BLOCK
            pointwise = (
                Subsampled(before, channels, stride) if narrow else nn.Conv2d(before, channels, 1, stride, bias=False)
            )
            self.shortcut = nn.Sequential(pointwise, nn.BatchNorm2d(channels))

    def forward(self, maps: Tensor) -> Tensor:
        inner: Tensor = functional.relu(self.norm1(self.conv1(maps)), inplace=True)
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(maps), inplace=True)


class ResNet(nn.Module):
    """A 3×3 stem without max-pool, then stages of basic blocks; each later stage halves the maps and doubles the width."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(spec.channels, spec.width, 3, padding=1, bias=False),
            nn.BatchNorm2d(spec.width),
            nn.ReLU(inplace=True),
        )
        self.stages = nn.Sequential(*_stages(spec.width, spec.blocks))
        self.dropout = nn.Dropout(spec.dropout)
        self.head = nn.Linear(spec.width * 2 ** (len(spec.blocks) - 1), spec.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        maps = self.stages(self.stem(images))
        logits: Tensor = self.head(self.dropout(maps.mean((2, 3))))
        return logits


def _stages(width: int, blocks: Sequence[int]) -> list[nn.Sequential]:
    stages = []
    before = width
    for stage, count in enumerate(blocks):
        channels = width * 2**stage
        strides = [1 if stage == 0 else 2] + [1] * (count - 1)
        inputs = [before] + [channels] * (count - 1)
        stages.append(nn.Sequential(*(BasicBlock(i, channels, s) for i, s in zip(inputs, strides, strict=True))))
        before = channels
    return stages

"""Scores over all validation pictures, and the temperature that calibrates them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from darkroom.training.augment import Normalizer
from darkroom.training.batches import Pictures
from darkroom.training.devices import autocast
from darkroom.training.world import ALONE, World

PIXELS = 2**19
"""a channel in one batch: 512 pictures of 32×32, 10 of 224×224; fixed, so that the digits are the same every time"""
TEMPERATURES = (0.05, 20.0)


@torch.no_grad()
def validation_logits(
    network: nn.Module,
    weights: Mapping[str, Tensor],
    pictures: Pictures,
    normalize: Normalizer,
    precision: str,
    *,
    channels_last: bool,
    world: World = ALONE,
) -> Tensor:
    """Logits float32 N×K on the CPU, of `network` in eval mode with `weights` in place of its own. No augmentation.

    Of several processes each takes its share of the batches, which are the same for any number, and gets all logits.
    """
    device = next(network.parameters()).device
    layout = torch.channels_last if channels_last else torch.contiguous_format
    size = max(PIXELS // pictures.images.shape[1] ** 2, 1)
    training = network.training
    network.eval()
    logits = {}
    for start in range(world.rank * size, len(pictures.labels), world.size * size):
        images = torch.from_numpy(np.array(pictures.images[start : start + size])).to(device, non_blocking=True)
        with autocast(device, precision):
            batch = normalize(images).contiguous(memory_format=layout)
            logits[start] = functional_call(network, dict(weights), (batch,)).float()
    network.train(training)
    own = {start: part.cpu() for start, part in logits.items()}  # device sync
    everyones = {start: part for parts in world.gather(own) for start, part in parts.items()}
    return torch.cat([everyones[start] for start in sorted(everyones)])


def scores(logits: Tensor, labels: NDArray[np.int64]) -> tuple[float, float]:
    """Accuracy and mean negative log-likelihood, in float64."""
    targets = torch.from_numpy(np.array(labels))
    loss = nn.functional.cross_entropy(logits.double(), targets)
    return float((logits.argmax(1) == targets).double().mean()), float(loss)


def fit_temperature(logits: Tensor, labels: NDArray[np.int64]) -> float:
    """The T for which softmax(logits / T) has the least negative log-likelihood (Guo et al. 2017, https://arxiv.org/abs/1706.04599).

    One picture more than there are is counted, and counted as wrong, spread over all pictures (Platt 1999): so that T is finite
    and sensible where every validation picture is right. 1 where a logit is not finite.
    The likelihood is concave in 1 / T: its derivative is bisected.
    """
    if not torch.isfinite(logits).all():
        return 1.0
    num, classes = logits.shape
    wrong = 1 / (num + 2)
    z = logits.double()
    z = z - z.mean(1, keepdim=True)
    own = z.gather(1, torch.from_numpy(np.array(labels)).unsqueeze(1)).squeeze(1)
    # the other classes' mean logit, as z sums to 0
    target = ((1 - wrong) * own - wrong * own / (classes - 1)).mean()
    low, high = 1 / TEMPERATURES[1], 1 / TEMPERATURES[0]
    for _ in range(60):
        middle = (low * high) ** 0.5
        expected = (torch.softmax(middle * z, 1) * z).sum(1).mean()
        low, high = (low, middle) if expected > target else (middle, high)
    return float(2 / (low + high))

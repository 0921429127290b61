"""Cross-entropy as sums, so that micro-batches add up to the whole step."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from darkroom.training.batches import Batch, Cut


class CrossEntropy:
    """Cross-entropy with label smoothing, class weights and mixed labels.

    A step's loss is the sum over its pictures divided by the sum of their labels' weights: torch's `cross_entropy`
    with `reduction="mean"`, in parts.
    """

    def __init__(self, smoothing: float, class_weights: NDArray[np.float32] | None, device: torch.device) -> None:
        self.smoothing = smoothing
        self.class_weights = class_weights
        """a class; None: all 1"""
        self._on_device = None if class_weights is None else torch.from_numpy(class_weights).to(device)

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        """Sum over the micro-batch, float32, on the device."""
        losses = self._losses(logits, batch.labels)
        if batch.other_labels is not None and batch.share is not None:
            losses = batch.share * losses + (1 - batch.share) * self._losses(logits, batch.other_labels)
        return losses.sum()

    def _losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(
            logits.float(), labels, weight=self._on_device, label_smoothing=self.smoothing, reduction="none"
        )

    def weight(self, cut: Cut) -> float:
        """The sum of the label weights of a whole step: what its summed losses are divided by."""
        if self.class_weights is None:
            return float(len(cut))
        own = self.class_weights[cut.labels].astype(np.float64)
        if cut.draw.partner is None or cut.draw.share is None:
            return float(own.sum())
        return float((cut.draw.share * own + (1 - cut.draw.share) * own[cut.draw.partner]).sum())


def balanced_weights(labels: NDArray[np.int64], num_classes: int) -> NDArray[np.float32]:
    """A weight a class, inversely proportional to its pictures, 1 on average over the pictures; 0 for an empty class."""
    counts = np.bincount(labels, minlength=num_classes)
    weights = np.divide(len(labels) / np.count_nonzero(counts), counts, where=counts > 0, out=np.zeros(num_classes))
    return weights.astype(np.float32)

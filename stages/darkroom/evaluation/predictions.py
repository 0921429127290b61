"""What a model says of each picture of a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from darkroom.evaluation.scores import log_softmax


@dataclass(frozen=True)
class Predictions:
    """N pictures, K classes."""

    classes: list[str]
    labels: NDArray[np.int64]
    """N"""
    log_probabilities: NDArray[np.float64]
    """N×K"""

    @classmethod
    def of(
        cls, views: Sequence[NDArray[np.float32]], labels: NDArray[np.int64], *, classes: list[str], temperature: float
    ) -> Predictions:
        """From the logits (N×K) of each view of the pictures, whose probabilities are averaged.

        `temperature` divides the logits (Guo et al. 2017, https://arxiv.org/abs/1706.04599).
        """
        logs = [log_softmax(logits.astype(np.float64) / temperature) for logits in views]
        return cls(classes, labels, np.logaddexp.reduce(logs) - np.log(len(logs)) if len(logs) > 1 else logs[0])

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """N: the likeliest class"""
        return np.asarray(self.log_probabilities.argmax(axis=1))

    @cached_property
    def hits(self) -> NDArray[np.bool_]:
        """N: whether the likeliest class is the right one"""
        return np.asarray(self.predicted == self.labels)

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """N: the probability of the likeliest class"""
        return np.asarray(np.exp(self.log_probabilities.max(axis=1)))

    @cached_property
    def mistakes(self) -> NDArray[np.int64]:
        """Places of the pictures that were taken for another class, the most confident mistake first."""
        places = np.flatnonzero(~self.hits)
        return places[np.argsort(-self.confidence[places], kind="stable")]

    @cached_property
    def unsure(self) -> NDArray[np.int64]:
        """Places of the pictures that were recognised, the least confident first."""
        places = np.flatnonzero(self.hits)
        return places[np.argsort(self.confidence[places], kind="stable")]

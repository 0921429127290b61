"""What the loop yields, and what is left at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from darkroom.training.progress import Progress


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step.

    `loss` and `grad_norm` stay on the device until they are read: reading waits for the device, so on a GPU read the
    records of many steps together.
    """

    step: int
    """steps taken since the beginning, this one included"""
    epoch: int
    """the epoch that it belongs to, from 1"""
    lr: float
    num_images: int
    skipped: bool
    """the optimizer did not step: in fp16 the gradient overflowed, or it was not finite and train.on_nonfinite is not stop"""
    loss_on_device: Tensor
    grad_norm_on_device: Tensor
    notes: tuple[str, ...] = ()
    """what is worth a line on the screen"""

    @property
    def loss(self) -> float:
        """Mean training loss of the whole step, whatever `accumulate` is."""
        return float(self.loss_on_device)  # device sync

    @property
    def grad_norm(self) -> float:
        """2-norm of the gradient before clipping."""
        return float(self.grad_norm_on_device)  # device sync


@dataclass(frozen=True)
class EpochRecord:
    """One epoch, with the validation that ended it."""

    epoch: int
    """epochs done, this one included"""
    step: int
    """steps taken since the beginning"""
    train_loss: float
    """mean over the epoch's pictures, as trained: augmented, smoothed, weighted"""
    val_loss: float
    """mean negative log-likelihood over all validation pictures, in the training precision"""
    val_accuracy: float
    lr: float
    """of the epoch's last step"""
    images_per_s: float
    """training pictures a second, validation not counted"""
    seconds: float
    """for the epoch, validation included"""
    skipped_steps: int
    """since the beginning"""
    is_best: bool
    """better than every epoch before"""
    grad_norms: dict[str, float] = field(default_factory=dict)
    """root mean square over the epoch's steps, a layer group"""
    notes: tuple[str, ...] = ()
    """what is worth a line on the screen: layers whose gradient vanishes, explodes or is zero"""


@dataclass(frozen=True)
class PartRecord:
    """The validation in the middle of an epoch."""

    epoch: int
    """the epoch that is under way, from 1"""
    part: int
    """parts of it that are done, from 1; the last part ends with the epoch's own record"""
    val_accuracy: float
    val_loss: float


@dataclass(frozen=True)
class Outcome:
    """The chosen weights and their scores."""

    weights: dict[str, Tensor]
    """state dict on the CPU with plain keys; the average where `ema_decay` is on"""
    temperature: float
    """fitted on the validation logits"""
    val_accuracy: float
    """of these weights in float32, the precision that they leave in"""
    val_loss: float
    best_epoch: int
    """the best by the monitor, from 1; 0: no epoch ended with finite scores"""
    best_val_accuracy: float
    """validation accuracy at the best epoch, in the training precision"""
    chosen_epoch: int
    """that the weights are of: the best or the last"""
    epochs: int
    """done"""
    steps: int
    skipped_steps: int
    train_loss: float
    """of the last epoch"""
    images_per_s: float
    seconds: float
    stopped_early: bool
    num_parameters: int
    precision: str
    device: str
    threads: int
    channels_last: bool
    compiled: bool
    accumulate: int
    """micro-batches of a step at the end"""
    nonfinite_steps: int
    """left out, since their loss or gradient was not finite"""
    processes: int

    @classmethod
    def of(cls, progress: Progress, **rest: Any) -> Outcome:
        """What `progress` knows, and the rest."""
        counted = {name: getattr(progress, name) for name in COUNTED}
        return cls(epochs=progress.epoch, best_val_accuracy=progress.best_accuracy, **counted, **rest)


COUNTED = (
    "best_epoch", "steps", "skipped_steps", "nonfinite_steps", "train_loss", "images_per_s", "seconds", "stopped_early",
)  # fmt: skip
"""What an outcome has as the progress has it."""


class Diverged(Exception):  # noqa: N818 - the field's own word
    """The loss or its gradient is NaN or infinite. `Session.result()` still has the best weights so far, where an epoch ended well."""

    def __init__(self, step: int, where: str) -> None:
        super().__init__(
            f"not finite at step {step}: {where} (a lower train.lr, a longer train.warmup_epochs or train.clip_norm: 1.0 may help)"
        )
        self.step = step

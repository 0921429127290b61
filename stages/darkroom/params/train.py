"""Section `train`: the optimizer, its schedule, precision, and when to stop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from darkroom.params.base import Count, Fault, Fraction, Positive, Section, key


class Train(Section):
    """How the network is trained."""

    epochs: Annotated[int, Field(ge=1, le=100_000)] = key(
        "passes over the training pictures", also=("num_epochs", "max_epochs", "n_epochs")
    )
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = key(
        "pictures in one optimizer step, over all devices", also=("batch", "bs")
    )
    accumulate: Count = key(
        "micro-batches that a step is split into; saves memory, changes no result",
        also=("accumulation", "grad_accum", "accumulation_steps"),
    )
    optimizer: Literal["sgd", "adamw"] = key("sgd (Nesterov momentum) or adamw", also=("opt", "optim"))
    lr: Annotated[float, Field(gt=0, le=100)] = key(
        "highest learning rate of the schedule", also=("learning_rate", "lr0")
    )
    momentum: Fraction = key("momentum of sgd, beta1 of adamw", also=("beta1", "beta"))
    weight_decay: Annotated[float, Field(ge=0, le=10)] = key(
        "decay of weights; biases and norms are left out", also=("wd", "decay")
    )
    schedule: Literal["cosine", "one_cycle", "plateau", "constant"] = key(
        "course of the learning rate after warm-up", also=("scheduler", "lr_schedule", "sched")
    )
    warmup_epochs: Annotated[float, Field(ge=0)] = key(
        "epochs of linear warm-up; may be a fraction", also=("warmup", "warmup_steps")
    )
    label_smoothing: Fraction = key("share of the target spread over all classes; 0: off", also=("smoothing",))
    class_weights: Literal["none", "balanced"] = key("balanced: rare classes weigh more (inverse frequency)")
    clip_norm: Annotated[float, Field(ge=0)] = key(
        "largest norm of the gradient; 0: no clipping", also=("clip", "clip_grad", "grad_clip", "gradient_clip_val")
    )
    ema_decay: Fraction = key("decay a step of the average of the weights; 0: off", also=("ema",))
    early_stop: Annotated[int, Field(ge=0)] = key(
        "epochs without a better train.monitor before stopping; 0: never", also=("patience", "early_stopping")
    )
    monitor: Literal["val_accuracy", "val_loss"] = key(
        "what best means: for train.keep, early_stop and the plateau schedule", also=("metric",)
    )
    keep: Literal["best", "last"] = key("weights that become the model")
    unfreeze_epoch: Annotated[int, Field(ge=0)] = key("epochs after which a frozen backbone trains too; 0: never")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = key(
        "auto: bf16 where the device computes in it, fp16 on older CUDA, else fp32", also=("amp", "dtype")
    )
    channels_last: Literal["auto"] | bool = key("memory layout; auto: for convolutional networks")
    device: str = key("auto, cpu, cuda, cuda:N or mps")
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = key(
        "CPU threads; auto: one a physical core", also=("num_threads", "workers", "num_workers")
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = key("seed of weights, order and augmentation", also=("random_seed",))
    checkpoint_every: Positive = key(
        "seconds between checkpoints; an interrupted run goes on from the last one", also=("save_every", "save_period")
    )

    def faults(self) -> Iterator[Fault]:
        if self.accumulate > self.batch_size:
            yield (
                "train.accumulate",
                f"{self.accumulate} micro-batches cannot share train.batch_size: {self.batch_size} pictures (at most {self.batch_size})",
            )
        if self.warmup_epochs > self.epochs:
            yield "train.warmup_epochs", f"{self.warmup_epochs} is longer than train.epochs: {self.epochs}"
        if self.unfreeze_epoch >= self.epochs:
            yield (
                "train.unfreeze_epoch",
                f"{self.unfreeze_epoch} is never reached with train.epochs: {self.epochs} (0: never, else below train.epochs)",
            )
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            yield "train.device", f"{self.device!r} is no device (auto, cpu, cuda, cuda:N, mps)"

"""What a training does, in plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Augmentation:
    """Changes to training pictures; all off by default. The fields are those of `augment` in params.yaml."""

    crop_padding: int = 0
    """pixels of zeros around the picture before a random crop of its own size"""
    flip: bool = False
    """mirror half of the pictures left to right"""
    random_resized_crop: float = 0.0
    """smallest share of the area kept; 0: off"""
    erasing: float = 0.0
    """probability of erasing a rectangle"""
    trivial_augment: bool = False
    """one random operation a picture (needs torchvision)"""
    mixup: float = 0.0
    """alpha of the Beta distribution; 0: off"""
    cutmix: float = 0.0
    """alpha of the Beta distribution; 0: off; with mixup each step takes one of both"""


@dataclass(frozen=True)
class Recipe:
    """How the network is trained. The fields are those of `train` in params.yaml that shape the result."""

    epochs: int
    batch_size: int
    """pictures in one optimizer step, over all devices"""
    lr: float
    """highest learning rate of the schedule"""
    accumulate: int = 1
    """micro-batches that a step is split into, in each process"""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.9
    """of sgd; beta1 of adamw"""
    weight_decay: float = 0.0
    """of weights; biases and norms are left out"""
    schedule: Literal["cosine", "one_cycle", "plateau", "constant"] = "constant"
    warmup_epochs: float = 0.0
    """linear warm-up (one_cycle: the rising part); may be a fraction"""
    label_smoothing: float = 0.0
    class_weights: Literal["none", "balanced"] = "none"
    clip_norm: float = 0.0
    """largest norm of the gradient; 0: no clipping"""
    ema_decay: float = 0.0
    """decay a step of the average of the weights; 0: off"""
    early_stop: int = 0
    """epochs without a better monitor before stopping; 0: never"""
    monitor: Literal["val_accuracy", "val_loss"] = "val_accuracy"
    keep: Literal["best", "last"] = "last"
    unfreeze_epoch: int = 0
    """a frozen backbone trains too after this many epochs; 0: never"""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    channels_last: Literal["auto"] | bool = "auto"
    """memory layout; auto: for convolutional networks"""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps"""
    tf32: bool = True
    """let fp32 products on CUDA run in TensorFloat-32"""
    cudnn_benchmark: bool = True
    """let cuDNN try its algorithms and keep the fastest"""
    deterministic: bool = False
    """the same bits on the same GPU: refuses operations that cannot, and leaves cudnn_benchmark out"""
    compile: Literal["off", "auto", "on"] = "off"
    """torch.compile; auto: timed, and kept where it is faster"""
    grad_checkpoint: bool = False
    """keep the inputs of blocks alone, and compute the rest again in the backward pass"""
    on_oom: Literal["error", "split"] = "error"
    """split: twice the micro-batches when a step does not fit in memory"""
    on_nonfinite: Literal["stop", "skip", "rewind"] = "stop"
    """at a loss or gradient that is not finite: stop, leave the step out, or take the weights of the last good epoch and
    half the learning rate"""
    nonfinite_limit: int = 3
    """such steps after which skip and rewind stop too"""
    seed: int = 0

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
    devices: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = key(
        "processes that train together on this machine, one a GPU; auto: all GPUs, or one process",
        also=("gpus", "num_gpus", "world_size", "nproc_per_node"),
    )
    tf32: bool = key("CUDA: fp32 products in TensorFloat-32", also=("allow_tf32",))
    cudnn_benchmark: bool = key(
        "CUDA: let cuDNN try its algorithms (not with train.deterministic)", also=("benchmark",)
    )
    deterministic: bool = key("CUDA: the same bits every time, at some speed; a CPU's are the same anyway")
    compile: Literal["off", "auto", "on"] = key(
        "torch.compile; auto: timed beside eager on a copy, and kept where it is faster", also=("torch_compile",)
    )
    grad_checkpoint: bool = key(
        "compute activations again in the backward pass: less memory, a third more time, the same result",
        also=("gradient_checkpointing", "grad_checkpointing", "checkpointing"),
    )
    on_oom: Literal["error", "split"] = key("a step that does not fit in memory; split: twice train.accumulate, and on")
    on_nonfinite: Literal["stop", "skip", "rewind"] = key(
        "loss or gradient NaN or infinite; skip: leave the step out; rewind: the last good epoch's weights, half the lr"
    )
    nonfinite_limit: Annotated[int, Field(ge=0)] = key("such steps after which skip and rewind stop too")
    debug: list[Literal["anomaly", "activations", "profile"]] = key(
        "anomaly: name the operation that makes NaN; activations: a table a layer; profile: a trace of some steps"
    )
    checkpoint_every: Positive | Annotated[str, Field(pattern=r"^[1-9]\d* steps?$")] = key(
        "seconds between checkpoints, or '500 steps'; an interrupted run goes on from the last one",
        also=("save_every", "save_period"),
    )
    checkpoint_keep: Count = key("checkpoints kept while training, the newest", also=("save_total_limit", "save_top_k"))
    finished_gb: Positive = key("GB that finished trainings may take in .checkpoints; the oldest go first")

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

"""The loop: a generator that yields a record for each step and each epoch, and does nothing else."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from darkroom.errors import UserError
from darkroom.training.augment import Normalizer
from darkroom.training.averaging import Average
from darkroom.training.batches import Batches, Cut, Pictures
from darkroom.training.devices import autocast, choose_channels_last, choose_device, choose_precision
from darkroom.training.freezing import has_batch_norm, open_backbone, train_mode
from darkroom.training.losses import CrossEntropy, balanced_weights
from darkroom.training.optimizers import build_optimizer, can_fuse, set_lr
from darkroom.training.order import Order, split_evenly
from darkroom.training.progress import Progress
from darkroom.training.randomness import Purpose, torch_seed
from darkroom.training.recipe import Augmentation, Recipe
from darkroom.training.records import Diverged, EpochRecord, Outcome, StepRecord
from darkroom.training.schedules import Schedule
from darkroom.training.validation import fit_temperature, scores, validation_logits


class Session:
    """One training of one network, from its first step to its chosen weights.

    Between two records `state_dict` holds all that a session built from the same arguments needs to go on, in the
    middle of an epoch too, and end bit for bit as if it had not been interrupted (same threads, CPU and torch).
    """

    def __init__(
        self,
        network: nn.Module,
        train: Pictures,
        val: Pictures,
        *,
        recipe: Recipe,
        augmentation: Augmentation,
        num_classes: int,
        mean: list[float],
        std: list[float],
    ) -> None:
        """`network` takes normalised float N×C×H×W and gives logits; it is moved and trained in place.

        `mean` and `std` are a channel's, of pixels scaled to 0..1. Raises UserError where the device is not here, or
        where batch norm would see single pictures.
        """
        check_sizes(network, recipe, len(train.labels))
        self.recipe = recipe
        self.device = choose_device(recipe.device)
        self.precision = choose_precision(recipe.precision, self.device)
        self.channels_last = choose_channels_last(recipe.channels_last, network)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        self.network = network.to(self.device).to(memory_format=layout)
        self.val = val
        self.normalize = Normalizer(mean, std, train.images.shape[1], self.device)
        order = Order(len(train.labels), recipe.batch_size, recipe.seed)
        self.batches = Batches(
            train, order, augmentation, self.normalize, self.device, channels_last=self.channels_last
        )
        balanced = balanced_weights(train.labels, num_classes) if recipe.class_weights == "balanced" else None
        self.loss = CrossEntropy(recipe.label_smoothing, balanced, self.device)
        self.schedule = Schedule.of(recipe, order.steps)
        self.optimizer = build_optimizer(network, recipe, fused=can_fuse(network, self.precision))
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        self.average = Average(network, recipe.ema_decay) if recipe.ema_decay else None
        self.smallest = 2 if has_batch_norm(network) else 1
        self.progress = Progress()
        self.best: dict[str, Tensor] | None = None
        self._unread: tuple[Tensor, float, int] | None = None
        self._clock = 0.0

    @property
    def finished(self) -> bool:
        return self.progress.stopped_early or self.progress.epoch >= self.recipe.epochs

    def run(self) -> Iterator[StepRecord | EpochRecord]:
        """Trains on from where the session stands. Raises Diverged, after the record, at a loss that is not finite."""
        self._clock = time.perf_counter()
        self._stop_if_diverged()
        while not self.finished:
            yield from self._epoch()

    def _epoch(self) -> Iterator[StepRecord | EpochRecord]:
        if 0 < self.recipe.unfreeze_epoch <= self.progress.epoch:
            open_backbone(self.network)
        train_mode(self.network)
        while self.progress.step < self.batches.order.steps:
            yield self._step()
        self._read_loss()
        self._stop_if_diverged()
        yield self._end_epoch()

    def _step(self) -> StepRecord:
        progress = self.progress
        cut = self.batches.cut(progress.epoch, progress.step)
        lr = self.schedule.at(progress.schedule_step, progress.reductions)
        set_lr(self.optimizer, lr)
        weight = self.loss.weight(cut)
        loss = self._backward(cut, weight)
        norm = self._clip()
        skipped = self._update()
        # of the step before: read only now, when the device has this step to work on meanwhile
        self._read_loss()
        self._stop_if_diverged()
        progress.step += 1
        progress.steps += 1
        progress.images += len(cut)
        progress.train_seconds += self._lap()
        self._unread = (loss, weight, progress.steps)
        return StepRecord(progress.steps, progress.epoch + 1, lr, len(cut), skipped, loss, norm)

    def _backward(self, cut: Cut, weight: float) -> Tensor:
        """Gradients of the whole step, a micro-batch at a time; its loss, on the device."""
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        position = (self.recipe.seed, Purpose.NETWORK, self.progress.epoch, self.progress.step)
        parts = max(min(self.recipe.accumulate, len(cut) // self.smallest), 1)
        for micro, rows in enumerate(split_evenly(len(cut), parts)):
            batch = self.batches.load(cut, rows)
            torch.manual_seed(torch_seed(*position, micro))
            with autocast(self.device, self.precision):
                logits = self.network(batch.images)
            loss = self.loss(logits, batch) / weight
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch's
            total += loss.detach()
        return total

    def _clip(self) -> Tensor:
        """Unscales the gradient, clips it where asked, and returns its norm before that, on the device."""
        self.scaler.unscale_(self.optimizer)
        trained = [parameter for parameter in self.network.parameters() if parameter.grad is not None]
        norm = get_total_norm([parameter.grad for parameter in trained if parameter.grad is not None])
        if self.recipe.clip_norm:
            clip_grads_with_norm_(trained, self.recipe.clip_norm, norm)
        return norm

    def _update(self) -> bool:
        """Steps the optimizer; whether fp16's overflow skipped it. Schedule and average go on only when it stepped."""
        scale = self.scaler.get_scale()  # device sync in fp16, as the two below; otherwise none
        self.scaler.step(self.optimizer)
        self.scaler.update()
        skipped = self.scaler.get_scale() < scale
        if skipped:
            self.progress.skipped_steps += 1
            return True
        self.progress.schedule_step += 1
        if self.average:
            self.average.update(self.network)
        return False

    def _end_epoch(self) -> EpochRecord:
        progress = self.progress
        progress.train_seconds += self._lap()
        logits = self._validate(self._current_weights(), self.precision)
        accuracy, loss = scores(logits, self.val.labels)
        seconds = progress.train_seconds + self._lap()
        speed = progress.images / progress.train_seconds
        progress.train_loss = progress.loss_sum / progress.weight_sum
        progress.images_in_all += progress.images
        progress.train_seconds_in_all += progress.train_seconds
        progress.seconds += seconds
        progress.begin_epoch()
        is_best = progress.judge(accuracy, loss, self.recipe)
        if is_best:
            self.best = {key: value.detach().clone() for key, value in self._current_weights().items()}
        lr = float(self.optimizer.param_groups[0]["lr"])
        return EpochRecord(
            progress.epoch, progress.steps, progress.train_loss, loss, accuracy, lr, speed, seconds,
            progress.skipped_steps, is_best,
        )  # fmt: skip

    def _current_weights(self) -> dict[str, Tensor]:
        return self.average.weights if self.average else self.network.state_dict()

    def _validate(self, weights: dict[str, Tensor], precision: str) -> Tensor:
        return validation_logits(
            self.network, weights, self.val, self.normalize, precision, channels_last=self.channels_last
        )

    def _read_loss(self) -> None:
        """Takes the last unread loss into the epoch's sums."""
        if self._unread:
            loss, weight, step = self._unread
            self.progress.add_loss(float(loss), weight, step)  # device sync
            self._unread = None

    def _stop_if_diverged(self) -> None:
        if self.progress.diverged_step:
            raise Diverged(self.progress.diverged_step)

    def _lap(self) -> float:
        before, self._clock = self._clock, time.perf_counter()
        return self._clock - before

    def state_dict(self) -> dict[str, Any]:
        """Everything that shapes the rest of the training, copied. Valid between two records."""
        self._read_loss()
        state = {
            "network": self.network.state_dict(),
            "average": self.average.state_dict() if self.average else None,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "progress": asdict(self.progress),
            "best": self.best,
        }
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts a stored state back, into a session built from the same arguments."""
        self.network.load_state_dict(state["network"])
        if self.average:
            self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.progress = Progress(**state["progress"])
        best = state["best"]
        self.best = None if best is None else {key: value.to(self.device) for key, value in best.items()}
        self._unread = None

    def result(self) -> Outcome:
        """The chosen weights, scored and calibrated in float32 as they leave. After divergence: the best so far.

        Raises Diverged where it diverged before an epoch ended well.
        """
        progress = self.progress
        takes_best = (self.recipe.keep == "best" or progress.diverged_step > 0) and self.best is not None
        if not takes_best:
            self._stop_if_diverged()
        weights = self.best if takes_best and self.best is not None else self._current_weights()
        logits = self._validate(weights, "fp32")
        accuracy, loss = scores(logits, self.val.labels)
        return Outcome(
            weights={key: value.detach().cpu().contiguous() for key, value in weights.items()},
            temperature=fit_temperature(logits, self.val.labels),
            val_accuracy=accuracy,
            val_loss=loss,
            best_epoch=progress.best_epoch,
            best_val_accuracy=progress.best_accuracy,
            chosen_epoch=progress.best_epoch if takes_best else progress.epoch,
            epochs=progress.epoch,
            steps=progress.steps,
            skipped_steps=progress.skipped_steps,
            train_loss=progress.train_loss,
            images_per_s=progress.images_in_all / max(progress.train_seconds_in_all, 1e-9),
            seconds=progress.seconds,
            stopped_early=progress.stopped_early,
            num_parameters=sum(parameter.numel() for parameter in self.network.parameters()),
            precision=self.precision,
            device=str(self.device),
            threads=torch.get_num_threads(),
            channels_last=self.channels_last,
        )


def check_sizes(network: nn.Module, recipe: Recipe, num_images: int) -> None:
    """Raises UserError where there is nothing to train on, or where batch norm would see one picture at a time."""
    if num_images == 0:
        raise UserError("data: there are no training pictures: lower data.val_fraction or data.test_fraction")
    if not has_batch_norm(network):
        return
    if num_images == 1:
        raise UserError(f"data: 1 training picture is too few for batch norm (train.batch_size: {recipe.batch_size})")
    if recipe.batch_size == 1:
        raise UserError("train.batch_size: 1 is too small for a network with batch norm (at least 2)")
    if recipe.batch_size // recipe.accumulate < 2:
        raise UserError(
            f"train.accumulate: {recipe.accumulate} leaves single pictures of train.batch_size: {recipe.batch_size}, "
            f"too few for batch norm (at most {recipe.batch_size // 2})"
        )

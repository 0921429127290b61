"""The loop: a generator that yields a record for each step and each epoch, and does nothing else."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from darkroom.training.augment import Normalizer
from darkroom.training.batches import Batches, Cut, Pictures
from darkroom.training.devices import autocast, choose_channels_last, choose_device, choose_precision
from darkroom.training.freezing import has_batch_norm, open_backbone, train_mode
from darkroom.training.limits import check_sizes
from darkroom.training.losses import CrossEntropy, balanced_weights
from darkroom.training.order import Order, split_evenly
from darkroom.training.progress import Progress
from darkroom.training.randomness import Purpose, seed_torch, torch_seed
from darkroom.training.recipe import Augmentation, Recipe
from darkroom.training.records import Diverged, EpochRecord, Outcome, StepRecord
from darkroom.training.updates import Updates
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
        check_sizes(network, recipe, num_train=len(train.labels), num_val=len(val.labels))
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
        self.updates = Updates(network, recipe, self.device, self.precision, order.steps)
        self.progress = Progress()
        self.best: dict[str, Tensor] | None = None
        self._smallest = 2 if has_batch_norm(network) else 1
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
        weight = self.loss.weight(cut)
        self.updates.begin(progress.schedule_step, progress.reductions)
        loss = self._backward(cut, weight)
        norm, skipped = self.updates.finish()
        # of the step before: read only now, when the device has this step to work on meanwhile
        self._read_loss()
        self._stop_if_diverged()
        progress.count_step(len(cut), self._lap(), skipped=skipped)
        self._unread = (loss, weight, progress.steps)
        return StepRecord(progress.steps, progress.epoch + 1, self.updates.lr, len(cut), skipped, loss, norm)

    def _backward(self, cut: Cut, weight: float) -> Tensor:
        """Gradients of the whole step, a micro-batch at a time; its loss, on the device."""
        total = torch.zeros((), device=self.device)
        position = (self.recipe.seed, Purpose.NETWORK, self.progress.epoch, self.progress.step)
        # a short last batch may be too short for all micro-batches
        parts = max(min(self.recipe.accumulate, len(cut) // self._smallest), 1)
        for micro, rows in enumerate(split_evenly(len(cut), parts)):
            batch = self.batches.load(cut, rows)
            seed_torch(torch_seed(*position, micro), self.device)
            with autocast(self.device, self.precision):
                logits = self.network(batch.images)
            loss = self.loss(logits, batch) / weight
            self.updates.backward(loss)
            total += loss.detach()
        return total

    def _end_epoch(self) -> EpochRecord:
        progress = self.progress
        progress.train_seconds += self._lap()
        accuracy, loss = scores(self._validate(self.updates.weights, self.precision), self.val.labels)
        speed = progress.images / progress.train_seconds
        seconds = progress.train_seconds + self._lap()
        progress.end_epoch(seconds)
        is_best = progress.judge(accuracy, loss, self.recipe)
        if is_best:
            self.best = {key: value.detach().clone() for key, value in self.updates.weights.items()}
        return EpochRecord(
            progress.epoch, progress.steps, progress.train_loss, loss, accuracy, self.updates.lr, speed, seconds,
            progress.skipped_steps, is_best,
        )  # fmt: skip

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
        return copy.deepcopy({**self.updates.state_dict(), "progress": asdict(self.progress), "best": self.best})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts a stored state back, into a session built from the same arguments."""
        self.updates.load_state_dict(state)
        self.progress = Progress(**state["progress"])
        best = state["best"]
        self.best = None if best is None else {key: value.to(self.device) for key, value in best.items()}
        self._unread = None

    def result(self) -> Outcome:
        """The chosen weights, scored and calibrated in float32, as they leave. After divergence: the best so far.

        Raises Diverged where it diverged before an epoch ended well.
        """
        progress = self.progress
        if self.best is None:
            self._stop_if_diverged()
        takes_best = self.best is not None and (self.recipe.keep == "best" or progress.diverged_step > 0)
        weights = self.best if takes_best and self.best else self.updates.weights
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
            images_per_s=progress.images_per_s,
            seconds=progress.seconds,
            stopped_early=progress.stopped_early,
            num_parameters=sum(parameter.numel() for parameter in self.network.parameters()),
            precision=self.precision,
            device=str(self.device),
            threads=torch.get_num_threads(),
            channels_last=self.channels_last,
        )

"""The loop: a generator that yields a record for each step and each epoch, and does nothing else."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from darkroom.training.augment import Normalizer
from darkroom.training.batches import Batches, Pictures
from darkroom.training.cores import own_cores
from darkroom.training.devices import choose_channels_last, choose_device, set_kernels, sound_precision
from darkroom.training.freezing import is_frozen, open_backbone, train_mode
from darkroom.training.guards import GradientWatch, bad_gradient
from darkroom.training.limits import check_sizes
from darkroom.training.losses import CrossEntropy, balanced_weights
from darkroom.training.memory import checkpoint_gradients
from darkroom.training.order import Order
from darkroom.training.passes import Passes
from darkroom.training.progress import Progress
from darkroom.training.recipe import Augmentation, Recipe
from darkroom.training.records import Diverged, EpochRecord, Outcome, StepRecord
from darkroom.training.steps import Step, Stepper
from darkroom.training.updates import Updates
from darkroom.training.validation import fit_temperature, scores, validation_logits
from darkroom.training.world import ALONE, World, own_device


class Session:
    """One training of one network, from its first step to its chosen weights.

    Between two records `state_dict` holds all that a session built from the same arguments needs to go on, in the
    middle of an epoch too, and end bit for bit as if it had not been interrupted (same threads, CPU and torch).

    Of several processes each builds the same session, asks for the same records and calls `result`.
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
        world: World = ALONE,
    ) -> None:
        """`network` takes normalised float N×C×H×W and gives logits; it is moved and trained in place.

        `mean` and `std` are a channel's, of pixels scaled to 0..1. Raises UserError where the device is not here, or
        where batch norm would see single pictures.
        """
        check_sizes(network, recipe, num_train=len(train.labels), num_val=len(val.labels), processes=world.size)
        self.recipe, self.world = recipe, world
        self.device = choose_device(own_device(recipe.device))
        self.channels_last = choose_channels_last(recipe.channels_last, network)
        set_kernels(recipe)
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        self.network = network.to(self.device).to(memory_format=layout)
        size = train.images.shape[1]
        self.precision, self.note = sound_precision(recipe.precision, self.device, self.network, size)
        if recipe.grad_checkpoint:
            checkpoint_gradients(network)
        self.val = val
        self.normalize = Normalizer(mean, std, size, self.device)
        order = Order(len(train.labels), recipe.batch_size, recipe.seed)
        self.batches = Batches(
            train, order, augmentation, self.normalize, self.device, channels_last=self.channels_last
        )
        balanced = balanced_weights(train.labels, num_classes) if recipe.class_weights == "balanced" else None
        loss = CrossEntropy(recipe.label_smoothing, balanced, self.device)
        self.passes = Passes(network, self.batches, loss, precision=self.precision, world=world)
        self.updates = Updates(network, recipe, self.device, self.precision, order.steps)
        self.watch = GradientWatch(network, self.device)
        self.stepper = Stepper(self.passes, self.updates, self.watch, recipe)
        self.progress = Progress()
        self.best: dict[str, Tensor] | None = None
        self.wants_stop = False
        """set by the caller; where one process of several wants to stop, all learn of it at the same step"""
        self._unread: tuple[Step, float, int] | None = None
        self._agreed = False
        self._clock = 0.0

    @property
    def finished(self) -> bool:
        return self.progress.stopped_early or self.progress.epoch >= self.recipe.epochs

    @property
    def stops(self) -> bool:
        """Whether to ask for no more records: a process wants to stop. Valid after a record."""
        return self.wants_stop if self.world.size == 1 else self._agreed

    def run(self) -> Iterator[StepRecord | EpochRecord]:
        """Trains on from where the session stands.

        Raises Diverged, after the record, at a loss or gradient that is not finite (on_nonfinite: stop, or beyond its
        limit), and UserError where a step does not fit in memory.
        """
        self._clock = time.perf_counter()
        if self.stepper.good is None:
            self.stepper.remember()
        self._stop_if_diverged()
        with self.world.together(), own_cores(self.device):
            while not self.finished:
                yield from self._epoch()

    def _epoch(self) -> Iterator[StepRecord | EpochRecord]:
        if self.progress.epoch >= self.recipe.unfreeze_epoch > 0 and is_frozen(self.network):
            open_backbone(self.network)
            self.passes.join()
        train_mode(self.network)
        while self.progress.step < self.batches.order.steps:
            yield self._step()
        self._read()
        self._stop_if_diverged()
        yield self._end_epoch()

    def _step(self) -> StepRecord:
        progress, stepper = self.progress, self.stepper
        if stepper.looks:
            self._read()
            self._stop_if_diverged()
        cut = self.batches.cut(progress.epoch, progress.step)
        step = stepper.take(cut, progress, wants_stop=self.wants_stop)
        if not stepper.looks:
            # of the step before: read only now, when the device has this step to work on meanwhile
            self._read()
            self._stop_if_diverged()
        progress.count_step(len(cut), self._lap(), skipped=step.skipped)
        self._unread = (step, self.passes.loss.weight(cut), progress.steps)
        return StepRecord(
            progress.steps, progress.epoch + 1, self.updates.lr, len(cut), step.skipped, step.told[0], step.norms.total,
            tuple(step.notes),
        )  # fmt: skip

    def _end_epoch(self) -> EpochRecord:
        progress = self.progress
        progress.train_seconds += self._lap()
        self.world.average(value for value in self.updates.buffers() if value.is_floating_point())
        accuracy, loss = scores(self._validate(self.updates.weights, self.precision), self.val.labels)
        speed = progress.images / progress.train_seconds
        seconds = progress.train_seconds + self._lap()
        progress.end_epoch(seconds)
        is_best = progress.judge(accuracy, loss, self.recipe)
        if is_best:
            self.best = {key: value.detach().clone() for key, value in self.updates.weights.items()}
        if math.isfinite(loss):
            self.stepper.remember()
        norms, notes = self.watch.end_epoch()
        return EpochRecord(
            progress.epoch, progress.steps, progress.train_loss, loss, accuracy, self.updates.lr, speed, seconds,
            progress.skipped_steps, is_best, norms, tuple(notes),
        )  # fmt: skip

    def look_ahead(self) -> tuple[float, float]:
        """Accuracy and loss of the validation pictures in the middle of an epoch; the training does not notice."""
        found = scores(self._validate(self.updates.weights, self.precision), self.val.labels)
        self._lap()  # which is no time of training
        return found

    def _validate(self, weights: dict[str, Tensor], precision: str) -> Tensor:
        return validation_logits(
            self.network, weights, self.val, self.normalize, precision, channels_last=self.channels_last, world=self.world
        )  # fmt: skip

    def _read(self) -> None:
        """Takes the last unread step into the epoch's sums."""
        if self._unread is None:
            return
        step, weight, number = self._unread
        self._unread = None
        loss, wanting = step.told.tolist()  # device sync
        self._agreed = wanting > 0
        if self.stepper.looks and not math.isfinite(loss) and not self.progress.diverged_step:
            return  # left out
        self.progress.add_loss(loss, weight)
        if not self.stepper.looks and not step.is_finite(self.precision):
            self.progress.diverge(number, bad_gradient(self.watch.names, step.norms.each))

    def _stop_if_diverged(self) -> None:
        if self.progress.diverged_step:
            raise Diverged(self.progress.diverged_step, self.progress.diverged_where)

    def _lap(self) -> float:
        before, self._clock = self._clock, time.perf_counter()
        return self._clock - before

    def state_dict(self) -> dict[str, Any]:
        """Everything that shapes the rest of the training, copied. Valid between two records."""
        self._read()
        return copy.deepcopy(
            {
                **self.updates.state_dict(),
                "progress": asdict(self.progress),
                "best": self.best,
                "good": self.stepper.good,
                "watch": self.watch.state_dict(),
                "compiled": self.passes.compiled,
            }
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts a stored state back, into a session built from the same arguments."""
        self.updates.load_state_dict(state)
        self.progress = Progress(**state["progress"])
        self.best = {key: value.to(self.device) for key, value in (state["best"] or {}).items()} or None
        self.stepper.good = state["good"]
        self.watch.load_state_dict(state["watch"])
        if state["compiled"]:
            self.passes.compile()
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
        return Outcome.of(
            progress,
            weights={key: value.detach().cpu().contiguous() for key, value in weights.items()},
            temperature=fit_temperature(logits, self.val.labels),
            val_accuracy=accuracy,
            val_loss=loss,
            chosen_epoch=progress.best_epoch if takes_best else progress.epoch,
            num_parameters=sum(parameter.numel() for parameter in self.network.parameters()),
            precision=self.precision,
            device=str(self.device),
            threads=torch.get_num_threads(),
            channels_last=self.channels_last,
            compiled=self.passes.compiled,
            accumulate=progress.accumulate or self.recipe.accumulate,
            processes=self.world.size,
        )

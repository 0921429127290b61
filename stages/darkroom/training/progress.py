"""Where a training stands, in plain numbers: with the tensors, all that a checkpoint holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from darkroom.training.recipe import Recipe
from darkroom.training.schedules import PLATEAU_PATIENCE


@dataclass
class Progress:
    """Counts, running sums and scores; valid between two records."""

    epoch: int = 0
    """epochs done"""
    step: int = 0
    """steps done in the running epoch"""
    steps: int = 0
    """steps done in all"""
    schedule_step: int = 0
    """steps that the optimizer took: fp16 skips those whose gradient overflowed"""
    skipped_steps: int = 0
    loss_sum: float = 0.0
    """of the running epoch: step losses times their weights"""
    weight_sum: float = 0.0
    images: int = 0
    """of the running epoch"""
    train_seconds: float = 0.0
    """of the running epoch, without validation"""
    images_in_all: int = 0
    train_seconds_in_all: float = 0.0
    seconds: float = 0.0
    """in all, with validation"""
    train_loss: float = math.nan
    """of the last epoch"""
    best_epoch: int = 0
    """from 1; 0: none yet"""
    best_accuracy: float = -math.inf
    best_loss: float = math.inf
    best_monitor: float = -math.inf
    """the monitor's best value, higher is better"""
    stale: int = 0
    """epochs since the monitor was better than ever before"""
    waited: int = 0
    """the same, since the plateau schedule last reduced the learning rate"""
    reductions: int = 0
    """times that the plateau schedule reduced the learning rate"""
    stopped_early: bool = False
    accumulate: int = 0
    """micro-batches that memory asked for; 0: the recipe's"""
    nonfinite_steps: int = 0
    """whose loss or gradient was not finite"""
    halvings: int = 0
    """times that `on_nonfinite: rewind` halved the learning rate"""
    diverged_step: int = 0
    """the step whose loss or gradient was not finite and ended the training, from 1; 0: none"""
    diverged_where: str = ""

    def add_loss(self, loss: float, weight: float) -> None:
        self.loss_sum += loss * weight
        self.weight_sum += weight

    def diverge(self, step: int, where: str) -> None:
        if not self.diverged_step:
            self.diverged_step, self.diverged_where = step, where

    def judge(self, accuracy: float, loss: float, recipe: Recipe) -> bool:
        """Takes an epoch's validation scores in; whether they are the best so far.

        An equal accuracy with a lower loss is better for `keep`, but does not count for the patience of early_stop and
        plateau: there the monitor itself must improve. Scores that are not finite are never best.
        """
        monitor = accuracy if recipe.monitor == "val_accuracy" else -loss
        best = -self.best_loss if recipe.monitor == "val_loss" else self.best_accuracy
        better = math.isfinite(loss) and (monitor, -loss) > (best, -self.best_loss)
        if better:
            self.best_epoch, self.best_accuracy, self.best_loss = self.epoch, accuracy, loss
        improved = math.isfinite(loss) and monitor > self.best_monitor
        self.best_monitor = monitor if improved else self.best_monitor
        self.stale = 0 if improved else self.stale + 1
        self.waited = 0 if improved else self.waited + 1
        if recipe.schedule == "plateau" and self.waited >= PLATEAU_PATIENCE:
            self.reductions, self.waited = self.reductions + 1, 0
        self.stopped_early = 0 < recipe.early_stop <= self.stale
        return better

    def count_step(self, num_images: int, seconds: float, *, skipped: bool) -> None:
        self.step += 1
        self.steps += 1
        self.skipped_steps += skipped
        self.schedule_step += not skipped
        self.images += num_images
        self.train_seconds += seconds

    def end_epoch(self, seconds: float) -> None:
        """Closes the running sums and begins the next epoch."""
        self.train_loss = self.loss_sum / self.weight_sum
        self.images_in_all += self.images
        self.train_seconds_in_all += self.train_seconds
        self.seconds += seconds
        self.epoch, self.step, self.images = self.epoch + 1, 0, 0
        self.loss_sum = self.weight_sum = self.train_seconds = 0.0

    @property
    def images_per_s(self) -> float:
        """Training pictures a second, over all epochs done, validation not counted."""
        return self.images_in_all / self.train_seconds_in_all if self.train_seconds_in_all else 0.0

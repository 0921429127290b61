"""One optimizer step: what is done with it where it does not fit in memory, or where its numbers are not finite."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from darkroom.training.batches import Cut
from darkroom.training.guards import GradientWatch, Norms, where_not_finite
from darkroom.training.passes import Passes, out_of_memory
from darkroom.training.progress import Progress
from darkroom.training.recipe import Recipe
from darkroom.training.updates import Updates


@dataclass
class Step:
    """A step that was taken or left out; its numbers stay on the device until they are read."""

    told: Tensor
    """over all processes the sum of the loss, and how many want to stop: two numbers"""
    norms: Norms
    skipped: bool = False
    notes: list[str] = field(default_factory=list)

    def is_finite(self, precision: str) -> bool:
        """Whether loss and gradient are. An infinite gradient in fp16 is the scaler's business."""
        norm = 0.0 if precision == "fp16" else float(self.norms.total)  # device sync
        return math.isfinite(float(self.told[0])) and math.isfinite(norm)  # device sync


class Stepper:
    """Takes steps, by the recipe's rules for memory and for numbers that are not finite."""

    def __init__(self, passes: Passes, updates: Updates, watch: GradientWatch, recipe: Recipe) -> None:
        self.passes, self.updates, self.watch, self.recipe = passes, updates, watch, recipe
        self.good: dict[str, Any] | None = None
        """what `on_nonfinite: rewind` goes back to"""
        # reading a number waits for a GPU, so it is read a step late there; skip and rewind have to know before the step
        self.looks = passes.device.type == "cpu" or recipe.on_nonfinite != "stop"
        """whether a step is looked at before it is taken"""

    def remember(self) -> None:
        """Makes the present weights those that rewind goes back to."""
        if self.recipe.on_nonfinite == "rewind":
            self.good = copy.deepcopy(self.updates.state_dict())

    def take(self, cut: Cut, progress: Progress, *, wants_stop: bool) -> Step:
        """The step at the place where `progress` stands, which counts what went wrong. Raises UserError: out of memory."""
        recipe, network = self.recipe, self.passes.network
        self.updates.begin(progress.schedule_step, progress.reductions, 0.5**progress.halvings)
        buffers = [value.clone() for value in network.buffers()] if recipe.on_nonfinite != "stop" else []
        notes: list[str] = []
        told = self._gradient(cut, progress, notes, wants_stop=wants_stop)
        step = Step(told, self.updates.norms(), notes=notes)
        if self.looks and not step.is_finite(self.passes.precision):
            step.skipped = True
            self._leave_out(step, cut, progress, buffers)
        else:
            step.skipped = self.updates.finish(step.norms)
            self.watch.add(step.norms)
        return step

    def _gradient(self, cut: Cut, progress: Progress, notes: list[str], *, wants_stop: bool) -> Tensor:
        while True:
            accumulate = progress.accumulate or self.recipe.accumulate
            try:
                loss = self.passes.run(cut, progress.epoch, progress.step, accumulate, self.updates.backward)
                return self.passes.world.sum(torch.stack([loss, loss.new_tensor(float(wants_stop))]))
            except torch.OutOfMemoryError as error:
                if self.recipe.on_oom == "error" or accumulate * self.passes.smallest >= len(cut):
                    raise out_of_memory(cut, accumulate, error) from None
            # here, not above: the error's traceback held the activations
            self.updates.drop_gradient()
            progress.accumulate = min(2 * accumulate, len(cut) // self.passes.smallest)
            notes.append(f"out of memory: train.accumulate is {progress.accumulate} from here on (train.on_oom: split)")

    def _leave_out(self, step: Step, cut: Cut, progress: Progress, buffers: list[Tensor]) -> None:
        """Nothing of the step stays; then what `on_nonfinite` says."""
        recipe, network = self.recipe, self.passes.network
        accumulate = progress.accumulate or recipe.accumulate
        where = where_not_finite(network, self.watch.names, step.norms.each, lambda: self.passes.look(cut, accumulate))
        self.updates.drop()
        progress.nonfinite_steps += 1
        if recipe.on_nonfinite == "stop" or progress.nonfinite_steps > recipe.nonfinite_limit:
            progress.diverge(progress.steps + 1, where)
            return
        for value, before in zip(network.buffers(), buffers, strict=True):
            value.copy_(before)
        how = "left out"
        if self.good is not None:
            progress.halvings += 1
            self.updates.load_state_dict(copy.deepcopy(self.good))
            how = f"the weights of the last good epoch are back, the learning rate is halved ({progress.halvings}×)"
        step.notes.append(
            f"step {progress.steps + 1}: {where} is not finite: {how} "
            f"({progress.nonfinite_steps} of train.nonfinite_limit: {recipe.nonfinite_limit})"
        )

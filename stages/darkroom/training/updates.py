"""From gradients to weights: unscale, clip, step, average."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from darkroom.training.averaging import Average
from darkroom.training.guards import Norms
from darkroom.training.optimizers import build_optimizer, can_fuse, set_lr
from darkroom.training.recipe import Recipe
from darkroom.training.schedules import Schedule


class Updates:
    """Optimizer, gradient scaler, schedule and average of one network."""

    def __init__(
        self, network: nn.Module, recipe: Recipe, device: torch.device, precision: str, steps_per_epoch: int
    ) -> None:
        self.network = network
        self.parameters = list(network.parameters())
        self.clip_norm = recipe.clip_norm
        self.schedule = Schedule.of(recipe, steps_per_epoch)
        self.optimizer = build_optimizer(network, recipe, fused=can_fuse(network, precision))
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self.average = Average(network, recipe.ema_decay) if recipe.ema_decay else None

    @property
    def lr(self) -> float:
        """Of the last step."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def weights(self) -> dict[str, Tensor]:
        """What is validated and kept: the average where it is on. The tensors themselves, no copies."""
        return self.average.weights if self.average else self.network.state_dict()

    def begin(self, schedule_step: int, reductions: int, factor: float) -> None:
        set_lr(self.optimizer, self.schedule.at(schedule_step, reductions) * factor)
        self.optimizer.zero_grad()

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of one micro-batch."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch's

    def norms(self) -> Norms:
        """Of the whole step's gradient, which is unscaled for it."""
        self.scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        found = iter(torch._foreach_norm(gradients))  # noqa: SLF001 - what torch's own clipping calls
        nothing = gradients[0].new_zeros(())
        each = torch.stack([nothing if parameter.grad is None else next(found) for parameter in self.parameters])
        return Norms(each, torch.linalg.vector_norm(each))

    def finish(self, norms: Norms) -> bool:
        """Clips and steps the optimizer; whether the step was skipped.

        fp16 skips a step whose gradient overflowed: weights and average stay, and the schedule must not advance.
        """
        if self.clip_norm:
            clip_grads_with_norm_(self.parameters, self.clip_norm, norms.total)
        scale = self.scaler.get_scale()  # device sync in fp16, as the three below; in other precisions none
        self.scaler.step(self.optimizer)
        self.scaler.update()
        skipped = self.scaler.get_scale() < scale
        if self.average and not skipped:
            self.average.update()
        return skipped

    def drop(self) -> None:
        """Leaves the step out, after `norms`: weights and average stay."""
        self.drop_gradient()
        self.scaler.update()

    def drop_gradient(self) -> None:
        self.optimizer.zero_grad()

    def buffers(self) -> list[Tensor]:
        """What is no weight, of the network and of the average: batch norm's statistics."""
        own = [name for name, _ in self.network.named_buffers()]
        averaged = [self.average.weights[name] for name in own] if self.average else []
        return [*self.network.buffers(), *averaged]

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "average": self.average.state_dict() if self.average else None,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        if self.average:
            self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])

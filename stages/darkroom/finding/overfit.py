"""One batch learned by heart: what a network, its loss and its gradients must manage before anything else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from darkroom.errors import UserError
from darkroom.fitting import Plan
from darkroom.training import ALONE, Diverged, StepRecord

STEPS = 300
LOSS = 0.05
"""at which a batch counts as known by heart"""


@dataclass(frozen=True)
class Few:
    """Some pictures of a split."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Learned:
    """How it went."""

    pictures: int
    steps: int
    first: float
    last: float
    """loss"""


def overfit(plan: Plan) -> Learned:
    """Trains on one batch, without augmentation and all that holds a network back.

    Raises UserError, with what to look at, where the loss stays above LOSS for STEPS steps.
    """
    plain = {
        "label_smoothing": 0.0, "weight_decay": 0.0, "ema_decay": 0.0, "schedule": "constant", "warmup_epochs": 0.0,
        "epochs": STEPS, "early_stop": 0, "class_weights": "none", "unfreeze_epoch": 0, "on_nonfinite": "stop",
    }  # fmt: skip
    off = {name: type(value)() for name, value in plan.augment.model_dump().items()}
    calm = Plan(
        plan.packed, plan.augment.model_copy(update=off), plan.model.model_copy(update={"dropout": 0.0}),
        plan.train.model_copy(update=plain), plan.init,
    )  # fmt: skip
    few = plan.packed.split("train")
    num = min(plan.train.batch_size, len(few.labels))
    batch = Few(np.array(few.images[:num]), np.array(few.labels[:num]))
    losses: list[float] = []
    try:
        for record in calm.session(plan.train.threads, ALONE, train=batch).run():
            if isinstance(record, StepRecord):
                losses.append(record.loss)
                if record.loss <= LOSS:
                    return Learned(num, record.step, losses[0], record.loss)
    except Diverged as error:
        raise UserError(f"the network does not learn {num} pictures by heart: {error}") from None
    raise UserError(
        f"the network does not learn {num} pictures by heart: the loss went from {losses[0]:.3f} to {losses[-1]:.3f} in "
        f"{STEPS} steps (train.lr: {plan.train.lr} may be far off: python stages/find.py lr; model.freeze: "
        f"{plan.model.freeze}; or labels that do not belong to the pictures: look at plots/data)"
    )

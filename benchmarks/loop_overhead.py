"""What the loop costs: a session's steps beside a bare hand-written step of the same network on the same batches.

    python benchmarks/loop_overhead.py [--quick] [--rounds 7] [--steps 60]

ResNet of four one-block stages, width 16, Fashion-MNIST, batches of 128, padded crop and flip, SGD with Nesterov momentum. Both
cut and augment by the same code; the session adds its schedule, seeds, norms, guards and records. Measured in turns; the
medians count. Promised: at most 3 %.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

from comparing import MEAN, STD, Labelled, arguments, fashion, in_turns, medians, show
from darkroom.models.spec import NetworkSpec
from darkroom.training import Augmentation, Recipe, Session, StepRecord, start_network
from darkroom.training.devices import autocast

SPEC = NetworkSpec("resnet", width=16, blocks=(1, 1, 1, 1), dropout=0.0, channels=1, image_size=28, num_classes=10)
PERCENT = 3.0


def session(train: Labelled, val: Labelled) -> Session:
    recipe = Recipe(epochs=1000, batch_size=128, lr=0.05, momentum=0.9, weight_decay=5e-4)
    return Session(
        start_network(SPEC, seed=0).network, train, val, recipe=recipe,
        augmentation=Augmentation(crop_padding=4, flip=True), num_classes=10, mean=[MEAN], std=[STD],
    )  # fmt: skip


def whole(ours: Session, steps: int) -> Callable[[], float]:
    """Milliseconds a step of the session's own loop."""
    records = (record for record in ours.run() if isinstance(record, StepRecord))

    def measure() -> float:
        started = time.perf_counter()
        for _ in range(steps):
            next(records)
        return 1000 * (time.perf_counter() - started) / steps

    return measure


def bare(ours: Session, steps: int) -> Callable[[], float]:
    """Milliseconds a step of nothing but batch, forward, backward and optimizer."""
    network, batches, optimizer = ours.network.train(), ours.batches, ours.updates.optimizer
    position = iter(range(10**9))

    def measure() -> float:
        started = time.perf_counter()
        for _ in range(steps):
            epoch, step = divmod(next(position), batches.order.steps)
            cut = batches.cut(epoch, step)
            batch = batches.load(cut, slice(0, len(cut)))
            optimizer.zero_grad()
            with autocast(ours.device, ours.precision):
                logits = network(batch.images)
            cross_entropy(logits.float(), batch.labels).backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
        return 1000 * (time.perf_counter() - started) / steps

    return measure


def main() -> None:
    wanted = arguments(__doc__, rounds=7, steps=60)
    if wanted.quick:
        wanted.rounds, wanted.steps = 1, 5
    # more steps than are timed, so that no validation falls between
    train, val = fashion("train"), fashion("t10k").first(100)
    rivals = {"session": whole(session(train, val), wanted.steps), "bare step": bare(session(train, val), wanted.steps)}
    for measure in rivals.values():
        measure()
    taken = medians(in_turns(rivals, wanted.rounds))
    show(["loop", "ms a step"], [[name, f"{value:.2f}"] for name, value in taken.items()])
    cost = 100 * (taken["session"] / taken["bare step"] - 1)
    print(f"\nthe session costs {cost:+.1f} % (promised: at most {PERCENT} %) on {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()

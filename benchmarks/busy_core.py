"""What a training loses where another program has one core to itself: with threads that stay on their cores, and without.

    python benchmarks/busy_core.py [--quick] [--rounds 3] [--steps 30]

The session's own steps (see loop_overhead.py), idle and beside a program that never waits. Measured in turns; the medians
count. In proportion would be twice the time on two cores: the thread that shares its core has half of it, and all wait for
it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch

from comparing import arguments, fashion, in_turns, medians, show
from darkroom.training import session as sessions
from loop_overhead import session, whole


@contextmanager
def busy_program() -> Iterator[None]:
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def beside(measure: Callable[[], float]) -> Callable[[], float]:
    def measured() -> float:
        with busy_program():
            return measure()

    return measured


def main() -> None:
    wanted = arguments(__doc__, rounds=3, steps=30)
    if wanted.quick:
        wanted.rounds, wanted.steps = 1, 5
    train, val = fashion("train"), fashion("t10k").first(100)
    held = whole(session(train, val), wanted.steps)
    held()  # warm, and its threads are held from here on
    taken = medians(in_turns({"held, idle": held, "held, one core busy": beside(held)}, wanted.rounds))
    del held  # ends the session: its threads are free again
    vars(sessions)["own_cores"] = lambda _device: nullcontext()
    free = whole(session(train, val), wanted.steps)
    free()
    taken |= medians(in_turns({"free, idle": free, "free, one core busy": beside(free)}, wanted.rounds))
    show(["threads", "ms a step"], [[name, f"{value:.1f}"] for name, value in taken.items()])
    for name in ("held", "free"):
        times = taken[f"{name}, one core busy"] / taken[f"{name}, idle"]
        print(f"{name}: {times:.1f} times as long beside a busy program, on {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()

"""torch.compile where it pays: tried on a copy in a process of its own, timed beside eager, and kept or dropped with a word."""

from __future__ import annotations

import copy
import multiprocessing
import statistics
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn
from torch.nn import functional

from darkroom.training.devices import autocast

TRIAL_SECONDS = 120.0
"""that a trial may take in all, compilation included"""
TIMED_STEPS = 5
WORTHWHILE = 0.95
"""of eager's time: compiled code has to be below it"""


@dataclass(frozen=True)
class Choice:
    """Whether to compile, and why in a line."""

    compiled: bool
    why: str


def choose_compile(
    network: nn.Module, images: Tensor, *, precision: str, steps: int, seconds: float = TRIAL_SECONDS
) -> Choice:
    """Whether `steps` steps on batches like `images` (normalised, N×C×H×W) end sooner when compiled.

    Network, random numbers and the process itself stay as they are: the trial works on a copy, elsewhere, and is ended
    after `seconds`. The compiled code stays in torch's cache, so that the process that trains finds it there.
    """
    eager = _seconds_a_step(copy.deepcopy(network), images, precision)
    left = eager * steps
    if left < seconds:
        return Choice(compiled=False, why=f"all steps take {left:.0f} s, a trial may take {seconds:.0f} s")
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    arguments = (there, network, images.cpu(), str(images.device), precision, torch.get_num_threads())
    process = context.Process(target=_try, args=arguments, daemon=True)
    process.start()
    there.close()
    try:
        told: float | str = here.recv() if here.poll(seconds) else f"not started within {seconds:.0f} s"
    except EOFError:
        told = "its process died"
    process.kill()
    process.join()
    if isinstance(told, str):
        return Choice(compiled=False, why=f"compiled: {told}")
    why = f"a step takes {1e3 * told:.1f} ms compiled, {1e3 * eager:.1f} ms eager"
    return Choice(compiled=told < WORTHWHILE * eager, why=why)


def _try(connection: Connection, network: nn.Module, images: Tensor, device: str, precision: str, threads: int) -> None:
    """In the trial's process: sends the compiled step's seconds, or in words why there are none."""
    torch.set_num_threads(threads)
    try:
        network, images = network.to(device), images.to(device)
        connection.send(_seconds_a_step(network, images, precision, compiled=True))
    except Exception as error:  # whatever a compiler throws
        connection.send((str(error).strip() or type(error).__name__).splitlines()[0][:200])


def _seconds_a_step(network: nn.Module, images: Tensor, precision: str, *, compiled: bool = False) -> float:
    """Median of a few forward and backward passes; the first, which compiles, is left out."""
    network.train()
    model = torch.compile(network) if compiled else network
    labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
    taken = []
    for _ in range(2 + TIMED_STEPS):
        started = time.perf_counter()
        with autocast(images.device, precision):
            logits = model(images)
        functional.cross_entropy(logits.float(), labels).backward()  # type: ignore[no-untyped-call]  # torch's
        if images.is_cuda:
            torch.cuda.synchronize()
        network.zero_grad()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[2:])

"""Forward and backward passes of one step: micro-batch by micro-batch, on this process's share of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from darkroom.errors import UserError
from darkroom.training.batches import Batches, Cut
from darkroom.training.compiling import Choice, choose_compile
from darkroom.training.devices import autocast
from darkroom.training.freezing import has_batch_norm
from darkroom.training.losses import CrossEntropy
from darkroom.training.order import split_evenly
from darkroom.training.randomness import Purpose, seed_torch, torch_seed
from darkroom.training.recipe import Recipe
from darkroom.training.world import World


class Passes:
    """The gradient of a whole step, in as many micro-batches as memory wants.

    Each micro-batch's loss is a sum over its pictures, divided by the whole step's sum of label weights: so neither the number
    of micro-batches nor of processes changes the gradient beyond rounding.
    """

    def __init__(
        self,
        network: nn.Module,
        batches: Batches,
        loss: CrossEntropy,
        *,
        precision: str,
        world: World,
    ) -> None:
        """The others' weights become the leader's."""
        self.network = network
        self.batches = batches
        self.loss = loss
        self.device = batches.device
        self.precision = precision
        self.world = world
        self.smallest = 2 if has_batch_norm(network) else 1
        """pictures that a process can train on"""
        self.compiled = False
        if world.size > 1 and self.device.type == "cuda":  # torch has none for CPUs
            nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]  # in place, same keys
        self.model = network
        self.join()

    def join(self) -> None:
        """From now on the processes exchange the gradients of the weights that train now."""
        self.model = self.network
        if self.world.size > 1:
            self.model = DistributedDataParallel(self.network)
        if self.compiled:
            self.model.compile()  # in place: the keys of its weights stay plain

    def compile(self) -> None:
        """From now on the network runs compiled."""
        self.compiled = True
        self.join()

    def settle(self, recipe: Recipe) -> str:
        """Compiles as the recipe says; where it says auto, the leader's trial decides, and a line says why."""
        if recipe.compile == "on":
            self.compile()
        if recipe.compile != "auto":
            return ""
        choice: Choice | None = None
        if self.world.leads:
            order = self.batches.order
            cut = self.batches.cut(0, 0)
            rows = split_evenly(len(cut), recipe.accumulate * self.world.size)[0]
            images = self.batches.load(cut, rows).images
            micro_steps = order.steps * recipe.epochs * recipe.accumulate
            choice = choose_compile(self.network, images, precision=self.precision, steps=micro_steps)
        choice = self.world.share(choice)
        assert choice is not None
        if choice.compiled:
            self.compile()
        return f"train.compile: auto takes {'on' if choice.compiled else 'off'} ({choice.why})"

    def run(self, cut: Cut, epoch: int, step: int, accumulate: int, backward: Callable[[Tensor], None]) -> Tensor:
        """Calls `backward` with each micro-batch's loss; this process's part of the step's loss, on the device.

        Raises torch.OutOfMemoryError, with the gradient half done.
        """
        weight = self.loss.weight(cut)
        total = torch.zeros((), device=self.device)
        parts = self._parts(len(cut), accumulate)
        for micro, (rows, share) in enumerate(parts):
            batch = self.batches.load(cut, rows)
            position = (self.batches.order.seed, Purpose.NETWORK, epoch, step)
            seed_torch(torch_seed(*position, micro, self.world.rank), self.device)
            with self._exchanging(last=micro == len(parts) - 1), _said(self.compiled):
                with autocast(self.device, self.precision):
                    logits = self.model(batch.images)
                loss = self.loss(logits, batch) / weight
                backward(loss * share)
            total += loss.detach() * share / self.world.size
        return total

    def look(self, cut: Cut, accumulate: int) -> None:
        """The forward passes of a step again."""
        for rows, _ in self._parts(len(cut), accumulate):
            with autocast(self.device, self.precision):
                self.network(self.batches.load(cut, rows).images)

    def _parts(self, num: int, accumulate: int) -> list[tuple[slice, float]]:
        """This process's rows of each micro-batch, and what its loss counts: the mean of all processes' gradients is taken."""
        size = self.world.size
        if num < size * self.smallest:  # the whole step in each process: their mean is the same
            return [(slice(0, num), 1.0)]
        # a short last batch may be too short for all micro-batches
        micros = max(min(accumulate, num // (size * self.smallest)), 1)
        return [(rows, float(size)) for rows in split_evenly(num, micros * size)[self.world.rank :: size]]

    def _exchanging(self, *, last: bool) -> AbstractContextManager[None]:
        """Gradients travel once a step, with the last micro-batch."""
        if last or not isinstance(self.model, DistributedDataParallel):
            return nullcontext()
        return self.model.no_sync()


@contextmanager
def _said(compiled: bool) -> Iterator[None]:
    """Says in a line what a compiler that does not start says in pages. Raises UserError."""
    try:
        yield
    except Exception as error:
        if not compiled or not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UserError(f"train.compile: compiled code does not start here: {why} (set it to off)") from error


def out_of_memory(cut: Cut, accumulate: int, error: torch.OutOfMemoryError) -> UserError:
    """What to set where a micro-batch did not fit."""
    size = -(-len(cut) // accumulate)
    return UserError(
        f"out of memory with {size} pictures in a micro-batch (train.batch_size: {len(cut)}, train.accumulate: {accumulate}):"
        f" train.accumulate: {2 * accumulate} needs half and changes no result, train.on_oom: split does so by itself,"
        f" train.grad_checkpoint: true needs less still ({str(error).splitlines()[0][:120]})"
    )

"""Less memory for more time: activations computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from darkroom.errors import UserError
from darkroom.training.freezing import NORMS


def checkpoint_gradients(network: nn.Module) -> int:
    """Makes `network` keep the inputs of its blocks alone (Chen et al. 2016, https://arxiv.org/abs/1604.06174); their number.

    A block is a member of a Sequential, ModuleList or ModuleDict that is a class of its own with layers in it (a residual
    block, a transformer's layer), or where there is none, a Sequential in a Sequential. The results are the same to the
    bit: dropout draws the same numbers again, and batch norm counts a batch once. Raises UserError where there is no block.
    """
    members = [
        child
        for module in network.modules()
        if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        for child in module.children()
        if any(child.children())
    ]
    own = [child for child in members if not isinstance(child, nn.Sequential)]
    blocks = _outermost(own or members)
    if not blocks:
        raise UserError("train.grad_checkpoint: this network has no blocks to compute again (set it to false)")
    for block in blocks:
        _wrap(block)
    return len(blocks)


def _outermost(modules: list[nn.Module]) -> list[nn.Module]:
    inside = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in modules if id(module) not in inside]


def _wrap(block: nn.Module) -> None:
    plain = block.forward

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_stay(block)

    def forward(*inputs: Tensor) -> Tensor:
        if not block.training:
            result: Tensor = plain(*inputs)
        else:
            result = checkpoint(plain, *inputs, use_reentrant=False, context_fn=contexts)
        return result

    block.forward = forward  # the keys of its weights stay plain


@contextmanager
def _statistics_stay(block: nn.Module) -> Iterator[None]:
    """Batch norm counts the batch into copies of its statistics."""
    norms = [module for module in block.modules() if isinstance(module, NORMS) and module.track_running_stats]
    kept = [(norm, name, buffer) for norm in norms for name, buffer in norm.named_buffers(recurse=False)]
    for norm, name, buffer in kept:
        setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, name, buffer in kept:
            setattr(norm, name, buffer)

"""What cannot be trained, said before the first step."""

from __future__ import annotations

from torch import nn

from darkroom.errors import UserError
from darkroom.training.freezing import has_batch_norm
from darkroom.training.recipe import Recipe


def check_sizes(network: nn.Module, recipe: Recipe, *, num_train: int, num_val: int, processes: int = 1) -> None:
    """Raises UserError where there is nothing to train or validate on, or batch norm would see one picture at a time.

    A training set smaller than the batch trains: each epoch is then one step.
    """
    if num_train == 0:
        raise UserError("data: there are no training pictures: lower data.val_fraction or data.test_fraction")
    if num_val == 0:
        raise UserError("data: there are no validation pictures: raise data.val_fraction")
    if processes > 1 and recipe.on_oom == "split":
        raise UserError(f"train.on_oom: split works in one process, not in {processes}: raise train.accumulate instead")
    if recipe.batch_size < processes * recipe.accumulate:
        raise UserError(
            f"train.batch_size: {recipe.batch_size} cannot be shared by {processes} processes × train.accumulate: "
            f"{recipe.accumulate} (at least {processes * recipe.accumulate})"
        )
    if not has_batch_norm(network):
        return
    if num_train == 1:
        raise UserError(f"data: 1 training picture is too few for batch norm (train.batch_size: {recipe.batch_size})")
    if recipe.batch_size == 1:
        raise UserError("train.batch_size: 1 is too small for a network with batch norm (at least 2)")
    if recipe.batch_size // (recipe.accumulate * processes) < 2:
        raise UserError(
            f"train.accumulate: {recipe.accumulate} leaves single pictures of train.batch_size: {recipe.batch_size}, "
            f"too few for batch norm (at most {recipe.batch_size // 2})"
        )

"""The export stage in a folder of a test's own, with few timing runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from darkroom.models import SavedModel
from darkroom.packed import PackedSet
from darkroom.params import Export, read_params
from darkroom.tracking.store import Store
from digits import StoreSpy
from export import export
from pipelines import REPOSITORY

EXACT = {"onnx": "model.onnx", "torchscript": "model.ts", "torch_export": "model.pt2"}
FILES = {**EXACT, "int8": "model.int8.onnx"}


def settings(**changes: Any) -> Export:
    return read_params(REPOSITORY / "params.yaml").export.model_copy(update={"timing_runs": 3, **changes})


def run_stage(packed: PackedSet, saved: SavedModel, folder: Path, **changes: Any) -> tuple[dict[str, Any], StoreSpy]:
    spy = StoreSpy()
    numbers = export(packed, saved, export=settings(**changes), store=cast(Store, spy), out=folder)
    return numbers, spy

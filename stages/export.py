"""Writes the trained model as files that leave, and checks each against PyTorch.

Reads   data/packed, models/model.pt
Writes  export, metrics/export.json
Keys    export
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from darkroom.door import enter, root, say
from darkroom.params import flatten, read_params

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from darkroom.models import SavedModel
    from darkroom.packed import PackedSet
    from darkroom.params import Export
    from darkroom.tracking.runs import StageRun
    from darkroom.tracking.store import Store

KEYS: tuple[str, ...] = ("export",)


def main() -> None:
    params = read_params()
    from darkroom.models import load_model
    from darkroom.packed import open_packed
    from darkroom.tracking import open_store

    packed = open_packed(Path("data/packed"), "train", "test")
    saved = load_model(Path("models/model.pt"))
    store = open_store(params.tracking, root())
    numbers = export(packed, saved, export=params.export, store=store, out=Path())
    for name in params.export.formats:
        say(f"{name}: {_summary(numbers[name])}")
    say("wrote export, metrics/export.json; next: dvc repro report")
    say(store.farewell(numbers["mlflow_run_id"]))


def export(packed: PackedSet, saved: SavedModel, *, export: Export, store: Store, out: Path) -> dict[str, Any]:
    """Writes `saved` in each of the formats into the folder `out`/export, whole or not at all, and records the run.

    Each file is loaded back as its users load it and compared with PyTorch, fp32 on the CPU, on test pictures of
    `packed`. int8 is left out where it loses more accuracy than `export.int8_max_drop`, or where the network cannot be
    quantised. Gives what metrics/export.json holds. Raises UserError where another file differs beyond `export.tolerance`,
    and where `packed` is not what the model was trained on.
    """
    from darkroom.exporting.formats import write_formats
    from darkroom.exporting.keeping import leave_out
    from darkroom.exporting.measuring import measure
    from darkroom.exporting.source import source_of
    from darkroom.files import write_json, written_folder

    packed.check_same(saved.data_sha256)
    values = flatten({"export": export.model_dump()})
    with store.join("export", values, run_id=saved.run_id, model_sha256=saved.model_sha256) as run:
        run.model(saved.model_sha256)
        source = source_of(saved, opset=export.opset, calibration=_calibration(packed, export))
        with written_folder(out / "export") as folder:
            absent = write_formats(folder, source, export.formats)
            numbers = measure(
                folder, source, [name for name in export.formats if name not in absent], packed,
                tolerance=export.tolerance, parity_images=export.parity_images, turns=export.timing_runs,
            )  # fmt: skip
            leave_out(folder, numbers, absent, export.int8_max_drop)
        numbers |= {"model_sha256": saved.model_sha256, "mlflow_run_id": run.run_id}
        write_json(out / "metrics/export.json", numbers)
        _record(run, numbers, out)
    return numbers


def _calibration(packed: PackedSet, export: Export) -> NDArray[np.uint8]:
    """Training pictures spread evenly, N×C×H×W; none where nothing is quantised."""
    import numpy as np

    from darkroom.packed import spread

    train = packed.split("train").images
    places = spread(len(train), export.calibration_images if "int8" in export.formats else 0)
    return np.array(train[places].transpose(0, 3, 1, 2), order="C")


def _summary(found: dict[str, Any]) -> str:
    """A format's numbers as a line."""
    if not found.get("kept", True):
        return f"left out: {found['left_out']}"
    return (
        f"{found['accuracy']:.2%} of the test pictures right; a logit differs from PyTorch by at most "
        f"{found['max_difference']:.1e}, {found['same_classes']:.1%} equal classes; "
        f"{found['latency_ms_batch_1']:.2f} ms a picture, {found['bytes'] / 1e6:.1f} MB"
    )


def _record(run: StageRun, numbers: dict[str, Any], out: Path) -> None:
    """A format's numbers as onnx_max_difference, onnx_latency_ms_batch_1 …, PyTorch's as pytorch_latency_ms_batch_1 …"""
    for name, measured in numbers.items():
        if isinstance(measured, dict):
            run.metrics({f"{name}_{key}": value for key, value in measured.items() if not isinstance(value, str)})
    run.artifact(out / "metrics/export.json", "metrics")
    run.artifacts(out / "export", "export")


if __name__ == "__main__":
    enter(main)

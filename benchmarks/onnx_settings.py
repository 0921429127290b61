"""ONNX Runtime's settings beside each other: why `darkroom.exporting.session` sets what it sets.

    python benchmarks/onnx_settings.py [--quick] [--rounds 200] [--threads 1]

Each setting changes one thing of the session that users get; the medians of calls in turns, as ratios beside that session.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from comparing import arguments, show
from darkroom.exporting import timing
from darkroom.exporting.formats import FORMATS, write_formats
from darkroom.exporting.parity import Run
from darkroom.exporting.session import session_options
from export_speed import BATCHES, NETWORKS, source

Options = Any  # onnxruntime publishes no types
LEVELS = onnxruntime.GraphOptimizationLevel


def entry(key: str, value: str) -> Callable[[Options], None]:
    return lambda options: options.add_session_config_entry(key, value)


def attribute(**values: object) -> Callable[[Options], None]:
    def change(options: Options) -> None:
        for name, value in values.items():
            setattr(options, name, value)

    return change


CHANGES: dict[str, Callable[[Options], None]] = {
    "as it is": lambda _options: None,
    "the same again": lambda _options: None,
    "graph: extended": attribute(graph_optimization_level=LEVELS.ORT_ENABLE_EXTENDED),
    "graph: basic": attribute(graph_optimization_level=LEVELS.ORT_ENABLE_BASIC),
    "graph: none": attribute(graph_optimization_level=LEVELS.ORT_DISABLE_ALL),
    "parallel execution": attribute(execution_mode=onnxruntime.ExecutionMode.ORT_PARALLEL),
    "threads spin on after a call": entry("session.force_spinning_stop", "0"),
    "threads never spin": entry("session.intra_op.allow_spinning", "0"),
    "no memory arena": attribute(enable_cpu_mem_arena=False),
    "no memory pattern": attribute(enable_mem_pattern=False),
    "denormals as zero": entry("session.set_denormal_as_zero", "1"),
    "QDQ clean-up": entry("session.enable_quant_qdq_cleanup", "1"),
    "x64quantprecision": entry("session.x64quantprecision", "1"),
}


def opened(path: Path, threads: int, change: Callable[[Options], None]) -> Run:
    options = session_options(threads)
    change(options)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        logits, probabilities = session.run(["logits", "probabilities"], {"images": images})
        return logits, probabilities

    return run


def ratios(path: Path, images: NDArray[np.uint8], rounds: int, threads: int) -> dict[str, float]:
    """Medians beside that of the session as it is; that one's in milliseconds."""
    runs = {name: opened(path, threads, change) for name, change in CHANGES.items()}
    taken = {name: 1000 * median(each) for name, each in timing.call_seconds(runs, images, rounds).items()}
    first, *others = taken.items()
    return {first[0]: first[1], **{name: value / first[1] for name, value in others}}


def main() -> None:
    asked = arguments(__doc__, rounds=200, threads=1)
    timing.LONGEST_SECONDS = 60.0  # a stage has to end, a benchmark has time
    onnxruntime.set_default_logger_severity(3)  # it remarks on each entry that is set twice
    columns = {}
    for name, spec in NETWORKS.items():
        model = source(spec)
        with tempfile.TemporaryDirectory() as folder:
            assert not write_formats(Path(folder), model, ("onnx", "int8"))
            for form in ("onnx", "int8"):
                for batch in BATCHES:
                    rounds = 3 if asked.quick else asked.rounds if batch == 1 else max(5, asked.rounds // 10)
                    path = Path(folder, FORMATS[form].file)
                    found = ratios(path, model.calibration[:batch], rounds, asked.threads)
                    columns[f"{name}, {form}, {batch}"] = found
    show(["setting", *columns], [[name, *(f"{found[name]:.3f}" for found in columns.values())] for name in CHANGES])


if __name__ == "__main__":
    main()

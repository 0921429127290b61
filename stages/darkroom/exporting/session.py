"""An exported ONNX file at work: onnxruntime and numpy alone."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from darkroom.errors import UserError
from darkroom.exporting.description import Description
from darkroom.files import missing

MADE_BY = "dvc repro export"
WARNINGS = 3
"""onnxruntime's severity from which it prints: errors; its warnings are about devices that it looked for and did not find"""


class OnnxModel:
    """The file in `path`, opened on the CPU. Several threads may call it at once.

    Raises UserError where the file is missing, damaged, or not exported by this project.
    """

    description: Description

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        """`threads` for one call; None for one a CPU that this process may use."""
        options = session_options(threads or usable_cpus())
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's kinds have no common base
            raise _not_opened(path, error) from None
        texts = self._session.get_modelmeta().custom_metadata_map
        self.description = Description.of_texts(texts, str(path))

    def run(self, images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Logits and probabilities (each N×K) of `images` (N×C×H×W)."""
        logits, probabilities = self._session.run(["logits", "probabilities"], {"images": images})
        return logits, probabilities


def session_options(threads: int) -> onnxruntime.SessionOptions:
    """For calls on so many threads.

    All else is onnxruntime's default. On one thread only its level of graph optimisation, which is the highest, makes a
    difference: one below, fp32 takes 1.2 to 3.8 times as long, two below, int8 4 to 9 times. Arena, memory pattern, parallel
    execution, denormals, QDQ clean-up and spinning stay within what two equal sessions differ by (benchmarks/onnx_settings.py).
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = WARNINGS
    # Idle threads sleep after a call instead of spinning: they would take the CPU from whoever works next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def usable_cpus() -> int:
    """CPUs that this process may use: fewer than the machine's in a container with a CPU set."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _not_opened(path: Path, error: Exception) -> UserError:
    if not path.exists():
        return missing(path, MADE_BY)
    if path.is_dir():
        return UserError(f"{path} is a folder, no model: name the file in it (export/model.onnx)")
    reason = str(error).splitlines()[0]
    return UserError(f"{path} is damaged or no ONNX model ({reason}): run {MADE_BY}, or name another file")

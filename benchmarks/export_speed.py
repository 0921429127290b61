"""What export brings: eager PyTorch, ONNX and ONNX in 8 bits beside each other, as the export stage measures them.

    python benchmarks/export_speed.py [--quick] [--rounds 200] [--threads 1]

Networks with random weights, since a call takes as long as with trained ones: the default one for digits (one block in each of
three stages, width 32, 8×8 pixels), the same for 28×28, once more with width 64, and a ResNet-18 of width 64 for 32×32 in colour. The first shows what a
call costs by itself, the last what computing costs. The medians of calls in turns; ratios beside eager PyTorch, and of int8 beside onnx. Promised on one
thread: onnx at batch 1 at most 0.4 × eager on the small ResNets; int8 at most 0.4 × onnx where the CPU has VNNI,
which networks of width 32 miss.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import torch

from comparing import arguments, show
from darkroom.exporting import timing
from darkroom.exporting.formats import write_formats
from darkroom.exporting.measuring import PYTORCH, opened
from darkroom.exporting.source import Source, source_of
from darkroom.models import NetworkSpec, Preprocessing, SavedModel, build_network

FORMATS = ("onnx", "int8", "torchscript")
NETWORKS = {
    "digits": NetworkSpec("resnet", 32, (1, 1, 1), 0.0, 1, 8, 10),
    "ResNet 28×28": NetworkSpec("resnet", 32, (1, 1, 1), 0.0, 1, 28, 10),
    "ResNet 28×28, width 64": NetworkSpec("resnet", 64, (1, 1, 1), 0.0, 1, 28, 10),
    "ResNet-18": NetworkSpec("resnet", 64, (2, 2, 2, 2), 0.0, 3, 32, 10),
}
BATCHES = (1, 64)


def source(spec: NetworkSpec) -> Source:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weights = build_network(spec).state_dict()
    preprocessing = Preprocessing(spec.image_size, spec.channels, "crop", [0.5] * spec.channels, [0.25] * spec.channels)
    saved = SavedModel.of(
        network=spec, weights=weights, classes=[str(i) for i in range(spec.num_classes)], preprocessing=preprocessing,
        temperature=1.0, run_id="", data_sha256="", made_with={},
    )  # fmt: skip
    shape = (64, spec.channels, spec.image_size, spec.image_size)
    return source_of(saved, opset=18, calibration=np.random.default_rng(0).integers(0, 256, shape, np.uint8))


def measured(spec: NetworkSpec, rounds: int, threads: int) -> list[list[str]]:
    """A row a batch size: milliseconds of each, and the ratios."""
    rows = []
    model = source(spec)
    with tempfile.TemporaryDirectory() as name:
        assert not write_formats(Path(name), model, FORMATS)
        with opened(Path(name), model, FORMATS, threads) as runs:
            for batch in BATCHES:
                turns = rounds if batch == 1 else max(3, rounds // 10)
                taken = timing.call_seconds(runs, model.calibration[:batch], turns)
                ms = {each: 1000 * median(seconds) for each, seconds in taken.items()}
                ratios = [ms["onnx"] / ms[PYTORCH], ms["int8"] / ms["onnx"], ms["int8"] / ms[PYTORCH]]
                times = [f"{ms[each]:.3f}" for each in (PYTORCH, *FORMATS)]
                rows.append([str(batch), *times, *(f"{ratio:.2f}" for ratio in ratios)])
    return rows


def main() -> None:
    asked = arguments(__doc__, rounds=200, threads=1)
    timing.LONGEST_SECONDS = 60.0  # a stage has to end, a benchmark has time
    rounds = 3 if asked.quick else asked.rounds
    header = [
        "network",
        "batch",
        "eager, ms",
        *(f"{name}, ms" for name in FORMATS),
        "onnx / eager",
        "int8 / onnx",
        "int8 / eager",
    ]
    show(header, [[name, *row] for name, spec in NETWORKS.items() for row in measured(spec, rounds, asked.threads)])


if __name__ == "__main__":
    main()

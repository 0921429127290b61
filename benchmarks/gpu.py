"""Called by gpu.sh: images/s of the training room's sessions on a GPU, as JSON. Imports torch, numpy and `darkroom.training`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stages"))

from darkroom.models import network_spec
from darkroom.training import Augmentation, Recipe, Session, StepRecord, shelf, start_network

BATCH, WARM_STEPS, TIMED_STEPS = 512, 10, 60
SECONDS = 420
"""after which no further measurement is begun"""
VARIANTS: dict[str, dict[str, Any]] = {
    "fp32 (ieee), NCHW": {"precision": "fp32", "tf32": False, "channels_last": False},
    "fp32 (tf32), NCHW": {"precision": "fp32", "channels_last": False},
    "fp32 (tf32), channels_last": {"precision": "fp32", "channels_last": True},
    "bf16, NCHW": {"precision": "bf16", "channels_last": False},
    "bf16, channels_last": {"precision": "bf16", "channels_last": True},
    "fp16, channels_last": {"precision": "fp16", "channels_last": True},
    "bf16, channels_last, compiled": {"precision": "bf16", "channels_last": True, "compile": "on"},
    "bf16, channels_last, deterministic": {"precision": "bf16", "channels_last": True, "deterministic": True},
    "bf16, channels_last, grad_checkpoint": {"precision": "bf16", "channels_last": True, "grad_checkpoint": True},
    "bf16, channels_last, pictures in memory": {"precision": "bf16", "channels_last": True, "held": False},
}


@dataclass(frozen=True)
class Pictures:
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def pictures(num: int) -> Pictures:
    rng = np.random.default_rng(0)
    return Pictures(rng.integers(0, 256, (num, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, num))


def network() -> nn.Module:
    spec = network_spec("resnet", width=64, blocks="auto", dropout=0.0, channels=3, image_size=32, num_classes=10)
    return start_network(spec, seed=0).network


def timed(step: Callable[[], object], device: torch.device) -> float:
    """Images/s of `step`, called often enough."""
    for _ in range(WARM_STEPS):
        step()
    synchronize(device)
    started = time.perf_counter()
    for _ in range(TIMED_STEPS):
        step()
    synchronize(device)
    return TIMED_STEPS * BATCH / (time.perf_counter() - started)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def ours(train: Pictures, *, held: bool = True, **recipe: Any) -> dict[str, float]:
    """A session's steps, with augmentation, clipping and the average of the weights on."""
    shelf.HELD_SHARE = 0.25 if held else 0.0
    session = Session(
        network(), train, pictures(512), recipe=Recipe(epochs=1000, batch_size=BATCH, lr=0.1, ema_decay=0.99, clip_norm=1.0, **recipe),
        augmentation=Augmentation(crop_padding=4, flip=True), num_classes=10, mean=[0.5] * 3, std=[0.25] * 3,
    )  # fmt: skip
    session.passes.settle(session.recipe)
    steps = (record for record in session.run() if isinstance(record, StepRecord))
    if session.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    speed = timed(lambda: next(steps), session.device)
    memory = torch.cuda.max_memory_allocated() / 1e6 if session.device.type == "cuda" else 0.0
    return {"images_per_s": round(speed), "peak_memory_mb": round(memory)}


def plain(train: Pictures, device: torch.device) -> dict[str, float]:
    """NCHW float32 and a DataLoader of float tensors with two workers, without augmentation."""
    torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined,unused-ignore]
    floats = torch.from_numpy(train.images[:20_000]).permute(0, 3, 1, 2).float() / 255
    loader = DataLoader(
        TensorDataset(floats, torch.from_numpy(train.labels[:20_000])),
        BATCH,
        shuffle=True,
        num_workers=2,
        drop_last=True,
    )
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    batches = (batch for _ in range(1000) for batch in loader)

    def step() -> None:
        images, labels = next(batches)
        optimizer.zero_grad()
        loss = cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()

    return {"images_per_s": round(timed(step, device))}


def main() -> None:
    out = Path(sys.argv[1])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = pictures(50_000)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    told: dict[str, Any] = {"device": name, "torch": torch.__version__, "batch": BATCH, "steps": TIMED_STEPS}
    ended = time.monotonic() + SECONDS
    measurements = {"plain loop": lambda: plain(train, device)} | {
        label: lambda recipe=recipe: ours(train, **recipe) for label, recipe in VARIANTS.items()
    }
    for label, measure in measurements.items():
        if time.monotonic() > ended:
            told[label] = {"left_out": "out of time"}
            continue
        try:
            told[label] = measure()
        except Exception as error:  # one that fails must not lose the others
            told[label] = {"error": str(error).splitlines()[0]}
        print(f"{label}: {told[label]}", flush=True)
        out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()

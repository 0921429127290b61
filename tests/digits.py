"""Small real things for the tests of evaluation, export, report and prediction: digits, packed, and networks fitted to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from darkroom.files import write_json
from darkroom.models import NetworkSpec, Preprocessing, SavedModel, build_network
from darkroom.packed import SPLITS, Meta, PackedSet, write_meta

ENDS = {"train": (0, 1000), "val": (1000, 1100), "test": (1100, 1797)}


def pack_digits(folder: Path, *, size: int = 8, test_labels: NDArray[np.int64] | None = None) -> PackedSet:
    """scikit-learn's digits as prepare would write them, enlarged to `size` pixels; `test_labels` in place of the true ones."""
    bunch = load_digits()
    images = (bunch.images * (255 / 16)).round().astype(np.uint8)[..., None].repeat(size // 8, 1).repeat(size // 8, 2)
    labels = bunch.target.astype(np.int64)
    if test_labels is not None:
        labels[ENDS["test"][0] :] = test_labels
    folder.mkdir(parents=True, exist_ok=True)
    for name, (start, end) in ENDS.items():
        np.save(folder / f"{name}.images.npy", images[start:end])
        np.save(folder / f"{name}.labels.npy", labels[start:end])
    train = images[: ENDS["train"][1]] / 255
    meta = Meta(
        name="digits",
        classes=[str(i) for i in range(10)],
        image_size=size,
        channels=1,
        resize="crop",
        mean=[float(train.mean())],
        std=[float(train.std())],
        counts={name: np.bincount(labels[slice(*ENDS[name])], minlength=10).tolist() for name in SPLITS},
        sha256=f"{size}" * 32,
        split_sha256={},
    )
    write_json(folder / "splits.json", {name: [f"all/{i}" for i in range(*ENDS[name])] for name in SPLITS})
    hashes = {name: PackedSet(folder, meta).split(name).sha256() for name in SPLITS}
    meta = replace(meta, split_sha256=hashes)
    write_meta(folder, meta)
    return PackedSet(folder, meta)


def fit_digits(packed: PackedSet, name: str = "resnet", *, steps: int = 40, dropout: float = 0.3) -> SavedModel:
    """A small network fitted for a second, as train would save it."""
    meta = packed.meta
    blocks = (1, 1) if name in ("vgg", "resnet") else ()
    spec = NetworkSpec(name, 16, blocks, dropout, meta.channels, meta.image_size, len(meta.classes))
    train = packed.split("train")
    images = torch.from_numpy(np.array(train.images)).permute(0, 3, 1, 2)
    pixels, labels = (images / 255 - meta.mean[0]) / meta.std[0], torch.from_numpy(np.array(train.labels))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_network(spec)
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.02)
        for step in range(steps):
            rows = torch.arange(step * 100, step * 100 + 100) % len(labels)
            torch.nn.functional.cross_entropy(network(pixels[rows]), labels[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return SavedModel.of(
        network=spec,
        weights=network.state_dict(),
        classes=meta.classes,
        preprocessing=Preprocessing(meta.image_size, meta.channels, meta.resize, meta.mean, meta.std),
        temperature=1.25,
        run_id="0" * 32,
        data_sha256=meta.sha256,
        made_with={"device": "cpu", "threads": 1, "torch": str(torch.__version__)},
    )


class StoreSpy:
    """Stands in for a store and its one run: keeps what it is given."""

    run_id = "1" * 32

    def __init__(self) -> None:
        self.joined: dict[str, Any] = {}
        self.numbers: dict[str, float] = {}
        self.files: list[str] = []

    def join(self, stage: str, values: Mapping[str, Any], *, run_id: str, model_sha256: str) -> Self:
        self.joined = {"stage": stage, "values": dict(values), "run_id": run_id, "model_sha256": model_sha256}
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def model(self, model_sha256: str) -> None:
        assert model_sha256 == self.joined["model_sha256"]

    def metrics(self, numbers: Mapping[str, float], step: int | None = None) -> None:
        self.numbers |= numbers

    def artifact(self, path: Path, folder: str = "") -> None:
        assert path.is_file()
        self.files.append(f"{folder}/{path.name}".removeprefix("/"))

    def artifacts(self, folder: Path, into: str = "") -> None:
        self.files += [f"{into}/{path.relative_to(folder)}" for path in sorted(folder.rglob("*")) if path.is_file()]

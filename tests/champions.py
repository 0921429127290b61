"""Candidates for the tests of promotion: a packed set, and models that are right on as many pictures as a test wants."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from darkroom.exporting.description import Description
from darkroom.packed import SPLITS, Meta, PackedSet, write_meta
from darkroom.promoting.candidate import Candidate
from darkroom.tracking.store import Store

NUM_TEST = 100
CLASSES = [f"class {number}" for number in range(10)]
DATA = "d" * 64


def packed_set(folder: Path, *, classes: list[str] = CLASSES, sha256: str = DATA, size: int = 4) -> PackedSet:
    """A hundred test pictures: the first pixel is the label, the second the picture's number."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.arange(NUM_TEST, dtype=np.int64) % len(classes)
    images = np.zeros((NUM_TEST, size, size, 1), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = labels, np.arange(NUM_TEST)
    for split in SPLITS:
        np.save(folder / f"{split}.images.npy", images)
        np.save(folder / f"{split}.labels.npy", labels)
    counts = {split: np.bincount(labels, minlength=len(classes)).tolist() for split in SPLITS}
    meta = Meta("digits", classes, size, 1, "crop", [0.5], [0.5], counts, sha256, {})
    write_meta(folder, meta)
    return PackedSet(folder, meta)


def write_onnx(
    path: Path, *, right: int, classes: list[str] = CLASSES, sha256: str, data: str = DATA, size: int = 4
) -> None:
    """An exported model as the export stage writes it, right on the first `right` of the test pictures."""
    scale = np.array([8.0], np.float32)
    constants = {
        "classes": np.arange(len(classes), dtype=np.float32)[None],
        "limit": np.array([right - 0.5], np.float32), "scale": scale, "flat": np.array([0, -1], np.int64),
        "one": np.array([1], np.int64), "zero": np.array([0], np.int64), "two": np.array([2], np.int64),
    }  # fmt: skip
    nodes = [
        helper.make_node("Cast", ["images"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["pixels", "flat"], ["row"]),
        helper.make_node("Slice", ["row", "zero", "one", "one"], ["label"]),
        helper.make_node("Slice", ["row", "one", "two", "one"], ["number"]),
        helper.make_node("Sub", ["limit", "number"], ["left"]),
        helper.make_node("Sign", ["left"], ["sign"]),
        helper.make_node("Sub", ["label", "classes"], ["distance"]),
        helper.make_node("Abs", ["distance"], ["absolute"]),
        helper.make_node("Neg", ["absolute"], ["closeness"]),
        helper.make_node("Mul", ["closeness", "sign"], ["signed"]),
        helper.make_node("Mul", ["signed", "scale"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", 1, size, size])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", len(classes)])
            for name in ("logits", "probabilities")
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    about = Description(classes, size, 1, "crop", [0.5], [0.5], 1.0, data, sha256, "r", {})
    for key, text in about.texts().items():
        model.metadata_props.add(key=key, value=text)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def sha_of(right: int) -> str:
    return hashlib.sha256(str(right).encode()).hexdigest()


def candidate(
    store: Store, folder: Path, *, right: int, run: dict[str, Any] | None = None, **of_file: Any
) -> Candidate:
    """The files of a finished pipeline and its run; `run` changes the run's tags, `of_file` the exported file."""
    sha256 = of_file.pop("sha256", sha_of(right))
    folder.mkdir(parents=True, exist_ok=True)
    write_onnx(folder / "model.onnx", right=right, sha256=sha256, **of_file)
    for name, text in (("model.pt", "weights"), ("model.ts", "script")):
        (folder / name).write_text(f"{text} {right}")
    with store.start("train", {"train.lr": right}) as started:
        started.tags({"model.sha256": sha256, "data.sha256": DATA})
        started.tags({"stage.evaluate": "finished", "stage.export": "finished"})
        for name, place in (("model.onnx", "export"), ("model.ts", "export"), ("model.pt", "model")):
            started.artifact(folder / name, place)
        for name in ("test", "export"):
            numbers = {"model_sha256": sha256, "mlflow_run_id": started.run_id}
            started.text(json.dumps(numbers), f"metrics/{name}.json")
    for key, text in (run or {}).items():
        store.client.set_tag(started.run_id, key, text)
    return Candidate(
        where="the workspace",
        checkpoint=folder / "model.pt",
        onnx=folder / "model.onnx",
        torchscript=folder / "model.ts",
        run_ids=dict.fromkeys(("train", "evaluate", "export"), started.run_id),
        hashes=dict.fromkeys(("models/model.pt", "metrics/test.json", "metrics/export.json"), sha256),
    )

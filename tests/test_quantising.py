"""The file in 8 bits: what is in it, when it leaves, and when it is left out."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

import export as stage
from darkroom.errors import UserError
from darkroom.exporting import formats, quantising
from darkroom.exporting.session import OnnxModel
from darkroom.models import SavedModel
from darkroom.packed import PackedSet
from digits import fit_digits, pack_digits
from exports import FILES, run_stage, settings


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    return pack_digits(tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def saved(packed: PackedSet) -> SavedModel:
    return fit_digits(packed)


@pytest.fixture(scope="module")
def done(packed: PackedSet, saved: SavedModel, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("exported")
    numbers, _ = run_stage(packed, saved, folder, formats=["int8", "onnx"])
    return folder / "export", numbers


def initializers(graph: onnx.GraphProto) -> Mapping[str, NDArray[Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def test_weights_are_symmetric_int8_with_a_scale_a_channel_and_maps_uint8(done: Any) -> None:
    graph = onnx.load(done[0] / "model.int8.onnx", load_external_data=False).graph
    values = initializers(graph)
    made_by = {output: node for node in graph.node for output in node.output}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert len(convolutions) == 6, "five 3×3 and the shortcut"
    for node in convolutions:
        maps, weight, bias = (made_by[name] for name in node.input)
        assert {maps.op_type, weight.op_type, bias.op_type} == {"DequantizeLinear"}
        pixels, scale, zero = (values[name] for name in weight.input)
        assert (pixels.dtype, zero.any()) == (np.int8, False)
        assert scale.shape == (len(pixels),)
        assert np.abs(pixels.astype(int)).reshape(len(pixels), -1).max(axis=1).min() > 60, "each channel uses its range"
        assert values[maps.input[2]].dtype == np.uint8
        assert values[bias.input[0]].dtype == np.int32


def test_scaling_last_layer_and_softmax_stay_in_fp32(done: Any) -> None:
    graph = onnx.load(done[0] / "model.int8.onnx").graph
    made_by = {output: node for node in graph.node for output in node.output}
    assert made_by["logits"].op_type == "Gemm"
    assert made_by["probabilities"].op_type == "Softmax"
    values = initializers(graph)
    assert [values[name].dtype for name in made_by["logits"].input[1:]] == [np.float32] * 2
    first = next(node for node in graph.node if node.op_type == "QuantizeLinear")
    assert made_by[first.input[0]].op_type in ("Div", "Mul", "Add"), "the scaled picture is the first map in 8 bits"


def test_a_shortcut_is_a_strided_convolution(done: Any) -> None:
    """As training computes it, by a slice, it would leave the layout of the others."""
    for file in ("model.onnx", "model.int8.onnx"):
        nodes = onnx.load(done[0] / file).graph.node
        assert "Slice" not in {node.op_type for node in nodes}
        (shortcut,) = [
            node for node in nodes if node.op_type == "Conv"
            and any(a.name == "strides" and list(a.ints) == [2, 2] for a in node.attribute)
            and any(a.name == "kernel_shape" and list(a.ints) == [1, 1] for a in node.attribute)
        ] or [None]  # fmt: skip
        assert shortcut is not None, file


def test_it_is_one_checked_file_of_the_opset_that_was_asked_for(done: Any) -> None:
    path = done[0] / "model.int8.onnx"
    model = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == 18
    assert not any(tensor.data_location == TensorProto.EXTERNAL for tensor in model.graph.initializer)
    assert sorted(each.name for each in path.parent.iterdir()) == ["model.int8.onnx", "model.onnx"]
    assert path.stat().st_size < 0.6 * (path.parent / "model.onnx").stat().st_size


def test_it_says_what_the_exact_file_says_of_itself(done: Any) -> None:
    exact, small = (OnnxModel(done[0] / file).description for file in ("model.onnx", "model.int8.onnx"))
    assert small.versions.keys() - exact.versions.keys() == {"onnxruntime"}
    assert replace(small, versions=exact.versions) == exact


@pytest.mark.parametrize("batch_size", [1, 2, 5, 64])
def test_it_takes_any_number_of_pictures(done: Any, packed: PackedSet, batch_size: int) -> None:
    images = np.array(packed.split("test").images[:64].transpose(0, 3, 1, 2), order="C")
    model = OnnxModel(done[0] / "model.int8.onnx", threads=1)
    whole, _ = model.run(images)
    parts = [model.run(images[start : start + batch_size])[0] for start in range(0, 64, batch_size)]
    assert np.concatenate(parts) == pytest.approx(whole, abs=1e-5)


def test_its_numbers_are_reported_and_not_held_to_the_tolerance(
    done: Any, packed: PackedSet, saved: SavedModel, tmp_path: Path
) -> None:
    found = done[1]["int8"]
    assert found["kept"]
    assert found["max_difference"] > 1e-3
    assert found["same_classes"] > 0.95
    assert found["accuracy_drop"] == pytest.approx(done[1]["onnx"]["accuracy"] - found["accuracy"])
    numbers, _ = run_stage(packed, saved, tmp_path, tolerance=1e-4, formats=["onnx", "int8"])
    assert numbers["int8"]["kept"]


def test_ranges_are_taken_of_training_pictures_spread_evenly(packed: PackedSet) -> None:
    train = packed.split("train").images.transpose(0, 3, 1, 2)
    few = stage._calibration(packed, settings(calibration_images=3))
    assert np.array_equal(few, train[[0, 500, 999]])
    assert len(stage._calibration(packed, settings(calibration_images=10**6))) == len(train)
    assert len(stage._calibration(packed, settings(formats=["onnx"]))) == 0


def outlying(saved: SavedModel) -> SavedModel:
    """The same function with one channel 10,000 times as large before a rectifier as after it: too wide a range for 8 bits."""
    weights = dict(saved.weights)
    first, then = "stages.0.0.norm1", "stages.0.0.conv2.weight"
    for name in ("weight", "bias"):
        weights[f"{first}.{name}"] = weights[f"{first}.{name}"] * torch.where(torch.arange(16) == 3, 1e4, 1.0)
    weights[then] = weights[then] * torch.where(torch.arange(16) == 3, 1e-4, 1.0)[None, :, None, None]
    return SavedModel.of(
        network=saved.network, weights=weights, classes=saved.classes, preprocessing=saved.preprocessing,
        temperature=saved.temperature, run_id=saved.run_id, data_sha256=saved.data_sha256, made_with=saved.made_with,
    )  # fmt: skip


def test_a_file_that_loses_too_much_is_left_out_with_its_numbers(
    packed: PackedSet, saved: SavedModel, tmp_path: Path
) -> None:
    numbers, spy = run_stage(packed, outlying(saved), tmp_path, tolerance=0.1)
    found = numbers["int8"]
    assert numbers["onnx"]["accuracy"] > 0.85
    assert found["accuracy_drop"] > 0.1
    assert not found["kept"]
    assert {"max_difference", "same_classes", "accuracy", "latency_ms_batch_1", "bytes"} <= found.keys()
    files = {path.name for path in (tmp_path / "export").iterdir()}
    assert files == set(FILES.values()) - {"model.int8.onnx"}
    assert json.loads((tmp_path / "metrics/export.json").read_text()) == numbers
    assert (spy.numbers["int8_kept"], spy.numbers["int8_accuracy"]) == (0, found["accuracy"])
    assert "export/model.int8.onnx" not in spy.files
    assert stage._summary(found) == (
        f"left out: {found['accuracy']:.2%} of the test pictures right, onnx {numbers['onnx']['accuracy']:.2%}: "
        "export.int8_max_drop: 0.01 allows less"
    )


@pytest.mark.parametrize(("wrong", "kept"), [(0, True), (6, True), (7, False)])
def test_the_limit_is_a_share_of_the_whole_test_split(
    packed: PackedSet, saved: SavedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int, kept: bool
) -> None:
    """697 pictures, of which a hundredth may be lost: six."""
    right = formats.FORMATS["int8"]
    exact = formats.FORMATS["onnx"]
    test = packed.split("test")

    def load(path: Path, threads: int) -> Any:
        run = exact.load(path.with_name("model.onnx"), threads)
        logits, _ = run(np.array(test.images.transpose(0, 3, 1, 2), order="C"))
        spoilt = test.images[np.flatnonzero(logits.argmax(axis=1) == test.labels)[:wrong]].transpose(0, 3, 1, 2)

        def worse(images: NDArray[np.uint8]) -> Any:
            logits, probabilities = (array.copy() for array in run(images))
            for row, image in enumerate(images):
                if (spoilt == image).all(axis=(1, 2, 3)).any():
                    logits[row] = np.roll(logits[row], 1)
                    probabilities[row] = np.roll(probabilities[row], 1)
            return logits, probabilities

        return worse

    monkeypatch.setitem(formats.FORMATS, "int8", replace(right, load=load))
    numbers, _ = run_stage(packed, saved, tmp_path, formats=["onnx", "int8"])
    assert numbers["int8"]["accuracy_drop"] == pytest.approx(wrong / 697)
    assert numbers["int8"]["kept"] == (tmp_path / "export/model.int8.onnx").exists() == kept


def test_a_network_that_cannot_be_quantised_says_so_in_a_line(
    packed: PackedSet, saved: SavedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: Any, **_named: Any) -> None:
        raise KeyError("no such tensor\nand a page more")

    monkeypatch.setattr(quantising, "quantize_static", fails)
    numbers, spy = run_stage(packed, saved, tmp_path)
    reason = "the network cannot be quantised ('no such tensor\\nand a page more')"
    assert numbers["int8"] == {"kept": False, "left_out": reason}
    assert stage._summary(numbers["int8"]) == f"left out: {reason}"
    assert {path.name for path in (tmp_path / "export").iterdir()} == set(FILES.values()) - {"model.int8.onnx"}
    assert spy.numbers["int8_kept"] == 0


def test_a_file_that_onnxruntime_does_not_open_is_left_out(
    packed: PackedSet, saved: SavedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(exact: Path, pictures: NDArray[np.uint8]) -> onnx.ModelProto:
        model = onnx.load(exact)
        next(node for node in model.graph.node if node.op_type == "Conv").input[1] = "nowhere"
        return model

    monkeypatch.setattr(quantising, "_quantised", broken)
    numbers, _ = run_stage(packed, saved, tmp_path)
    assert numbers["int8"]["left_out"].startswith("the network cannot be quantised (")
    assert not (tmp_path / "export/model.int8.onnx").exists()


def test_a_full_disk_is_no_fault_of_the_network(
    packed: PackedSet, saved: SavedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: Any, **_named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(quantising, "quantize_static", full)
    with pytest.raises(UserError, match="export: the disk is full"):
        run_stage(packed, saved, tmp_path)
    assert not list(tmp_path.iterdir())

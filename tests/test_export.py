"""The export stage: every file answers as PyTorch does, says what it needs, and holds nothing of the machine."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from darkroom.errors import UserError
from darkroom.evaluation.inference import logits_of
from darkroom.evaluation.scores import scores
from darkroom.exporting import formats, onnx_file
from darkroom.exporting.description import Description
from darkroom.exporting.parity import agreement
from darkroom.exporting.session import OnnxModel, usable_cpus
from darkroom.exporting.timing import call_seconds, percentile
from darkroom.models import SavedModel, save_model
from darkroom.packed import PackedSet
from digits import fit_digits, pack_digits
from exports import EXACT, FILES, run_stage
from pipelines import REPOSITORY


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    return pack_digits(tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def saved(packed: PackedSet) -> SavedModel:
    return fit_digits(packed)


@pytest.fixture(scope="module")
def done(packed: PackedSet, saved: SavedModel, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("exported")
    return folder / "export", *run_stage(packed, saved, folder)


def as_loaded(name: str, path: Path) -> Callable[[NDArray[np.uint8]], list[NDArray[np.float32]]]:
    """The file as its users load it, without this project's code."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda images: session.run(["logits", "probabilities"], {"images": images})
    if name == "torchscript":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = torch.jit.load(path)
    else:
        module = torch.export.load(path).module()
    return lambda images: [output.detach().numpy() for output in module(torch.from_numpy(images))]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("batch_size", [1, 2, 5, 64])
def test_each_file_answers_as_pytorch_at_any_batch_size(
    done: Any, packed: PackedSet, saved: SavedModel, name: str, batch_size: int
) -> None:
    images = np.array(packed.split("test").images[:batch_size].transpose(0, 3, 1, 2), order="C")
    with torch.inference_mode():
        expected = saved.build()(torch.from_numpy(images))
    logits, probabilities = as_loaded(name, done[0] / FILES[name])(images)
    assert logits == pytest.approx(expected.numpy(), abs=1e-4)
    assert probabilities == pytest.approx(torch.softmax(expected / 1.25, 1).numpy(), abs=1e-5)
    assert logits.dtype == probabilities.dtype == np.float32


TIMED = {
    f"{key}{suffix}"
    for key in ("latency_ms_batch_1", "latency_ms_batch_1_p99", "latency_ms_batch_64", "images_per_s_batch_64")
    for suffix in (("", "_threads_2") if usable_cpus() > 1 else ("",))
}


def test_metrics_hold_each_formats_numbers(done: Any, saved: SavedModel) -> None:
    folder, numbers, spy = done
    assert json.loads((folder.parent / "metrics/export.json").read_text()) == numbers
    for name, file in FILES.items():
        own = {"accuracy_drop", "kept"} if name == "int8" else set()
        assert numbers[name].keys() == {"max_difference", "same_classes", "accuracy", "bytes", "sha256"} | TIMED | own
        assert numbers[name]["bytes"] == (folder / file).stat().st_size
        assert numbers[name]["sha256"] == hashlib.sha256((folder / file).read_bytes()).hexdigest()
        assert numbers[name]["latency_ms_batch_1_p99"] >= numbers[name]["latency_ms_batch_1"] > 0
        each = 64_000 / numbers[name]["latency_ms_batch_64"]
        assert numbers[name]["images_per_s_batch_64"] == pytest.approx(each, rel=0.01)
        assert spy.numbers[f"{name}_max_difference"] == numbers[name]["max_difference"]
        assert spy.numbers[f"{name}_latency_ms_batch_1"] > 0
    for name in EXACT:
        assert 0 <= numbers[name]["max_difference"] < 1e-4
        assert numbers[name]["same_classes"] == 1
    assert numbers["pytorch"].keys() == {"accuracy"} | TIMED
    assert (numbers["num_images"], numbers["num_test_images"], numbers["threads"]) == (128, 697, 1)
    assert (numbers["model_sha256"], numbers["mlflow_run_id"]) == (saved.model_sha256, spy.run_id)
    assert (spy.joined["stage"], spy.joined["run_id"]) == ("export", saved.run_id)
    assert spy.joined["values"]["export.opset"] == 18
    assert set(spy.files) == {"metrics/export.json", *(f"export/{file}" for file in FILES.values())}


def test_accuracy_is_each_files_own_on_the_whole_test_split(done: Any, packed: PackedSet, saved: SavedModel) -> None:
    folder, numbers, _ = done
    test = packed.split("test")
    evaluated = scores(logits_of(saved.build(), test.images, batch_size=512, device=torch.device("cpu")), test.labels)
    assert numbers["pytorch"]["accuracy"] == evaluated.accuracy
    images = np.array(test.images.transpose(0, 3, 1, 2), order="C")
    for name, file in FILES.items():
        logits, _ = as_loaded(name, folder / file)(images)
        assert numbers[name]["accuracy"] == (logits.argmax(axis=1) == test.labels).mean(), name
    assert {numbers[name]["accuracy"] for name in EXACT} == {evaluated.accuracy}


def test_onnx_is_one_checked_file_with_everything_inside(done: Any, saved: SavedModel) -> None:
    folder = done[0]
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES.values())
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    assert not any(tensor.HasField("data_location") and tensor.data_location for tensor in model.graph.initializer)
    (images,), outputs = model.graph.input, model.graph.output
    assert images.name == "images"
    assert images.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert [dim.dim_param or dim.dim_value for dim in images.type.tensor_type.shape.dim] == ["N", 1, 8, 8]
    assert [output.name for output in outputs] == ["logits", "probabilities"]
    assert [dim.dim_param or dim.dim_value for dim in outputs[0].type.tensor_type.shape.dim] == ["N", 10]
    texts = {entry.key: entry.value for entry in model.metadata_props}
    assert texts["darkroom_format"] == "1"
    assert json.loads(texts["classes"]) == saved.classes
    assert json.loads(texts["mean"]) == saved.preprocessing.mean
    assert (texts["image_size"], texts["channels"], texts["resize"]) == ("8", "1", "crop")
    assert (texts["temperature"], texts["run_id"]) == ("1.25", saved.run_id)
    assert (texts["data_sha256"], texts["model_sha256"]) == (saved.data_sha256, saved.model_sha256)
    assert json.loads(texts["versions"])["torch"] == importlib.metadata.version("torch")


def test_the_others_carry_the_same_description(done: Any) -> None:
    folder = done[0]
    described = OnnxModel(folder / "model.onnx").description
    extra = {"darkroom.json": "", "classes.txt": ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.load(folder / "model.ts", _extra_files=extra)
    assert extra["classes.txt"].decode() == "".join(f"{name}\n" for name in described.classes)  # type: ignore[attr-defined]
    assert Description.of_texts(as_texts(extra["darkroom.json"]), "model.ts") == described
    extra = {"darkroom.json": ""}
    torch.export.load(folder / "model.pt2", extra_files=extra)
    assert Description.of_texts(as_texts(extra["darkroom.json"]), "model.pt2") == described


def as_texts(content: str | bytes) -> dict[str, str]:
    values = json.loads(content)
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}


def test_same_bytes_from_any_folder_and_no_path_inside(saved: SavedModel, tmp_path: Path) -> None:
    """Written by two copies of the code at different paths, in two processes with different hash seeds."""
    places = [tmp_path / "one", tmp_path / "another clone, elsewhere"]
    for place in places:
        shutil.copytree(REPOSITORY / "stages", place / "stages", ignore=shutil.ignore_patterns("__pycache__"))
        save_model(place / "model.pt", saved)
        (place / "write.py").write_text(WRITE)
        environment = os.environ | {"PYTHONHASHSEED": "random"}
        subprocess.run([sys.executable, "write.py"], cwd=place, check=True, env=environment)
    one, other = places
    marks = [str(Path.home()), str(REPOSITORY), str(tmp_path), "site-packages", "stages/darkroom", ".py(", "write.py"]
    for name in FILES.values():
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
        for content in contents(one / name):
            assert not [mark for mark in marks if mark.encode() in content], name


WRITE = """
import sys
sys.path.insert(0, "stages")
from pathlib import Path
import numpy as np
from darkroom.exporting.formats import FORMATS, write_formats
from darkroom.exporting.source import source_of
from darkroom.models import load_model
pictures = np.random.default_rng(0).integers(0, 256, (20, 1, 8, 8), np.uint8)
source = source_of(load_model(Path("model.pt")), opset=18, calibration=pictures)
assert not write_formats(Path(), source, list(FORMATS))
"""


def contents(path: Path) -> list[bytes]:
    """The file's bytes; of an archive also those of what lies packed inside."""
    inside = []
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = [archive.read(name) for name in archive.namelist()]
    return [path.read_bytes(), *inside]


@pytest.mark.parametrize("opset", [20, 23])
def test_opset_is_the_one_asked_for(packed: PackedSet, saved: SavedModel, tmp_path: Path, opset: int) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "export/model.pt2").write_text("yesterday's")
    numbers, _ = run_stage(packed, saved, tmp_path, opset=opset, formats=["onnx"])
    model = onnx.load(tmp_path / "export/model.onnx")
    assert [entry.version for entry in model.opset_import] == [opset]
    assert [path.name for path in (tmp_path / "export").iterdir()] == ["model.onnx"]
    assert "torchscript" not in numbers


def test_another_opset_than_asked_for_is_an_error(
    packed: PackedSet, saved: SavedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", lambda *args, **named: right(*args, **{**named, "opset_version": 18}))
    with pytest.raises(UserError, match=r"export\.opset: 21 was asked for, torch wrote 18: set export\.opset: 18"):
        run_stage(packed, saved, tmp_path, opset=21, formats=["onnx"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", EXACT)
def test_a_wrong_answer_fails_naming_format_and_picture(
    packed: PackedSet, saved: SavedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """One logit of one picture is off, at one batch size only; yesterday's files stay as they were."""
    (tmp_path / "export").mkdir()
    (tmp_path / "export/model.onnx").write_text("yesterday's")
    target = packed.split("test").images[696].transpose(2, 0, 1)
    right = formats.FORMATS[name]

    def wrong(path: Path, threads: int) -> Any:
        run = right.load(path, threads)

        def spoilt(images: NDArray[np.uint8]) -> Any:
            logits, probabilities = (array.copy() for array in run(images))
            if len(images) < 64 and (images[-1] == target).all():
                logits[-1] += 0.5
            return logits, probabilities

        return spoilt

    monkeypatch.setitem(formats.FORMATS, name, replace(right, load=wrong))
    with pytest.raises(
        UserError, match=rf"^{name} differs from PyTorch by 0\.5 in a logit of test picture 696 \(at batch"
    ):
        run_stage(packed, saved, tmp_path, formats=list(dict.fromkeys(["onnx", name])))
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    assert (tmp_path / "export/model.onnx").read_text() == "yesterday's"


def test_a_tolerance_below_rounding_fails(packed: PackedSet, saved: SavedModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"export\.tolerance: 1e-12 allows less"):
        run_stage(packed, saved, tmp_path, tolerance=1e-12)
    assert not list(tmp_path.iterdir())


def test_a_file_without_numbers_is_infinitely_far() -> None:
    images = np.zeros((64, 1, 8, 8), np.uint8)
    nothing = np.full((64, 3), np.nan, np.float32)
    found = agreement(lambda batch: (nothing[: len(batch)], nothing[: len(batch)]), images, np.zeros_like(nothing), 1.0)
    assert found.max_difference == np.inf


def test_a_diverged_model_is_named(packed: PackedSet, saved: SavedModel, tmp_path: Path) -> None:
    weights = {
        key: tensor * torch.nan if tensor.is_floating_point() else tensor for key, tensor in saved.weights.items()
    }
    with pytest.raises(UserError, match="no finite logits on test picture 0: its training diverged"):
        run_stage(packed, replace(saved, weights=weights), tmp_path, formats=["onnx"])


def test_fewer_test_pictures_than_a_batch(packed: PackedSet, saved: SavedModel, tmp_path: Path) -> None:
    few = pack_digits(tmp_path / "few")
    for kind in ("images", "labels"):
        np.save(tmp_path / f"few/test.{kind}.npy", np.load(packed.folder / f"test.{kind}.npy")[:9])
    numbers, _ = run_stage(few, saved, tmp_path, formats=["onnx"])
    assert numbers["num_images"] == 9


@pytest.mark.parametrize("name", ["mlp", "simple_cnn", "vgg"])
def test_the_other_networks_export_too(packed: PackedSet, tmp_path: Path, name: str) -> None:
    numbers, _ = run_stage(packed, fit_digits(packed, name, steps=5), tmp_path)
    assert max(numbers[format_]["max_difference"] for format_ in EXACT) < 1e-4
    assert numbers["int8"]["kept"], numbers["int8"]


def test_other_data_than_the_model_was_trained_on_is_refused(
    packed: PackedSet, saved: SavedModel, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="holds other data .* than the model was trained on .*: run dvc repro"):
        run_stage(packed, replace(saved, data_sha256="0" * 64), tmp_path)
    assert not list(tmp_path.iterdir())


FULL = """
import resource, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from darkroom.models import load_model
from darkroom.packed import open_packed
from exports import run_stage
limit = int(sys.argv[5])
packed, saved = open_packed(Path(sys.argv[3])), load_model(Path(sys.argv[4]))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
run_stage(packed, saved, Path())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
@pytest.mark.parametrize("limit", [20_000, 100_000])
def test_a_full_disk_is_named_and_yesterdays_files_stay(
    packed: PackedSet, saved: SavedModel, tmp_path: Path, limit: int
) -> None:
    """A real limit on what a file may hold, which model.onnx or only model.pt2 is beyond."""
    save_model(tmp_path / "model.pt", saved)
    (tmp_path / "export").mkdir()
    (tmp_path / "export/model.onnx").write_text("yesterday's")
    command = [
        sys.executable,
        "-c",
        FULL,
        REPOSITORY / "stages",
        REPOSITORY / "tests",
        packed.folder,
        "model.pt",
        str(limit),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "UserError: export: the file is too large for this disk" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "model.pt"]
    assert [path.name for path in (tmp_path / "export").iterdir()] == ["model.onnx"]
    assert (tmp_path / "export/model.onnx").read_text() == "yesterday's"


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.EACCES, "no permission to write here"), (errno.EROFS, "the disk is read-only")]
)
def test_a_folder_that_takes_no_file_is_named(
    packed: PackedSet, saved: SavedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    def refused(**_named: Any) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("darkroom.files.tempfile.mkdtemp", refused)
    with pytest.raises(UserError, match=rf"export: {reason} \(nothing was changed\)"):
        run_stage(packed, saved, tmp_path)


def named(calls: list[str], name: str) -> Any:
    return lambda images: calls.append(name)


def test_calls_come_in_blocks_in_turns_with_a_call_before_each_that_does_not_count() -> None:
    calls: list[str] = []
    runs = {name: named(calls, name) for name in "ab"}
    found = call_seconds(runs, np.zeros((1, 1, 8, 8), np.uint8), turns=20)
    assert calls[4:] == (["a"] * 6 + ["b"] * 6) * 4
    assert {name: len(seconds) for name, seconds in found.items()} == {"a": 20, "b": 20}


def test_a_slow_network_gets_shorter_blocks_and_fewer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr("darkroom.exporting.timing.LONGEST_SECONDS", 0.0)
    monkeypatch.setattr("darkroom.exporting.timing.BLOCK_SECONDS", 0.0)
    found = call_seconds({"a": named(calls, "a")}, np.zeros((1, 1, 8, 8), np.uint8), turns=500)
    assert len(calls) == 2 + 1 + 1
    assert len(found["a"]) == 1, "one turn it always gets"


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (50, 50), (99, 99), (100, 99), (101, 100), (200, 198)])
def test_the_99th_percentile_is_a_measured_value(count: int, expected: int) -> None:
    assert percentile([float(i) for i in range(count, 0, -1)], 99) == expected


def test_too_large_for_one_file(done: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "LARGEST", 1000)
    with pytest.raises(UserError, match="choose a smaller network"):
        onnx_file._check(onnx.load(done[0] / "model.onnx"), 18)

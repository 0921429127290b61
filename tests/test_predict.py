"""Prediction with an exported file: by this project's script, and by one that has nothing of this project."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from conftest import REPOSITORY
from darkroom.errors import UserError
from darkroom.models import SavedModel
from darkroom.packed import PackedSet
from darkroom.params import read_params
from darkroom.pictures import BadPictureError
from darkroom.serving.finding import find_pictures
from darkroom.serving.predictor import Predictor
from darkroom.tracking.store import Store
from digits import StoreSpy, fit_digits, pack_digits
from export import export
from predict import predict

SCRIPT = REPOSITORY / "stages/predict.py"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    return pack_digits(tmp_path_factory.mktemp("packed"), size=16)


@pytest.fixture(scope="module")
def saved(packed: PackedSet) -> SavedModel:
    return fit_digits(packed)


@pytest.fixture(scope="module")
def folder(packed: PackedSet, saved: SavedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with export/model.onnx and some pictures of the test split in pictures/."""
    folder = tmp_path_factory.mktemp("project")
    changes = {"formats": ["onnx"], "timing_runs": 1}
    settings = read_params(REPOSITORY / "params.yaml").export.model_copy(update=changes)
    export(packed, saved, export=settings, store=cast(Store, StoreSpy()), out=folder)
    (folder / "pictures/more").mkdir(parents=True)
    for i, pixels in enumerate(packed.split("test").images[:70, :, :, 0]):
        Image.fromarray(pixels).save(folder / f"pictures/{'more/' if i > 60 else ''}{i:02}.png")
    for litter in (".DS_Store", "._00.png", "Thumbs.db", "notes.txt", "more/.hidden.png"):
        (folder / "pictures" / litter).write_bytes(b"nothing")
    return folder


def script(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], cwd=folder, env=os.environ | environment, capture_output=True, text=True
    )


def expected(packed: PackedSet, saved: SavedModel, num_images: int) -> NDArray[np.float32]:
    images = torch.from_numpy(np.array(packed.split("test").images[:num_images])).permute(0, 3, 1, 2)
    with torch.inference_mode():
        return torch.softmax(saved.build()(images) / saved.temperature, dim=1).numpy()


def test_json_holds_pytorchs_answers_and_nothing_else(folder: Path, packed: PackedSet, saved: SavedModel) -> None:
    done = script(folder, "pictures", "--format", "json", "--top", "3")
    assert (done.returncode, done.stderr) == (0, "")
    answers = json.loads(done.stdout)
    assert [Path(each["path"]).stem for each in answers] == [f"{i:02}" for i in range(70)]
    for each, row in zip(answers, expected(packed, saved, 70), strict=True):
        assert each["class"] == packed.meta.classes[row.argmax()]
        assert each["probability"] == pytest.approx(row.max(), abs=1e-5)
        assert [top["probability"] for top in each["top"]] == pytest.approx(sorted(row)[:-4:-1], abs=1e-5)
        assert each["top"][0] == {"class": each["class"], "probability": each["probability"]}


def test_table_is_a_line_a_picture(folder: Path) -> None:
    lines = script(folder, "pictures/00.png", "pictures/more/61.png").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["pictures/00.png", "pictures/more/61.png"]
    assert all(line.endswith("%") for line in lines)
    assert len({line.index("%") for line in lines}) == 1


def test_csv_has_a_column_a_place(folder: Path) -> None:
    done = script(folder, "pictures/00.png", "--format", "csv", "--top", "2")
    (row,) = csv.DictReader(done.stdout.splitlines())
    assert list(row) == ["path", "class_1", "probability_1", "class_2", "probability_2"]
    assert float(row["probability_1"]) >= float(row["probability_2"])


def test_more_than_all_classes_are_all_classes(folder: Path) -> None:
    done = script(folder, "pictures/00.png", "--format", "json", "--top", "99")
    (answer,) = json.loads(done.stdout)
    assert sum(top["probability"] for top in answer["top"]) == pytest.approx(1, abs=1e-4)
    assert len(answer["top"]) == 10


def test_a_bad_picture_is_named_and_the_rest_predicted(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "pictures/00.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole)
    (tmp_path / "b.png").write_bytes(whole[:100])
    (tmp_path / "c.jpg").write_text("<!doctype html><p>moved</p>")
    (tmp_path / "d.gif").write_bytes(b"")
    (tmp_path / "e.png").write_bytes(whole)
    done = script(folder, str(tmp_path), "--format", "json")
    assert done.returncode == 1
    assert [Path(each["path"]).name for each in json.loads(done.stdout)] == ["a.png", "e.png"]
    for name in ("b.png", "c.jpg", "d.gif"):
        assert f"{tmp_path / name}: " in done.stderr
    assert "error: 3 of 5 files are no whole picture" in done.stderr
    assert "Traceback" not in done.stderr


def test_only_bad_pictures_are_still_json(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    done = script(folder, str(tmp_path), "--format", "json")
    assert (done.returncode, json.loads(done.stdout)) == (1, [])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.png"], 1, "error: nowhere.png is missing: name picture files"),
        (["export"], 1, "error: export: no picture there"),
        (["pictures", "--model", "other.onnx"], 1, "error: other.onnx is missing: run dvc repro export"),
        (["pictures", "--model", "pictures/00.png"], 1, "error: pictures/00.png is damaged or no ONNX model"),
        (["pictures", "--model", "export"], 1, "error: export is a folder, no model: name the file in it"),
        (["pictures", "--top", "0"], 2, "'0' is no number of classes"),
        (["pictures", "--format", "xml"], 2, "invalid choice: 'xml'"),
        ([], 2, "the following arguments are required: PATH"),
    ],
)
def test_mistakes_are_told_in_a_line(folder: Path, arguments: list[str], code: int, said: str) -> None:
    done = script(folder, *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def changed(folder: Path, to: Path, **texts: str | None) -> Path:
    """The model with other metadata; None takes a key out."""
    model = onnx.load(folder / "export/model.onnx")
    kept = {entry.key: entry.value for entry in model.metadata_props} | texts
    onnx.helper.set_model_props(model, {key: text for key, text in kept.items() if text is not None})
    onnx.save(model, to)
    return to


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"darkroom_format": None}, "was not exported by this project: it does not say its classes"),
        ({"darkroom_format": "99"}, "was exported by another version of this project: run dvc repro export"),
        ({"classes": None}, r"has damaged metadata \('classes'\)"),
        ({"mean": "[0.1"}, "has damaged metadata"),
    ],
)
def test_a_foreign_model_is_refused(folder: Path, tmp_path: Path, texts: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Predictor(changed(folder, tmp_path / "foreign.onnx", **texts))


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    command = f"'{sys.executable}' '{SCRIPT}' {'pictures ' * 60} | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_without_torch_and_mlflow(folder: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = [{str(SCRIPT)!r}, 'pictures/00.png', '--format', 'json']\n"
        f"sys.path.insert(0, {str(SCRIPT.parent)!r})\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
        "heavy = {'torch', 'torchvision', 'mlflow', 'onnx', 'onnxscript', 'pydantic', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
    assert len(json.loads(done.stdout)) == 1


ALONE = """
import json, sys
import numpy as np
import onnxruntime
from PIL import Image

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = session.get_modelmeta().custom_metadata_map
size, mode = int(about["image_size"]), {"1": "L", "3": "RGB"}[about["channels"]]
images = [np.asarray(Image.open(path).convert(mode).resize((size, size))) for path in sys.argv[2:]]
batch = np.stack(images).reshape(len(images), size, size, -1).transpose(0, 3, 1, 2)
(probabilities,) = session.run(["probabilities"], {"images": np.ascontiguousarray(batch)})
ours = [name for name in sys.modules if name.split(".")[0] in ("darkroom", "torch", "onnx", "mlflow")]
classes = json.loads(about["classes"])
print(json.dumps({"classes": [classes[i] for i in probabilities.argmax(1)], "p": probabilities.tolist(), "ours": ours}))
"""


def test_a_script_with_nothing_of_this_project_gives_the_same(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    files = [str(folder / f"pictures/{i:02}.png") for i in range(20)]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-I", "alone.py", str(folder / "export/model.onnx"), *files],
        cwd=tmp_path, env=clean, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    predictor = Predictor(folder / "export/model.onnx")
    probabilities = predictor.probabilities(np.stack([predictor.read(Path(file)) for file in files]))
    assert found["ours"] == []
    assert found["classes"] == [predictor.classes[i] for i in probabilities.argmax(axis=1)]
    assert np.array(found["p"]) == pytest.approx(probabilities, abs=1e-6)


def test_predictor_says_what_it_is(folder: Path, saved: SavedModel, packed: PackedSet) -> None:
    predictor = Predictor(folder / "export/model.onnx", threads=1)
    about = predictor.description
    assert predictor.classes == packed.meta.classes
    assert (about.model_sha256, about.data_sha256) == (saved.model_sha256, packed.meta.sha256)
    assert (about.image_size, about.channels, about.resize) == (16, 1, "crop")
    images = np.array(packed.split("test").images[:3].transpose(0, 3, 1, 2), order="C")
    logits, probabilities = predictor.logits(images), predictor.probabilities(images)
    exponents = np.exp(logits / about.temperature)
    assert probabilities == pytest.approx(exponents / exponents.sum(axis=1, keepdims=True), abs=1e-5)


def test_a_picture_named_twice_is_answered_twice(folder: Path) -> None:
    predictor = Predictor(folder / "export/model.onnx")
    bad: list[BadPictureError] = []
    files = [folder / "pictures/00.png"] * 130
    answers = list(predict(files, predictor, top=1, on_bad=lambda path, error: bad.append(error)))
    assert len(answers) == 130
    assert len({each.ranking[0][0] for each in answers}) == 1
    assert not bad


def test_litter_is_no_picture(folder: Path) -> None:
    assert len(find_pictures([folder / "pictures"])) == 70


def test_model_from_the_store(folder: Path, tmp_path: Path) -> None:
    """runs:/ID is fetched from the run; what else is said goes to standard error."""
    from darkroom.tracking import open_store

    params = read_params(REPOSITORY / "params.yaml")
    (tmp_path / "params.yaml").write_bytes((REPOSITORY / "params.yaml").read_bytes())
    store = open_store(params.tracking, tmp_path)
    with store.start("train", {}) as run:
        run.artifacts(folder / "export", "export")
    picture = str(folder / "pictures/00.png")
    done = script(tmp_path, picture, "--model", f"runs:/{run.run_id}", "--format", "json", DVC_ROOT=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(script(folder, picture, "--format", "json").stdout)
    assert run.run_id in done.stderr
    missing = script(tmp_path, picture, "--model", "models:/nobody@champion", DVC_ROOT=str(tmp_path))
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "nobody" in missing.stderr

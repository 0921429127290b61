"""The evaluate stage: its numbers, its files, and what it must not depend on."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, f1_score

from darkroom.errors import UserError
from darkroom.evaluation.inference import VIEWS, device_like, logits_of
from darkroom.evaluation.pictures import confusion_picture, mistakes_picture
from darkroom.evaluation.predictions import Predictions
from darkroom.evaluation.tables import predictions_table
from darkroom.models import SavedModel, save_model
from darkroom.packed import PackedSet
from darkroom.params import Params, flatten, read_params
from darkroom.tracking.store import Store
from digits import StoreSpy, fit_digits, pack_digits
from evaluate import evaluate
from pipelines import REPOSITORY


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    return pack_digits(tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def saved(packed: PackedSet) -> SavedModel:
    return fit_digits(packed)


def run_stage(
    packed: PackedSet, saved: SavedModel, params: Params, folder: Path, **changes: object
) -> tuple[dict[str, Any], StoreSpy]:
    spy = StoreSpy()
    changed = params.evaluate.model_copy(update=changes)
    numbers = evaluate(packed, saved, evaluate=changed, store=cast(Store, spy), out=folder)
    return numbers, spy


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def done(packed: PackedSet, saved: SavedModel, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("evaluated")
    return folder, *run_stage(packed, saved, read_params(REPOSITORY / "params.yaml"), folder)


def test_the_numbers_are_those_of_the_predictions_table(done: Any, packed: PackedSet) -> None:
    folder, numbers, _ = done
    rows = table(folder / "reports/evaluation/predictions.csv")
    labels, predicted = [row["label"] for row in rows], [row["predicted"] for row in rows]
    assert labels == [packed.meta.classes[i] for i in packed.split("test").labels]
    assert numbers["num_images"] == len(rows) == 697
    assert numbers["accuracy"] == accuracy_score(labels, predicted) > 0.85
    assert numbers["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    probabilities = np.array([[float(row[f"p({name})"]) for name in packed.meta.classes] for row in rows])
    own = probabilities[np.arange(len(rows)), packed.split("test").labels]
    assert probabilities.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert numbers["nll"] == pytest.approx(-np.log(own).mean(), rel=1e-5)
    assert [float(row["confidence"]) for row in rows] == pytest.approx(probabilities.max(axis=1), rel=1e-5)


def test_metrics_file_names_model_and_run(done: Any, saved: SavedModel) -> None:
    folder, numbers, spy = done
    written = json.loads((folder / "metrics/test.json").read_text())
    assert written == numbers
    assert set(written) == {
        "accuracy", "accuracy_low", "accuracy_high", "top5_accuracy", "macro_precision", "macro_recall", "macro_f1",
        "macro_f1_low", "macro_f1_high", "nll", "brier", "ece", "ece_equal_mass", "uncalibrated_nll", "uncalibrated_brier",
        "uncalibrated_ece", "uncalibrated_ece_equal_mass", "corruption_error", "num_images", "model_sha256", "mlflow_run_id",
    }  # fmt: skip
    assert written["model_sha256"] == saved.model_sha256
    assert written["mlflow_run_id"] == spy.run_id


def test_mistakes_are_listed_by_confidence(done: Any) -> None:
    folder, numbers, _ = done
    mistakes = table(folder / "reports/evaluation/mistakes.csv")
    assert len(mistakes) == round((1 - numbers["accuracy"]) * 697) > 0
    confidences = [float(row["confidence"]) for row in mistakes]
    assert confidences == sorted(confidences, reverse=True)
    assert all(row["label"] != row["predicted"] for row in mistakes)


def test_plots_are_what_dvc_draws(done: Any) -> None:
    folder, numbers, _ = done
    pairs = table(folder / "plots/evaluation/confusion.csv")
    assert len(pairs) == 697
    assert sum(row["actual"] == row["predicted"] for row in pairs) == round(numbers["accuracy"] * 697)
    per_class = table(folder / "plots/evaluation/per_class.csv")
    assert [row["class"] for row in per_class] == [str(i) for i in range(10)]
    assert np.mean([float(row["f1"]) for row in per_class]) == pytest.approx(numbers["macro_f1"], rel=1e-5)
    assert sum(int(row["support"]) for row in per_class) == 697
    reliability = table(folder / "plots/evaluation/reliability.csv")
    assert sum(int(row["num_images"]) for row in reliability) == 697
    assert {row["name"] for row in table(folder / "plots/evaluation/slices.csv")} == {"brightness", "contrast"}
    assert len(table(folder / "plots/evaluation/corruptions.csv")) == 30
    for name in ("confusion.png", "mistakes.png", "unsure.png", "attention.png"):
        with Image.open(folder / "plots/evaluation" / name) as picture:
            picture.load()
            assert picture.info.keys() <= {"dpi"}  # no date, no program
            assert picture.width > 300


def test_everything_goes_into_the_run(done: Any, saved: SavedModel) -> None:
    _, numbers, spy = done
    assert spy.joined == {
        "stage": "evaluate",
        "values": flatten({"evaluate": read_params(REPOSITORY / "params.yaml").evaluate.model_dump()}),
        "run_id": saved.run_id,
        "model_sha256": saved.model_sha256,
    }
    assert spy.numbers["test_accuracy"] == numbers["accuracy"]
    whole = {name: value for name, value in flatten(numbers, "test_").items() if not isinstance(value, str)}
    assert whole.items() <= spy.numbers.items()
    assert spy.numbers["test_corruption_error.mean"] == numbers["corruption_error"]["mean"] > 0
    assert spy.numbers["test_f1_low/3"] <= spy.numbers["test_f1/3"] <= spy.numbers["test_f1_high/3"]
    assert np.mean([spy.numbers[f"test_f1/{i}"] for i in range(10)]) == pytest.approx(numbers["macro_f1"])
    assert {"metrics/test.json", "plots/evaluation/confusion.png", "reports/evaluation/predictions.csv"} <= set(
        spy.files
    )


def test_again_gives_the_same_bytes(
    done: Any, packed: PackedSet, saved: SavedModel, params: Params, tmp_path: Path
) -> None:
    run_stage(packed, saved, params, tmp_path)
    assert files(tmp_path) == files(done[0])


def test_batch_size_changes_no_score(
    done: Any, packed: PackedSet, saved: SavedModel, params: Params, tmp_path: Path
) -> None:
    numbers, _ = run_stage(packed, saved, params, tmp_path, batch_size=7)
    found, expected = ({k: v for k, v in flatten(n).items() if not isinstance(v, str)} for n in (numbers, done[1]))
    assert found == pytest.approx(expected, rel=1e-5, abs=0.003), "rotated and blurred pictures may round otherwise"
    plain = [name for name in found if not name.startswith("corruption_error")]
    assert {name: found[name] for name in plain} == pytest.approx({name: expected[name] for name in plain}, rel=1e-5)


def test_no_autocast_and_no_dropout(packed: PackedSet, saved: SavedModel) -> None:
    """A caller's autocast and a network left in training mode do not reach the scores."""
    images, cpu = packed.split("test").images[:64], torch.device("cpu")
    expected = logits_of(saved.build(), images, batch_size=64, device=cpu)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = logits_of(saved.build().train(), images, batch_size=64, device=cpu)
    assert found.dtype == np.float32
    assert (found == expected).all()


def test_without_mistakes_the_picture_says_so(saved: SavedModel, params: Params, tmp_path: Path) -> None:
    packed = pack_digits(tmp_path / "first")
    numbers, _ = run_stage(packed, saved, params, tmp_path / "first", mistakes=0)
    assert numbers["accuracy"] < 1
    rows = table(tmp_path / "first/reports/evaluation/predictions.csv")
    agreed = np.array([int(row["predicted"]) for row in rows])
    numbers, _ = run_stage(pack_digits(tmp_path / "agreed", test_labels=agreed), saved, params, tmp_path / "second")
    assert numbers["accuracy"] == numbers["macro_f1"] == 1
    assert table(tmp_path / "second/reports/evaluation/mistakes.csv") == []
    drawn = [tmp_path / name / "plots/evaluation/mistakes.png" for name in ("first", "second")]
    for path in drawn:
        with Image.open(path) as picture:
            assert picture.height == 60
    assert drawn[0].read_bytes() != drawn[1].read_bytes()


def test_a_class_without_test_pictures(saved: SavedModel, params: Params, tmp_path: Path) -> None:
    labels = np.full(697, 3)
    numbers, spy = run_stage(pack_digits(tmp_path, test_labels=labels), saved, params, tmp_path)
    assert numbers["macro_recall"] == numbers["accuracy"]
    row = table(tmp_path / "plots/evaluation/per_class.csv")[4]
    assert row == {"class": "4", "precision": "", "recall": "", "f1": "", "f1_low": "", "f1_high": "", "support": "0"}
    assert "test_f1/4" not in spy.numbers
    assert "test_f1/3" in spy.numbers


def test_an_empty_test_split_is_named(packed: PackedSet, saved: SavedModel, params: Params, tmp_path: Path) -> None:
    empty = pack_digits(tmp_path)
    np.save(tmp_path / "test.images.npy", np.zeros((0, 8, 8, 1), np.uint8))
    np.save(tmp_path / "test.labels.npy", np.zeros(0, np.int64))
    with pytest.raises(UserError, match=r"no test picture: set data\.test_fraction"):
        run_stage(empty, saved, params, tmp_path)


def test_a_thousand_classes_stay_readable() -> None:
    rng = np.random.default_rng(0)
    classes = [f"$class$ with a rather long name, number {i}" for i in range(1000)]
    labels = rng.integers(1000, size=3000)
    logits = rng.normal(size=(3000, 1000)).astype(np.float32)
    predictions = Predictions.of([logits], labels, classes=classes, temperature=1)
    content = confusion_picture(np.eye(1000, dtype=np.int64), classes)
    assert content.startswith(b"\x89PNG")
    assert len(content) < 1_000_000
    assert len(predictions_table(predictions, ["0" * 16] * 3000)) < 500_000


def test_names_that_the_font_lacks_are_no_warning() -> None:
    assert confusion_picture(np.eye(2, dtype=np.int64), ["蜂", "蟻"]).startswith(b"\x89PNG")


def test_wide_pictures_are_drawn_as_they_are(packed: PackedSet) -> None:
    images = np.zeros((4, 200, 200, 3), np.uint8)
    logits = np.eye(3, dtype=np.float32)[[1, 1, 2, 0]]
    predictions = Predictions.of([logits], np.zeros(4, np.int64), classes=["a", "b", "c"], temperature=1)
    with Image.open(BytesIO(mistakes_picture(predictions, images, 25))) as picture:
        assert picture.width == 2 * 204 + 4


def test_another_model_is_compared_on_the_same_pictures(
    done: Any, packed: PackedSet, saved: SavedModel, params: Params, tmp_path: Path
) -> None:
    """Its own predictions: no difference. Those of a model that always says 3: nearly all."""
    rows = table(done[0] / "reports/evaluation/predictions.csv")
    against = tmp_path / "against"
    against.mkdir()
    shutil.copy(done[0] / "reports/evaluation/predictions.csv", against / "itself.csv")
    with (against / "three.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["image", "label", "predicted"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(row | {"predicted": "3"} for row in reversed(rows))
    numbers, spy = run_stage(packed, saved, params, tmp_path, against=str(against))
    assert numbers["against"]["itself"]["difference"] == 0
    assert numbers["against"]["itself"]["mcnemar_p"] == 1
    three = numbers["against"]["three"]
    assert three["accuracy"] == np.mean([row["label"] == "3" for row in rows])
    assert three["difference"] == pytest.approx(numbers["accuracy"] - three["accuracy"])
    assert three["mcnemar_p"] < 1e-50
    assert spy.numbers["test_against.three.difference"] == three["difference"]


def test_predictions_of_other_pictures_stop_the_stage_before_it_writes(
    packed: PackedSet, saved: SavedModel, params: Params, tmp_path: Path
) -> None:
    (tmp_path / "other.csv").write_text("index,image,label,predicted,confidence\n0,ab,1,1,0.5\n")
    with pytest.raises(UserError, match=r"other.csv lacks 697 of 697 test pictures"):
        run_stage(packed, saved, params, tmp_path / "out", against=str(tmp_path / "other.csv"))
    assert not (tmp_path / "out").exists()


def test_views_are_a_parameter_and_the_plain_one_is_the_default(
    done: Any, packed: PackedSet, saved: SavedModel, params: Params, tmp_path: Path
) -> None:
    shifted, _ = run_stage(packed, saved, params, tmp_path, tta="shift", corrupted_images=0)
    assert shifted["nll"] != done[1]["nll"]
    assert abs(shifted["accuracy"] - done[1]["accuracy"]) < 0.1
    assert "corruption_error" not in shifted
    assert table(tmp_path / "plots/evaluation/corruptions.csv") == []
    images = packed.split("test").images[:3]
    assert (VIEWS["flip"][1](images) == np.flip(images, axis=2)).all()
    assert len({view(images).tobytes() for view in VIEWS["shift"]}) == 5


def test_corruptions_without_time_are_said_and_have_no_mean(
    packed: PackedSet, saved: SavedModel, params: Params, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    numbers, _ = run_stage(packed, saved, params, tmp_path, corrupted_seconds=1e-9, corrupted_images=5)
    assert "not scored after evaluate.corrupted_seconds: 1e-09: " in (out := capfd.readouterr().out)
    assert "rotation, and no mean: raise it, or lower evaluate.corrupted_images" in out
    assert "mean" not in numbers.get("corruption_error", {})


def test_device_is_the_models_where_there_is_one() -> None:
    assert str(device_like("cpu")) == "cpu"
    assert device_like("cuda:3").type in ("cpu", "cuda")


def test_script_refuses_a_model_of_other_data(packed: PackedSet, saved: SavedModel, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes((REPOSITORY / "params.yaml").read_bytes())
    pack_digits(tmp_path / "data/packed")
    save_model(tmp_path / "models/model.pt", replace(saved, data_sha256="f" * 64))
    done = subprocess.run(
        [sys.executable, REPOSITORY / "stages/evaluate.py"],
        cwd=tmp_path,
        env=os.environ | {"DVC_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "data/packed holds other data" in done.stderr
    assert "run dvc repro" in done.stderr
    assert not (tmp_path / "metrics").exists()


@pytest.mark.parametrize(
    ("absent", "command"), [("data/packed", "dvc repro prepare"), ("models/model.pt", "dvc repro train")]
)
def test_script_names_the_missing_stage(saved: SavedModel, tmp_path: Path, absent: str, command: str) -> None:
    (tmp_path / "params.yaml").write_bytes((REPOSITORY / "params.yaml").read_bytes())
    if absent != "data/packed":
        pack_digits(tmp_path / "data/packed")
    done = subprocess.run(
        [sys.executable, REPOSITORY / "stages/evaluate.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.strip()) == (1, f"error: {absent} is missing: run {command}")

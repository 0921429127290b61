"""The report: one page that stands alone, says the right numbers, and is the same for the same results."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from conftest import REPOSITORY
from darkroom.errors import UserError
from darkroom.evaluation.calibration import calibration
from darkroom.evaluation.corruptions import CORRUPTIONS, Corrupted
from darkroom.evaluation.findings import Findings
from darkroom.evaluation.predictions import Predictions
from darkroom.evaluation.scores import scores
from darkroom.evaluation.slices import properties, slices
from darkroom.evaluation.uncertainty import Level, intervals
from darkroom.files import write_bytes, write_json, write_text
from darkroom.params import Params
from darkroom.reporting.card import as_markdown
from darkroom.reporting.charts import line_chart, ticks
from darkroom.reporting.results import PICTURES, read_results
from darkroom.reporting.wording import duration, number, percent, size
from darkroom.tracking.store import Store
from digits import StoreSpy
from report import KEYS, report

MODEL, DATA, RUN = "a" * 64, "b" * 64, "c" * 32
CLASSES = ["ants & <b>bees</b>", "cats", 'd"ogs', "eels"]


def write_project(folder: Path, *, classes: list[str] = CLASSES, wrong: int = 5) -> Path:
    """What the stages before the report leave, for 200 test pictures of which `wrong` are taken for another class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(len(classes), size=200)
    logits = 4 * np.eye(len(classes), dtype=np.float32)[labels]
    logits[:wrong] = np.roll(logits[:wrong], 1, axis=1)
    images = rng.integers(256, size=(200, 8, 8, 1)).astype(np.uint8)
    predictions = Predictions.of([logits], labels, classes=classes, temperature=1)
    found, reliability = scores(logits, labels), calibration(predictions)
    findings = Findings(
        predictions, found, intervals(found, Level(200, 0.95)), reliability, {"nll": 0.5, **reliability.metrics()},
        list(slices(properties(images, None), predictions.hits)),
        [Corrupted(name, level, (0.9 if name != "blur" else 0.84) - 0.1 * level) for name in CORRUPTIONS for level in range(1, 6)], {}, None,
    )  # fmt: skip
    counts = [{"name": name, "train": 1000 + i, "val": 10, "test": 50} for i, name in enumerate(classes)]
    write_json(folder / "metrics/data.json", {
        "classes": counts, "num_train": 4006, "num_val": 40, "num_test": 200, "sha256": DATA, "mean": [0.3], "std": [0.4],
        "image_size": 8, "channels": 1, "num_left_out": 0, "num_duplicates": 0,
    })  # fmt: skip
    write_json(folder / "metrics/train.json", {
        "val_accuracy": 0.975, "val_loss": 0.25, "best_epoch": 2, "chosen_epoch": 3, "epochs": 3, "steps": 90,
        "epoch_train_loss": 0.5, "temperature": 1.1, "images_per_s": 1234.5, "seconds": 150.0, "num_parameters": 308074,
        "precision": "bf16", "device": "cpu", "threads": 2, "model_sha256": MODEL, "mlflow_run_id": RUN,
    })  # fmt: skip
    write_json(folder / "metrics/test.json", {**findings.metrics(), "model_sha256": MODEL, "mlflow_run_id": RUN})
    speed = {
        "latency_ms_batch_1": 0.25, "latency_ms_batch_1_p99": 0.5, "latency_ms_batch_64": 7.5, "images_per_s_batch_64": 8533.3,
    }  # fmt: skip
    speed |= {f"{name}_threads_2": value / 2 for name, value in speed.items()}
    onnx = {"max_difference": 1.7e-06, "same_classes": 1.0, "bytes": 1237257, "accuracy": 0.975, **speed}
    lost = {"kept": False, "left_out": "90.00% of the test pictures right, onnx 97.50%"}
    pytorch = {"accuracy": 0.975, **{name: 4 * value for name, value in speed.items()}}
    write_json(folder / "metrics/export.json", {
        "onnx": onnx, "pytorch": pytorch, "int8": lost, "num_images": 128, "num_test_images": 200, "threads": 1,
        "model_sha256": MODEL, "mlflow_run_id": RUN,
    })  # fmt: skip
    epochs = "epoch,train_loss,val_loss,val_accuracy\n1,2.0,1.5,0.5\n2,1.0,,0.9\n3,0.5,0.25,0.975\n"
    write_text(folder / "plots/training/epochs.csv", epochs)
    findings.write_plots(folder / "plots/evaluation", images, 25)
    findings.write_tables(folder / "reports/evaluation", [f"{i:016x}" for i in range(200)])
    content = BytesIO()
    Image.new("L", (20, 20)).save(content, "PNG")
    for i in range(len(classes)):
        write_bytes(folder / f"plots/data/{i:03}.png", content.getvalue())
    return folder


class Page(HTMLParser):
    """A page's text, tags and addresses; fails where a tag is not closed."""

    VOID = {"meta", "img", "circle", "line", "polyline"}

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = re.sub(r"[ \n]+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


def write_page(folder: Path, params: Params) -> tuple[str, StoreSpy]:
    spy = StoreSpy()
    shown = {name: values for name, values in params.model_dump(exclude_none=True).items() if name in KEYS}
    report(read_results(folder), shown, store=cast(Store, spy), out=folder)
    return (folder / "reports/report.html").read_text(encoding="utf-8"), spy


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def folder(project: Path, tmp_path: Path) -> Path:
    return shutil.copytree(project, tmp_path / "folder")


def test_the_page_says_the_numbers(folder: Path, params: Params) -> None:
    html, spy = write_page(folder, params)
    text = Page(html).text
    test = json.loads((folder / "metrics/test.json").read_text())
    assert html.startswith("<!doctype html>")
    assert "resnet on digits" in text
    assert f"test accuracy {test['accuracy']:.2%}" in text
    assert f"macro F1 {test['macro_f1']:.2%}" in text
    assert "The model is right about 195 of 200 test pictures" in text
    assert "onnx 1.24 MB 1.7e-06 100.00% 97.50%" in text
    assert "onnx 0.25 0.5 8\u202f533" in text
    assert "PyTorch itself – – – 97.50%" in text
    assert "PyTorch itself 1 2 34\u202f133" in text
    assert "4\u202f006 pictures for training, 40 for validation, 200 for the test" in text
    assert "1\u202f234 pictures a second, 2 min" in text
    assert "lr 0.003" in text
    assert 'formats ["onnx", "torchscript", "torch_export", "int8"]' in text
    for value in (MODEL, DATA, RUN):
        assert value in text
    assert spy.files[:4] == ["report/report.html", "report/model_card.md", "metrics/data.json", "plots/data/000.png"]
    values = {f"data.{key}": value for key, value in params.data.model_dump().items()}
    assert spy.joined == {"stage": "report", "values": values, "run_id": RUN, "model_sha256": MODEL}


def test_the_page_stands_alone(folder: Path, params: Params) -> None:
    html, _ = write_page(folder, params)
    page = Page(html)
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert len(page.addresses) == len(PICTURES) + len(CLASSES)
    for address in page.addresses:
        head, content = address.split(",", 1)
        assert head == "data:image/png;base64"
        Image.open(BytesIO(base64.b64decode(content))).load()
    assert not re.search(r"https?://|@import|url\(", html)
    assert str(folder) not in html


def test_class_names_are_text(folder: Path, params: Params) -> None:
    html, _ = write_page(folder, params)
    assert "<b>bees</b>" not in html
    assert "ants & <b>bees</b>" in Page(html).text


def test_the_same_results_give_the_same_bytes(folder: Path, tmp_path: Path, params: Params) -> None:
    html, _ = write_page(folder, params)
    again, _ = write_page(write_project(tmp_path / "elsewhere"), params)
    assert html == again


def test_curves_are_drawn_and_a_missing_value_is_a_gap(folder: Path, params: Params) -> None:
    html, _ = write_page(folder, params)
    assert Page(html).tags.count("svg") == 4, "loss, accuracy, reliability, corruptions"
    training, *validation = re.findall(r'<polyline points="([^"]+)"', html)[:3]
    assert len(training.split()) == 3
    assert [len(points.split()) for points in validation] == [1, 1]
    assert "stroke-dasharray" in html


def test_it_says_in_sentences_what_the_numbers_are_worth(folder: Path, params: Params) -> None:
    test = json.loads((folder / "metrics/test.json").read_text())
    others = {
        "better": {"accuracy": 0.9, "difference": 0.075, "mcnemar_p": 0.001},
        "like": {"accuracy": 0.97, "difference": 0.005, "mcnemar_p": 1.0},
        "worse": {"accuracy": 1.0, "difference": -0.025, "mcnemar_p": 0.04},
    }
    ends = {"difference_low": -0.01, "difference_high": 0.02, "only_this_right": 3, "only_other_right": 2}
    write_json(folder / "metrics/test.json", test | {"against": {name: ends | each for name, each in others.items()}})
    text = Page(write_page(folder, params)[0]).text
    assert f"between {test['accuracy_low']:.2%} and {test['accuracy_high']:.2%}, with 95% confidence" in text
    assert f"off by {test['ece']:.2%} on average" in text
    assert "blur hurts most: 46.0% of such pictures" in text
    assert "It is better than better: +7.50% accuracy (-1.00% to +2.00%), McNemar's p 0.001." in text
    assert "It is not to be told from like: +0.50% accuracy" in text
    assert "It is worse than worse: -2.50% accuracy" in text
    assert "brightness" in text
    assert "Model card" in text
    assert "41.0% errors on corrupted pictures, 2.5% on clean ones" in text
    assert "several views" not in text
    assert "int8 was left out: 90.00% of the test pictures right, onnx 97.50%." in text
    assert "Speed on 2 threads, measured in turns" in text


def test_the_card_is_a_file_that_names_its_model(folder: Path, params: Params) -> None:
    write_page(folder, params)
    text = (folder / "reports/model_card.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0] == "# resnet on digits"
    assert lines[2].startswith("The model is right about 195 of 200 test pictures")
    assert f"- **weights**: sha256 {MODEL}" in lines
    assert f"- **run**: {RUN}" in lines
    assert "- **chosen by**: validation pictures (40), never by the test" in lines


def test_class_names_are_no_markdown(tmp_path: Path, params: Params) -> None:
    names = ["*a*", "<b>", "_c_|", *CLASSES[3:]]
    folder = write_project(tmp_path, classes=names)
    card = as_markdown(read_results(folder), params.model_dump())
    assert not re.search(r"(?<!\\)[<|]|(?<![\\*])\*(?!\*)", card.replace("- **", "").replace("**:", ""))


def test_without_mistakes(tmp_path: Path, params: Params) -> None:
    text = Page(write_page(write_project(tmp_path, wrong=0), params)[0]).text
    assert "right about 200 of 200" in text
    assert "Mistakes None." in text


def test_many_classes_are_folded(tmp_path: Path, params: Params) -> None:
    html, _ = write_page(write_project(tmp_path, classes=[f"class {i}" for i in range(120)]), params)
    text = Page(html).text
    assert "The 10 weakest of 120" in text
    assert "All 120 classes" in text
    assert "Some pictures of each class" in text
    assert len(Page(html).addresses) == len(PICTURES) + 120


def test_sheets_of_a_thousand_classes_do_not_make_the_page_heavy(folder: Path, params: Params) -> None:
    sheet = BytesIO()
    Image.effect_noise((600, 600), 90).save(sheet, "PNG")
    for first in range(0, 1000, 50):
        write_bytes(folder / f"plots/data/{first:04}-{first + 49:04}.png", sheet.getvalue())
    whole, _ = write_page(folder, params)
    assert len(whole) < 2_500_000
    assert "Some pictures of the first classes (plots/data has the sheets of all)" in whole
    assert 'alt="Pictures of 0000-0049"' in whole
    assert "Pictures of 0950-0999" not in whole


def test_numbers_that_are_not_finite(folder: Path, params: Params) -> None:
    for name in ("train", "test"):
        path = folder / f"metrics/{name}.json"
        values = json.loads(path.read_text())
        write_json(path, values | dict.fromkeys(("nll", "val_loss", "epoch_train_loss", "images_per_s"), float("nan")))
    write_text(folder / "plots/training/epochs.csv", "epoch,train_loss,val_loss,val_accuracy\n1,nan,nan,\n")
    html, _ = write_page(folder, params)
    assert "negative log-likelihood –" in Page(html).text
    assert Page(html).tags.count("svg") == 2, "no curve of training"


@pytest.mark.parametrize(
    ("absent", "command"),
    [
        ("metrics/data.json", "dvc repro prepare"),
        ("metrics/train.json", "dvc repro train"),
        ("metrics/test.json", "dvc repro evaluate"),
        ("metrics/export.json", "dvc repro export"),
        ("plots/training/epochs.csv", "dvc repro train"),
        ("plots/evaluation/per_class.csv", "dvc repro evaluate"),
        ("plots/evaluation/confusion.png", "dvc repro evaluate"),
        ("reports/evaluation/mistakes.csv", "dvc repro evaluate"),
    ],
)
def test_what_is_missing_is_named_with_its_command(folder: Path, absent: str, command: str) -> None:
    (folder / absent).unlink()
    with pytest.raises(UserError, match=rf"{re.escape(absent)} is missing: run {command}$"):
        read_results(folder)


def test_results_of_different_models_are_refused(folder: Path) -> None:
    path = folder / "metrics/export.json"
    write_json(path, json.loads(path.read_text()) | {"model_sha256": "d" * 64})
    with pytest.raises(
        UserError, match="export.json is of another model than metrics/train.json: run dvc repro export"
    ):
        read_results(folder)


def test_a_metrics_file_of_another_version_is_refused(folder: Path) -> None:
    write_json(folder / "metrics/train.json", {"model_sha256": MODEL})
    with pytest.raises(
        UserError, match=r"train\.json has no val_accuracy: it is of another version; run dvc repro train"
    ):
        read_results(folder)


def test_reading_and_rendering_need_neither_torch_nor_numpy(folder: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from darkroom.reporting.page import render\nfrom darkroom.reporting.results import read_results\n"
        "page = render(read_results(Path(sys.argv[2])), {'model': {'name': 'mlp'}, \n"
        "  'data': {'name': 'digits', 'resize': 'crop'}, 'evaluate': {'confidence': 0.95, 'tta': 'none'}})\n"
        "assert 'mlp on digits' in page\n"
        "print(sorted({'torch', 'numpy', 'matplotlib', 'pandas', 'mlflow', 'PIL'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, REPOSITORY / "stages", folder], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.52, 2.3, [0.5, 1, 1.5, 2, 2.5]),
        (1, 30, [0, 10, 20, 30]),
        (0.991, 0.993, [0.991, 0.9915, 0.992, 0.9925, 0.993]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-9, 12345.0])
def test_ticks_around_one_value(value: float) -> None:
    found = ticks(value, value)
    assert found[0] <= value <= found[-1]
    assert len(found) >= 2


def test_names_of_lines_keep_apart() -> None:
    values: dict[str, list[Any]] = {"a": [1.0, 0.11], "b": [1.0, 0.10], "c": [1.0, 0.0]}
    chart = line_chart("Loss", "epoch", "loss", [1.0, 2.0], values, None)
    assert chart
    heights = sorted(line.label_y for line in chart.lines)
    assert all(later - earlier > 16.9 for earlier, later in pairwise(heights))
    assert heights[-1] <= chart.bottom


def test_one_epoch_is_a_chart() -> None:
    chart = line_chart("Loss", "epoch", "loss", [1.0], {"a": [0.5]}, 1.0)
    assert chart
    assert chart.lines[0].end == (chart.left, chart.lines[0].label_y)


def test_numbers_for_people() -> None:
    assert [number(value) for value in (308074, 0.028592, 1.7e-06, None, 1234.5, 0)] == [
        "308\u202f074", "0.02859", "1.7e-06", "–", "1\u202f234", "0",
    ]  # fmt: skip
    assert [size(value) for value in (999, 1237257, 83_000, 3 * 10**9)] == ["999 bytes", "1.24 MB", "83 kB", "3 GB"]
    assert [duration(value) for value in (28.26, 150.0, 9000)] == ["28.3 s", "2 min", "2.5 h"]
    assert [percent(value) for value in (0.993, "0.5", "", None)] == ["99.30%", "50.00%", "–", "–"]

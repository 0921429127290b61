"""What the earlier stages wrote, read for the page."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from darkroom.errors import UserError
from darkroom.files import missing, read_json

NEEDED = {
    "data": ("classes", "num_train", "num_val", "num_test", "sha256", "mean", "std", "image_size", "channels",
             "num_left_out", "num_duplicates"),
    "train": ("val_accuracy", "val_loss", "best_epoch", "epochs", "steps", "epoch_train_loss", "temperature", "images_per_s",
              "seconds", "num_parameters", "precision", "device", "threads", "model_sha256", "mlflow_run_id"),
    "test": ("accuracy", "accuracy_low", "accuracy_high", "macro_precision", "macro_recall", "macro_f1", "macro_f1_low",
             "macro_f1_high", "nll", "brier", "ece", "ece_equal_mass", "uncalibrated_nll", "uncalibrated_ece", "num_images",
             "model_sha256", "mlflow_run_id"),
    "export": ("pytorch", "num_images", "num_test_images", "threads", "model_sha256", "mlflow_run_id"),
}  # fmt: skip
"""What the page shows of each file in metrics/."""

MADE_BY = {
    "data": "dvc repro prepare",
    "train": "dvc repro train",
    "test": "dvc repro evaluate",
    "export": "dvc repro export",
}

PICTURES = ("confusion", "mistakes", "attention", "unsure")

Row = dict[str, str]


@dataclass(frozen=True)
class Results:
    """All that the page is made of. Numbers that were not finite are None."""

    data: dict[str, Any]
    train: dict[str, Any]
    test: dict[str, Any]
    export: dict[str, Any]
    epochs: list[dict[str, float | None]]
    """a row an epoch: epoch, train_loss, val_loss, val_accuracy …"""
    per_class: list[Row]
    mistakes: list[Row]
    """the most confident first"""
    confused: list[tuple[str, str, int]]
    """actual class, predicted class, number of pictures; the most frequent first"""
    reliability: list[dict[str, float | None]]
    """a row a bin: confidence, accuracy, num_images"""
    slices: list[Row]
    """a row a quarter: name of the property, low, high, num_images, accuracy"""
    corruptions: list[Row]
    """a row a corruption and level: corruption, level, accuracy"""
    pictures: dict[str, bytes]
    """PNG by name: confusion, mistakes, attention, unsure"""
    sheets: dict[str, bytes]
    """PNG by name: some pictures of a class, or of fifty; in the order of the classes"""

    @property
    def weakest(self) -> Row | None:
        """The class with the lowest F1, among those that have pictures."""
        return min((row for row in self.per_class if row["f1"]), key=lambda row: float(row["f1"]), default=None)

    @property
    def formats(self) -> dict[str, dict[str, Any]]:
        """Of metrics/export.json what it says of each file that is there, the fastest at batch 1 first."""
        found = {name: value for name, value in self._files.items() if value.get("kept", True)}
        return dict(sorted(found.items(), key=lambda item: float(item[1]["latency_ms_batch_1"])))

    @property
    def left_out(self) -> dict[str, dict[str, Any]]:
        """The formats that were asked for and not kept."""
        return {name: value for name, value in self._files.items() if not value.get("kept", True)}

    @property
    def timed(self) -> dict[str, dict[str, Any]]:
        """The files, and PyTorch itself."""
        return {**self.formats, "PyTorch itself": self.export["pytorch"]}

    @property
    def threads(self) -> list[tuple[int, str]]:
        """Numbers of threads that all were timed on, and what the names of their numbers end in."""
        two = "_threads_2"
        return [(1, ""), *([(2, two)] if f"latency_ms_batch_1{two}" in self.export["pytorch"] else [])]

    def fastest(self, suffix: str) -> float:
        """Pictures a second, 64 at a time."""
        return max(float(each[f"images_per_s_batch_64{suffix}"]) for each in self.timed.values())

    @property
    def _files(self) -> dict[str, dict[str, Any]]:
        return {name: value for name, value in self.export.items() if isinstance(value, dict) and name != "pytorch"}


def read_results(folder: Path) -> Results:
    """The results below `folder`. Raises UserError for a missing or damaged file, and for files of different models."""
    metrics = {name: _metrics(folder / f"metrics/{name}.json", name) for name in NEEDED}
    _check_one_model(metrics)
    evaluation = folder / "plots/evaluation"
    return Results(
        **metrics,
        epochs=[_numbers(row) for row in _table(folder / "plots/training/epochs.csv", "train")],
        per_class=_table(evaluation / "per_class.csv", "test"),
        mistakes=_table(folder / "reports/evaluation/mistakes.csv", "test"),
        confused=_confused(_table(evaluation / "confusion.csv", "test")),
        reliability=[_numbers(row) for row in _table(evaluation / "reliability.csv", "test")],
        slices=_table(evaluation / "slices.csv", "test"),
        corruptions=_table(evaluation / "corruptions.csv", "test"),
        pictures={name: _bytes(evaluation / f"{name}.png", "test") for name in PICTURES},
        sheets=_sheets(folder / "plots/data"),
    )


def _metrics(path: Path, name: str) -> dict[str, Any]:
    values = read_json(path, MADE_BY[name])
    absent = [key for key in NEEDED[name] if not isinstance(values, dict) or key not in values]
    if absent:
        raise UserError(f"{path} has no {absent[0]}: it is of another version; run {MADE_BY[name]}")
    return dict(values)


def _check_one_model(metrics: dict[str, dict[str, Any]]) -> None:
    for name in ("test", "export"):
        if metrics[name]["model_sha256"] != metrics["train"]["model_sha256"]:
            raise UserError(f"metrics/{name}.json is of another model than metrics/train.json: run {MADE_BY[name]}")


def _table(path: Path, name: str) -> list[Row]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise missing(path, MADE_BY[name]) from None


def _bytes(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise missing(path, MADE_BY[name]) from None


def _sheets(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        raise missing(folder, MADE_BY["data"])
    return {path.stem: path.read_bytes() for path in sorted(folder.glob("*.png"))}


def _numbers(row: Row) -> dict[str, float | None]:
    return {name: float(text) if text else None for name, text in row.items()}


def _confused(pairs: list[Row]) -> list[tuple[str, str, int]]:
    counts = Counter((pair["actual"], pair["predicted"]) for pair in pairs if pair["actual"] != pair["predicted"])
    return [(actual, predicted, count) for (actual, predicted), count in counts.most_common()]

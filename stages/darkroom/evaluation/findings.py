"""All that is found out about a model on the test pictures, and the numbers and files that say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from darkroom.evaluation import tables
from darkroom.evaluation.calibration import Bin, Calibration
from darkroom.evaluation.comparing import Comparison
from darkroom.evaluation.corruptions import Corrupted, corruption_errors
from darkroom.evaluation.pictures import attention_picture, confusion_picture, mistakes_picture, unsure_picture
from darkroom.evaluation.predictions import Predictions
from darkroom.evaluation.scores import Scores
from darkroom.evaluation.slices import Slice
from darkroom.evaluation.uncertainty import Intervals
from darkroom.files import write_bytes, write_text


@dataclass(frozen=True)
class Findings:
    """Of one model on N test pictures."""

    predictions: Predictions
    scores: Scores
    intervals: Intervals
    calibration: Calibration
    uncalibrated: Mapping[str, float]
    """nll, brier, ece and ece_equal_mass of the probabilities before train's temperature"""
    slices: list[Slice]
    corrupted: list[Corrupted]
    comparisons: Mapping[str, Comparison]
    """with other models, by the names of their files"""
    heat: NDArray[np.float64] | None
    """M×H×W: what the M most confident mistakes were seen in"""

    def metrics(self) -> dict[str, Any]:
        """The numbers of the whole, by name; those of corruptions and comparisons one level down, where there are any."""
        nested: dict[str, Any] = {
            "corruption_error": corruption_errors(self.corrupted),
            "against": {name: each.metrics() for name, each in self.comparisons.items()},
        }
        return {
            **self.scores.metrics(),
            **self.intervals.metrics(),
            **self.calibration.metrics(),
            **{f"uncalibrated_{name}": number for name, number in self.uncalibrated.items()},
            **{name: values for name, values in nested.items() if values},
        }

    def write_plots(self, folder: Path, images: NDArray[np.uint8], num_drawn: int) -> None:
        """CSV that `dvc plots` draws, and pictures of `images` (N×H×W×C)."""
        predictions = self.predictions
        write_text(folder / "confusion.csv", tables.confusion_table(predictions))
        write_text(folder / "per_class.csv", tables.per_class_table(self.scores, self.intervals, predictions.classes))
        write_text(folder / "reliability.csv", tables.rows_table(Bin, self.calibration.bins))
        write_text(folder / "slices.csv", tables.rows_table(Slice, self.slices))
        write_text(folder / "corruptions.csv", tables.rows_table(Corrupted, self.corrupted))
        write_bytes(folder / "confusion.png", confusion_picture(self.scores.confusion, predictions.classes))
        write_bytes(folder / "mistakes.png", mistakes_picture(predictions, images, num_drawn))
        write_bytes(folder / "unsure.png", unsure_picture(predictions, images, num_drawn))
        write_bytes(folder / "attention.png", attention_picture(predictions, images, self.heat))

    def write_tables(self, folder: Path, ids: list[str]) -> None:
        """What each picture was taken for; `ids` know them again."""
        write_text(folder / "predictions.csv", tables.predictions_table(self.predictions, ids))
        write_text(folder / "mistakes.csv", tables.mistakes_table(self.predictions))

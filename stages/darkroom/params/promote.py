"""Section `promote`: the gate to the registry."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from darkroom.params.base import Probability, Section, key

TestMetric = Literal["accuracy", "top5_accuracy", "macro_f1", "macro_precision", "macro_recall", "nll"]


NAME = r"^[\p{L}\p{M}\p{N}_]([\p{L}\p{M}\p{N}_ .-]{0,78}[\p{L}\p{M}\p{N}_])?$"
"""No / : @ # ? % or quotes, which addresses (models:/NAME@champion) and MLflow's filters read as their own; short enough
for a folder's name."""


class Promote(Section):
    """What a candidate needs to become champion."""

    name: Annotated[str, Field(pattern=NAME)] = key(
        "registered model that the versions go into", also=("registered_model_name",)
    )
    metric: TestMetric = key("test metric that decides")
    minimum: float = key("worst value of the metric that is let in (nll: the highest)", also=("threshold", "min"))
    min_gain: Annotated[float, Field(ge=0)] = key("the gain over the champion must be above this; 0: ties are refused")
    not_worse: Probability = key(
        "level of McNemar's one-sided test on the same pictures, below which a candidate is worse than the champion; 0: off"
    )
    better: Probability = key(
        "level of a bootstrap over seeds and pictures, below which the gain of the settings is no luck; needs --seeds 3; 0: off"
    )
    max_class_drop: Probability = key("how far the recall of a class may fall below the champion's; 1: off")
    max_ece: Probability = key("largest calibration error on the test pictures; 1: off")
    max_latency_ms: Annotated[float, Field(ge=0)] = key(
        "largest median latency of the ONNX file with one picture; 0: off"
    )
    max_mb: Annotated[float, Field(ge=0)] = key("largest size of the ONNX file in megabytes; 0: off")
    committed: bool = key("refuse a model that was trained with uncommitted code")

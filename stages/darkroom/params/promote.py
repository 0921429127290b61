"""Section `promote`: the gate to the registry."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from darkroom.params.base import Section, key

TestMetric = Literal["accuracy", "top5_accuracy", "macro_f1", "macro_precision", "macro_recall", "nll"]


class Promote(Section):
    """What a candidate needs to become champion."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[^/:]+$")] = key(
        "registered model that the versions go into", also=("registered_model_name",)
    )
    metric: TestMetric = key("test metric that decides")
    minimum: float = key("worst value of the metric that is let in (nll: the highest)", also=("threshold", "min"))
    min_gain: Annotated[float, Field(ge=0)] = key("the gain over the champion must be above this; 0: ties are refused")

"""Section `evaluate`: scoring the test split."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from darkroom.params.base import Count, Positive, Section, key


class Evaluate(Section):
    """How the chosen weights are scored, once, on the test split."""

    batch_size: Count = key("pictures at a time; changes no score", also=("batch",))
    tta: Literal["none", "flip", "shift"] = key(
        "none, flip or shift: probabilities averaged over views of each picture; the exported files take one view",
        also=("augment", "test_time_augmentation"),
    )
    mistakes: Annotated[int, Field(ge=0, le=400)] = key(
        "how many of the most confident mistakes, and least confident hits, to draw"
    )
    attention: bool = key(
        "draw what the mistakes were seen in (Grad-CAM), for convolutional networks", also=("grad_cam",)
    )
    resamples: Annotated[int, Field(ge=100, le=100_000)] = key(
        "of the bootstrap that intervals come from", also=("bootstrap",)
    )
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = key("share of such intervals that hold the true value")
    against: str = key("predictions of other models to compare with: a predictions.csv, or a folder of such files")
    corrupted_images: Annotated[int, Field(ge=0)] = key(
        "test pictures that are also scored with noise, blur, JPEG, brightness, contrast and rotation at five levels; 0: off",
        also=("robustness", "corruptions"),
    )
    corrupted_seconds: Positive = key("after which the corruptions not yet scored are left out")

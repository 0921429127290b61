"""Section `evaluate`: scoring the test split."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from darkroom.params.base import Count, Section, key


class Evaluate(Section):
    """How the chosen weights are scored, once, on the test split."""

    batch_size: Count = key("pictures at a time; changes no score", also=("batch",))
    mistakes: Annotated[int, Field(ge=0, le=400)] = key("how many of the most confident mistakes to draw")

"""What every section of params.yaml shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Fault = tuple[str, str]
"""A key ("train.lr") and what is wrong with it."""

Fraction = Annotated[float, Field(ge=0, lt=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


def key(description: str, *, also: tuple[str, ...] = ()) -> Any:
    """A key of a section: its comment, and the names that people of other tools type for it."""
    return Field(description=description, json_schema_extra={"also": list(also)} if also else None)


class Section(BaseModel):
    """One section: frozen, no unknown keys, no defaults (params.yaml says everything), no text for numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    def faults(self) -> Iterator[Fault]:
        """What single ranges cannot see: keys that contradict each other or mean nothing together."""
        yield from ()

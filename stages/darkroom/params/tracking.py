"""Section `tracking`: where runs are recorded. Read by every stage, listed in dvc.yaml by none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from darkroom.params.base import Count, Fault, Section, key


class Tracking(Section):
    """MLflow: the address, and how much is recorded."""

    uri: str = key("MLflow tracking address; empty: mlflow.db beside this file; MLFLOW_TRACKING_URI goes first")
    experiment: Annotated[str, Field(min_length=1)] = key(
        "MLflow experiment that the runs go into", also=("experiment_name",)
    )
    log_every: Count = key("steps between points of the step series")
    system_metrics: bool = key("record CPU, memory and GPU use")

    def faults(self) -> Iterator[Fault]:
        if self.uri and "://" not in self.uri:
            yield (
                "tracking.uri",
                f"{self.uri!r} is no tracking address (http://…, https://…, sqlite:////absolute/path.db, postgresql://…; empty: mlflow.db)",
            )

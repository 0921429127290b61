"""Runs and the registry: the only room that imports mlflow.

`open_store` is imported cheaply and imports mlflow when called, so a mistake in params.yaml is told before that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from darkroom.params import Tracking
    from darkroom.tracking.lineage import Lineage
    from darkroom.tracking.store import Store

# MLflow reads these while it is imported, and this file runs before any other of the room. A pipeline does not phone
# home, a file that somebody else logged does not run code here, and an address is printed without its password.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] = "false"


def open_store(tracking: Tracking, root: Path, lineage: Lineage | None = None) -> Store:
    """The store that runs are recorded in, ready for `start` and `join`.

    The address is MLFLOW_TRACKING_URI where set, else `tracking.uri`, else mlflow.db below `root`. A new database and
    its experiment are created once, under a lock. Runs of this machine whose process is gone are marked KILLED.
    `lineage` is what `lineage.gather` found, for a process that was started by one that has it; gathered here otherwise.
    Raises UserError, within seconds, for a store that cannot be used.
    """
    from darkroom.tracking.opening import open_store as open_now

    return open_now(tracking, root, lineage)

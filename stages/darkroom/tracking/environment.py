"""Variables of the environment that MLflow reads while it is called."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PROBE_SECONDS = 3
QUICK = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(PROBE_SECONDS),
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
}
"""For the first call, and for the end of a stage that the store failed: the others keep MLflow's patience of four minutes,
a server may be away for a while."""


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """The process's environment with `values` in it; as it was afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

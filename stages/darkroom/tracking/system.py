"""CPU, memory, disk, network and GPU use of a run, by MLflow's own monitor."""

from __future__ import annotations

import logging
from typing import Any

SAMPLE_SECONDS = 10.0


class Monitor:
    """Samples the machine in a thread while a stage works. It never fails the run that it watches."""

    def __init__(self, uri: str, run_id: str) -> None:
        self._uri, self._run_id = uri, run_id
        self._monitor: Any = None  # mlflow's SystemMetricsMonitor, which has no types

    def start(self) -> None:
        logging.getLogger("mlflow.system_metrics").setLevel(logging.CRITICAL)
        try:
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            monitor: Any = SystemMetricsMonitor(  # type: ignore[no-untyped-call]  # mlflow types none of it
                self._run_id, sampling_interval=SAMPLE_SECONDS, resume_logging=True, tracking_uri=self._uri
            )
            monitor.start()
            self._monitor = monitor
        except Exception:  # no counter of this machine is worth a training
            logging.getLogger(__name__).debug("no system metrics", exc_info=True)

    def stop(self) -> None:
        """Ends the thread, and adds a last sample: a short stage would have none."""
        if self._monitor is None:
            return
        monitor, self._monitor = self._monitor, None
        try:
            monitor.finish()
            monitor.collect_metrics()
            monitor.publish_metrics(monitor.aggregate_metrics())
            monitor.mlflow_logger.flush()
        except Exception:
            logging.getLogger(__name__).debug("no last sample", exc_info=True)

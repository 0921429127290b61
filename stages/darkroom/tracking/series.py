"""Step series on their way to the store: a spool on disk, and a thread that sends it in batches.

Adding a point costs one small write. A store that is slow or away never holds the training up and loses nothing: the
points stay in the spool, and the next process that opens it sends what the store has not got.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from darkroom.door import say
from darkroom.tracking.address import first_line
from darkroom.tracking.spool import Point, Spool, read_points
from darkroom.tracking.values import METRICS_A_CALL, chunks, metric_name

SEND_SECONDS = 5.0
"""How often the thread sends: fewer and larger batches cost less a point, and the points are safe on disk."""
SLOW_SECONDS = 10.0
"""A call that takes longer than this is told to the user, once."""
RETRY_SECONDS = 60.0
"""Longest wait between tries."""
CLOSE_SECONDS = 60.0
"""How long the end of a run waits for the last points."""
FINAL = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "INVALID_STATE", "PERMISSION_DENIED")
"""Answers that another try does not change: the run was deleted while it trained, say."""


class Last(NamedTuple):
    """The last point of a metric."""

    step: int
    value: float
    when: int
    """ms since 1970"""


def last_points(client: MlflowClient, run_id: str) -> dict[str, Last]:
    """The last point of each metric that the store has for the run."""
    return {
        metric.key: Last(metric.step, metric.value, metric.timestamp)
        for metric in client.get_run(run_id).data.to_proto().metrics
    }


@dataclass
class Sent:
    """What the store has: the last step of each name, and how far the spool was sent."""

    steps: dict[str, int]
    position: int = 0
    names: dict[str, str] = field(default_factory=dict)

    def missing(self, point: Point) -> list[Metric]:
        """The point's numbers that the store has not got."""
        found = []
        for key, number in point.numbers.items():
            name = self.names.get(key) or self.names.setdefault(key, metric_name(key))
            if point.step > self.steps.get(name, -1):
                found.append(Metric(name, float(number), point.when, point.step))
        return found


class Series:
    """The step series of one run: `add` a point a step, `close` at the end."""

    def __init__(self, client: MlflowClient, run_id: str, spool: Path, shown: str) -> None:
        self._client, self._run_id, self._shown = client, run_id, shown
        self._spool = Spool(spool)
        self._last: dict[str, Last] = {}
        self._scanned = 0
        # asked now: a number logged later at the last step of a name must not pass for the points before it
        self._sent = Sent({name: last.step for name, last in last_points(client, run_id).items()})
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._abandoned = False
        self._told = False
        self._closed = False
        self._left = False
        """whether closing left points unsent"""

    def add(self, step: int, numbers: Mapping[str, float]) -> None:
        """Keeps `numbers` for `step`: on disk at once, in the store within seconds."""
        self._spool.add(step, numbers)
        if self._thread is None:
            self._start()

    def last_points(self) -> dict[str, Last]:
        """The last point of each name in the spool, sent or not."""
        for point in read_points(self._spool.path, self._scanned):
            self._last |= {key: Last(point.step, float(number), point.when) for key, number in point.numbers.items()}
            self._scanned = point.end
        return {metric_name(key): last for key, last in self._last.items()}

    def position(self) -> int:
        """The spool's length in bytes, for a checkpoint: all that was added lies before it."""
        return self._spool.position()

    def cut(self, position: int) -> None:
        """Forgets the points after `position`; called before the first `add` of a resumed training."""
        assert self._thread is None, "cut comes before the first add"
        self._spool.cut(position)
        self._last, self._scanned = {}, 0

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Sends what is left; after `seconds` says where the unsent points lie, and goes on. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None and self._spool.position():
            self._start()  # a resumed training that had nothing left to do
        self._closing.set()
        if self._thread is not None:
            self._thread.join(seconds)
            self._abandoned = True
        self._left = self._spool.position() > self._sent.position
        if self._left:
            say(f"points of the curves are not in the store at {self._shown} yet: they lie in {self._spool.path}")
        self._spool.close()

    def finish(self) -> None:
        """Closes, and sends what is left with all of MLflow's patience: the thread may sleep between two tries.

        Raises what the store throws where it stays away; the points are in the spool then.
        """
        self.close(CLOSE_SECONDS)
        if self._left:
            self._send_present()
            self._left = False

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._send_until_closed, name="darkroom-series", daemon=True)
        self._thread.start()

    def _send_until_closed(self) -> None:
        pause = SEND_SECONDS
        while not self._abandoned:
            closing = self._closing.wait(pause)
            try:
                self._send_present()
                pause = SEND_SECONDS
            except Exception as error:  # whatever a store throws must not end a training
                if isinstance(error, MlflowException) and error.error_code in FINAL:
                    self._tell(f"does not take points any more ({first_line(error) or type(error).__name__})")
                    return
                self._tell(f"does not answer ({first_line(error) or type(error).__name__})")
                pause = min(pause * 2, RETRY_SECONDS)
                if closing:
                    time.sleep(min(SEND_SECONDS, 1.0))
                continue
            if closing:
                return

    def _send_present(self) -> None:
        """Sends what the spool holds now and the store has not got, in as few calls as MLflow allows."""
        batch: list[Metric] = []
        end = self._sent.position
        for point in read_points(self._spool.path, self._sent.position):
            missing = self._sent.missing(point)
            if batch and len(batch) + len(missing) > METRICS_A_CALL:
                self._send(batch, end)
                batch = []
            batch += missing
            end = point.end
        self._send(batch, end)

    def _send(self, batch: list[Metric], end: int) -> None:
        for part in chunks(batch, METRICS_A_CALL):
            timer = threading.Timer(SLOW_SECONDS, self._tell, ("is slow or away",))
            timer.daemon = True
            timer.start()
            try:
                self._client.log_batch(self._run_id, metrics=part)
            finally:
                timer.cancel()
        self._sent.steps |= {metric.key: metric.step for metric in batch}
        self._sent.position = end

    def _tell(self, what: str) -> None:
        if not self._told:
            self._told = True
            say(f"the tracking store at {self._shown} {what}: points of the curves are kept in {self._spool.path}")

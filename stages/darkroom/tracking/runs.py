"""One stage's work on a run: what it logs, and how the run ends."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Run
from mlflow.exceptions import MlflowException

from darkroom.door import orderly_stop, say
from darkroom.errors import UserError
from darkroom.tracking import machine, system
from darkroom.tracking.address import masked
from darkroom.tracking.continuing import differing
from darkroom.tracking.endings import Status, ending_of, in_a_line
from darkroom.tracking.environment import QUICK, environment
from darkroom.tracking.lineage import FILES
from darkroom.tracking.models import Link, trained_model
from darkroom.tracking.series import Last, Series, last_points
from darkroom.tracking.values import (
    METRICS_A_CALL,
    PARAMS_A_CALL,
    TAGS_A_CALL,
    chunks,
    cut,
    metric_name,
    owned_tags,
    params_of,
    tags_of,
)

if TYPE_CHECKING:
    from darkroom.tracking.store import Store

LINE_LENGTH = 200
"""Letters of what a store says that are shown."""
STOPPED_SECONDS = 5.0
"""How long a run that was told to stop waits for its last points: who stopped it may not be patient."""


class StageRun:
    """A stage at work on a run; made by `Store.start` and `Store.join`, used as a context.

    On entering the run is RUNNING and has the stage's parameters; on leaving it ends as the stage did: FINISHED,
    KILLED (SIGTERM, Ctrl-C) or FAILED with the error. The tag `stage.<stage>` holds the same in small letters.
    """

    def __init__(
        self, store: Store, run_id: str, stage: str, values: Mapping[str, Any], *, monitored: bool = False
    ) -> None:
        self.run_id = run_id
        self._store, self._client = store, store.client
        self._stage, self._values = stage, values
        self._monitor = system.Monitor(store.address.uri, run_id) if monitored else None
        self._series: list[Series] = []
        self._metric_names: set[str] = set()
        self._link: Link | None = None
        self._ending: tuple[Status, str] | None = None
        self._was_finished = False
        """whether the stage had finished in this run before: what it left is good, and DVC may restore it"""

    def __enter__(self) -> Self:
        try:
            run = self._client.get_run(self.run_id)
            self._was_finished = (run.info.status, run.data.tags.get(f"stage.{self._stage}")) == (
                "FINISHED",
                "finished",
            )
            self._client.update_run(self.run_id, status="RUNNING")
            self.tags(machine.this_process() | {f"stage.{self._stage}": "running"})
            self._log_params(run)
            self._log_origin(run)
            if "darkroom.error" in run.data.tags and run.data.tags.get(f"stage.{self._stage}") != "finished":
                self._client.delete_tag(self.run_id, "darkroom.error")  # of an earlier try of this stage
            if self._monitor:
                self._monitor.start()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status, why = self._ending or ending_of(error)
        store_failed = isinstance(error, MlflowException)
        problem: Exception | None = None
        with orderly_stop() as stop:  # a signal in the middle would leave the run RUNNING
            try:
                with environment(QUICK if store_failed or status == "KILLED" else {}):  # patience is spent, or unwanted
                    self._end(status, why, error)
            except Exception as problem_of_end:
                problem = problem_of_end
        if stop.signal:
            stop.obey()
        if problem is not None:
            self._tell_unrecorded(problem, own_error=error is not None and not store_failed)

    def _tell_unrecorded(self, problem: Exception, *, own_error: bool) -> None:
        """The stage's own error is what its caller must see. A stage without one has failed too: DVC would take it for done,
        and nobody would send what the store has not got."""
        store = f"the store at {self._store.address.shown}"
        said = f"the end of run {self.run_id} is not in {store}: {cut(in_a_line(problem), LINE_LENGTH, ' …')}"
        if own_error:
            say(said)
        else:
            raise UserError(f"{said}; when it answers, type the same command: a finished training is not done again")

    def _end(self, status: Status, why: str, error: BaseException | None) -> None:
        for series in self._series:
            if status == "FINISHED":
                series.finish()
            else:
                series.close(STOPPED_SECONDS)
            self._metric_names |= series.last_points().keys()
        if self._monitor:
            self._monitor.stop()
        if status == "FAILED" and not isinstance(error, UserError | None):
            self.text(masked("".join(traceback.format_exception(error))), f"errors/{self._stage}.txt")
        if status != "FINISHED" and self._was_finished and not self._metric_names:
            say(f"run {self.run_id} stays FINISHED, as the same stage left it before: this try recorded nothing")
            self.tags({f"stage.{self._stage}": "finished", "darkroom.failed_again": why or status})
            self._client.set_terminated(self.run_id, "FINISHED")
            return
        self.tags(owned_tags(self._stage, self._metric_names))
        self.tags({f"stage.{self._stage}": status.lower()} | ({"darkroom.error": why} if why else {}))
        self._client.set_terminated(self.run_id, status)

    def ends(self, status: Status, why: str = "") -> None:
        """How the run ends when the block is left, whatever leaves it: a pruned trial is no failure."""
        self._ending = (status, why)

    def tags(self, tags: Mapping[str, str]) -> None:
        for part in chunks(tags_of(tags), TAGS_A_CALL):
            self._client.log_batch(self.run_id, tags=part)

    def reproduced_by(self, values: Mapping[str, Any]) -> None:
        """Tags the run with the command that makes it again: its settings, with `values` in place of every `auto`."""
        self.tags({"darkroom.reproduce": self._store.lineage.command({**self._values, **values})})

    def metrics(self, numbers: Mapping[str, float], step: int | None = None) -> None:
        """Logs numbers in one batch. Names get the spelling that MLflow takes; NaN and infinity are logged as they are.

        Where `step` is None each number stands at the last step of its name, so that it is the one that MLflow shows,
        also after a series of that name or after an earlier try of the same stage. What stands there already is not
        logged again.
        """
        named = {metric_name(key): number for key, number in numbers.items()}
        self._metric_names |= named.keys()
        found = self._points(named, step)
        for part in chunks(self._link.linked(found, self.run_id) if self._link else found, METRICS_A_CALL):
            self._client.log_batch(self.run_id, metrics=part)

    def model(self, model_sha256: str) -> None:
        """Numbers logged from now on are those of these weights too, on the run's pictures: MLflow's model metrics."""
        self._link = trained_model(self._store, self.run_id, model_sha256)

    def diverged(self, step: int) -> None:
        """Marks the run as one whose loss was NaN or infinite at `step`. Such a run is never promoted."""
        self.tags({"darkroom.diverged": str(step)})

    def artifact(self, path: Path, folder: str = "") -> None:
        self._client.log_artifact(self.run_id, str(path), folder or None)

    def artifacts(self, folder: Path, into: str = "") -> None:
        """All files below `folder`, with their places below it."""
        self._client.log_artifacts(self.run_id, str(folder), into or None)

    def text(self, content: str, name: str) -> None:
        self._client.log_text(self.run_id, content, name)

    def dataset(
        self, *, name: str, sha256: str, source: str, counts: Mapping[str, int], context: str = "training"
    ) -> None:
        """Records the pictures as MLflow's dataset of the run; `counts` are pictures a split."""
        dataset = Dataset(
            name=name,
            digest=sha256[:32],  # MLflow keeps 36 characters; the tag data.sha256 has them all
            source_type="local",
            source=json.dumps({"uri": source}),
            profile=json.dumps({"num_images": dict(counts), "sha256": sha256}),
        )
        self._client.log_inputs(self.run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", context)])])

    def series(self, spool: Path) -> Series:
        """Step series through the spool at that path, which goes on with what it holds. Closed with the run."""
        series = Series(self._client, self.run_id, spool, self._store.address.shown)
        self._series.append(series)
        return series

    def farewell(self) -> str:
        """The command that shows the runs, and where this one is."""
        return self._store.farewell(self.run_id)

    def _log_params(self, run: Run) -> None:
        """Those that the run has not got: MLflow refuses 1.0 where it has 1."""
        new = {key: value for key, value in self._values.items() if key not in run.data.params}
        for part in chunks(params_of(new), PARAMS_A_CALL):
            self._client.log_batch(self.run_id, params=part)

    def _log_origin(self, run: Run) -> None:
        """The working folder's files, code and packages. A stage that joins leaves the training's code and packages be."""
        lineage = self._store.lineage
        if not differing(run, lineage.present_values()):
            for name in FILES:
                if (lineage.folder / name).is_file():
                    self.artifact(lineage.folder / name)
        joins = any(key.startswith("stage.") and key != f"stage.{self._stage}" for key in run.data.tags)
        if lineage.diff:
            self.text(lineage.diff, f"code.{self._stage}.diff" if joins else "code.diff")
        if not joins:
            self.text(lineage.packages, "environment.txt")
        elif lineage.commit and lineage.commit != run.data.tags.get("git.commit"):
            self.tags({f"git.commit.{self._stage}": lineage.commit})

    def _points(self, named: Mapping[str, float], step: int | None) -> list[Metric]:
        """Of `named` what does not stand in the run already. Of a linked model all: what stands keeps its time, so that
        the run still has one point of it."""
        last, now = self._last_points(), int(time.time() * 1000)
        found = []
        for name, number in named.items():
            there = last.get(name, Last(0, math.nan, now))
            at = there.step if step is None else step
            stands = there.step == at and there.value == number  # NaN never does
            if self._link or not stands:
                found.append(Metric(name, float(number), there.when if stands else now, at))
        return found

    def _last_points(self) -> dict[str, Last]:
        known = last_points(self._client, self.run_id)
        for series in self._series:
            later = {
                name: last for name, last in series.last_points().items() if last.step >= known.get(name, last).step
            }
            known |= later
        return known

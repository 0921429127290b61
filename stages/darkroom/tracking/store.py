"""The store of runs: starting a run, joining one, and what vanished processes left behind."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from darkroom.door import say
from darkroom.params import Tracking
from darkroom.tracking import continuing, machine
from darkroom.tracking.address import Address
from darkroom.tracking.lineage import Lineage
from darkroom.tracking.oldstore import old_file_store
from darkroom.tracking.runs import StageRun
from darkroom.tracking.values import tags_of


@dataclass(frozen=True)
class Store:
    """An opened store; `darkroom.tracking.open_store` makes it."""

    client: MlflowClient
    address: Address
    experiment_id: str
    tracking: Tracking
    root: Path
    lineage: Lineage

    def start(
        self,
        stage: str,
        values: Mapping[str, Any],
        *,
        resume: str | None = None,
        parent: str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> StageRun:
        """A new run, or the run `resume` of an interrupted try where it can go on.

        It can where it is still there, belongs to the same experiments (MLflow's and DVC's) and has the same `values`;
        otherwise a new run is opened, tagged `darkroom.trained_by` with the earlier one, which a line says.
        `parent` is the run that this one is shown below; `name` goes before the DVC experiment's name.
        """
        extra = {**(tags or {}), **({MLFLOW_PARENT_RUN_ID: parent} if parent else {})}
        if self.lineage.commit is None and parent is None:
            say("this folder is no git repository: the run has no commit that it could be made again from")
        monitored = self.tracking.system_metrics
        if resume is not None:
            why = self._why_not_resume(self.find(resume), values, parent)
            if not why:
                return StageRun(self, resume, stage, values, monitored=monitored)
            say(f"run {resume} {why}: a new run goes on from it")
            extra[continuing.TRAINED_BY] = resume
        return StageRun(self, self._create(name, extra), stage, values, monitored=monitored)

    def join(self, stage: str, values: Mapping[str, Any], *, run_id: str, model_sha256: str) -> StageRun:
        """The run that trained the model, or a continuation of it.

        A continuation is opened, or found again, where the run has other `values`, belongs to another DVC experiment,
        holds other weights than `model_sha256` or is gone. It carries what is still true of the run that it continues.
        """
        family = self._family(run_id)
        best = continuing.closest(family, self.lineage, model_sha256)
        if best is not None and continuing.fits(best, values, self.lineage.experiment):
            return StageRun(self, best.info.run_id, stage, values)
        tags = {continuing.TRAINED_BY: run_id, continuing.MODEL_SHA256: model_sha256}
        new = self._create(None, tags)
        if best is not None:
            continuing.carry(self.client, best, new, stage, self.lineage)
        else:
            say(
                f"run {run_id}, which trained this model, is not in the store at {self.address.shown}: run {new} replaces it"
            )
            values = self.lineage.locked_values() | dict(values)
        return StageRun(self, new, stage, values)

    def find(self, run_id: str) -> Run | None:
        """The run where the store has it and it is not deleted."""
        try:
            run = self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def children(self, run_id: str) -> list[Run]:
        """The runs that are shown below the run."""
        return self.search(f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}'")

    def mark_vanished(self) -> None:
        """Marks the runs of this machine KILLED that are RUNNING without a process: `kill -9`, a power cut."""
        for run in self.search(f"attributes.status = 'RUNNING' and tags.`{machine.HOST}` = '{machine.host()}'"):
            if machine.is_gone(run.data.tags):
                stages = [
                    key for key, state in run.data.tags.items() if key.startswith("stage.") and state == "running"
                ]
                tags = dict.fromkeys(stages, "killed") | {"darkroom.error": "its process was killed outright"}
                self.client.log_batch(run.info.run_id, tags=tags_of(tags))
                self.client.set_terminated(run.info.run_id, "KILLED")

    def farewell(self, run_id: str) -> str:
        """The command that shows the runs, where this one is, and where the table of runs is."""
        where = self.address.page if self.address.is_server else "http://127.0.0.1:5000/"
        table = f"{where}#/experiments/{self.experiment_id}/runs"
        addresses = f"  run:  {table}/{run_id}\n  runs: {table}"
        if self.address.is_server:
            return f"recorded:\n{addresses}"
        if self.address.is_database:
            return f"{self._ui_command()}\n{addresses}"
        return f"recorded: run {run_id} at {self.address.shown}"

    def _ui_command(self) -> str:
        """A bare `mlflow ui` finds mlflow.db in the working folder, but not beside an old store of files."""
        bare = self.address.default and Path.cwd() == self.root and not old_file_store(self.root)
        option = "" if bare else f" --backend-store-uri {shlex.quote(self.address.shown)}"
        return f"mlflow ui{option}"

    def _family(self, run_id: str) -> list[Run]:
        """The run, where it is still there, and its continuations."""
        trained = self.find(run_id)
        others = self.search(f"tags.`{continuing.TRAINED_BY}` = '{run_id}'")
        return [trained, *others] if trained else others

    def _why_not_resume(self, earlier: Run | None, values: Mapping[str, Any], parent: str | None) -> str:
        if earlier is None:
            return "is not in the store any more"
        tags = earlier.data.tags
        if earlier.info.experiment_id != self.experiment_id or tags.get(MLFLOW_PARENT_RUN_ID) != parent:
            return "belongs to another experiment"
        if tags.get("dvc.exp") != self.lineage.experiment:
            return f"belongs to DVC experiment {tags.get('dvc.exp', '(none)')}"
        if changed := continuing.differing(earlier, values):
            return f"was started with another {', '.join(changed)}"
        return ""

    def _create(self, name: str | None, tags: Mapping[str, str]) -> str:
        """A new run, RUNNING from now on, so it says at once which process it belongs to."""
        all_tags = self.lineage.tags() | machine.this_process() | dict(tags)
        run = self.client.create_run(self.experiment_id, run_name=name or self.lineage.experiment, tags=all_tags)
        return str(run.info.run_id)

    def search(self, condition: str) -> list[Run]:
        found: list[Run] = []
        token: str | None = ""
        while token is not None:
            page = self.client.search_runs([self.experiment_id], condition, max_results=1000, page_token=token or None)
            found += page
            token = page.token or None
        return found

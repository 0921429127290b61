"""The registry: versions of one registered model, which of them is champion, and what was decided.

`champion` is moved here and nowhere else. The truth is that alias and each version's tag `darkroom.replaced`, which
names the version that was champion before it; `previous` follows from both. So a process that is killed between any two
calls leaves the old champion or the new one, and `tidy` puts the rest in order.
"""

from __future__ import annotations

import getpass
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from darkroom.errors import UserError
from darkroom.tracking import machine
from darkroom.tracking.environment import environment
from darkroom.tracking.packaging import (
    COMPLETE,
    INCOMPLETE,
    STATE,
    ModelFiles,
    delete_model,
    incomplete_models,
    log_model,
    mark_complete,
)
from darkroom.tracking.store import Store
from darkroom.tracking.values import TAG_LENGTH, cut

CHAMPION, PREVIOUS = "champion", "previous"
REPLACED = "darkroom.replaced"
DECISION = "darkroom.decision."


@dataclass(frozen=True)
class Registry:
    """One registered model."""

    store: Store
    name: str

    def holder(self, alias: str) -> ModelVersion | None:
        """The version that has the alias."""
        try:
            return self.store.client.get_model_version_by_alias(self.name, alias)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def versions(self) -> list[ModelVersion]:
        """All versions, the newest first."""
        found = self.store.client.search_model_versions(f"name = '{self.name}'")
        return sorted(found, key=lambda version: int(version.version), reverse=True)

    def tidy(self) -> list[str]:
        """Puts in order what a killed promotion left; returns a line for each thing done."""
        lines = []
        champion = self.holder(CHAMPION)
        for version in self.versions():
            if version.tags.get(STATE) != INCOMPLETE:
                continue
            if champion is not None and version.version == champion.version:
                self._tag(version, STATE, COMPLETE)
            else:
                self._delete(version)
                lines.append(f"version {version.version} of an interrupted promotion was removed")
        owned = {logged_model(version) for version in self.versions()}
        for model in incomplete_models(self.store):
            done = mark_complete if model.model_id in owned else delete_model
            done(self.store, model.model_id)
        if champion is not None:
            self._follow(champion)
        return lines

    def register(self, files: ModelFiles, run_id: str, tags: Mapping[str, str]) -> ModelVersion:
        """A new version with the files and tags, marked incomplete until `crown`; nobody's alias moves."""
        client = self.store.client
        try:
            client.create_registered_model(self.name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        champion = self.holder(CHAMPION)
        model_id = log_model(self.store, files, run_id, tags)
        # The database's own registry looks the model up at the process's address, not at its client's.
        with environment({"MLFLOW_TRACKING_URI": self.store.address.uri}):
            version = client.create_model_version(
                self.name,
                source=f"models:/{model_id}",
                run_id=run_id,
                model_id=model_id,
                tags={**tags, STATE: INCOMPLETE, REPLACED: str(champion.version) if champion else ""},
            )
        mark_complete(self.store, model_id)
        return version

    def crown(self, version: ModelVersion) -> None:
        """Makes the version champion, and the one before it previous."""
        self.store.client.set_registered_model_alias(self.name, CHAMPION, version.version)
        self._follow(version)
        self._tag(version, STATE, COMPLETE)

    def champion_and_before(self) -> tuple[ModelVersion, ModelVersion]:
        """The champion and the version that was champion before it. Raises UserError where one of them is missing."""
        champion = self.holder(CHAMPION)
        if champion is None:
            raise UserError(f"{self.name} has no champion at {self.store.address.shown}: nothing to go back from")
        earlier = self._before(champion)
        if earlier is None:
            raise UserError(
                f"version {champion.version} of {self.name} has no champion before it: there is none to go back to"
            )
        return champion, earlier

    def record(self, decision: Mapping[str, Any], run_id: str | None) -> None:
        """Adds a decision to the record: who, when, why and the numbers. Nothing is ever taken out of it.

        It goes into the candidate's run (`promotion/<time>.json`, tag `promotion`) and, as soon as the registered model
        exists, into its tags.
        """
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H.%M.%S.%fZ")
        whole = {"when": stamp, "who": f"{getpass.getuser()} on {machine.host()}", **decision}
        if run_id is not None and self.store.find(run_id):
            self.store.client.log_dict(run_id, whole, f"promotion/{stamp}.json")
            self.store.client.set_tag(run_id, "promotion", cut(str(decision["result"]), TAG_LENGTH, " …"))
        if self._exists():
            short = {key: value for key, value in whole.items() if key != "gates"}  # a tag's length is limited
            key = f"{DECISION}{stamp}-{uuid.uuid4().hex[:4]}"
            self.store.client.set_registered_model_tag(self.name, key, json.dumps(short, ensure_ascii=False))

    def decisions(self) -> list[str]:
        """The record as JSON texts, the oldest first."""
        tags = self.store.client.get_registered_model(self.name).tags if self._exists() else {}
        return [text for key, text in sorted(tags.items()) if key.startswith(DECISION)]

    def _before(self, version: ModelVersion) -> ModelVersion | None:
        """The champion before that version, where it still exists."""
        number = version.tags.get(REPLACED)
        return next((each for each in self.versions() if number and str(each.version) == number), None)

    def _follow(self, champion: ModelVersion) -> None:
        """Lets the alias `previous` name the champion before this one, or nobody."""
        earlier, now = self._before(champion), self.holder(PREVIOUS)
        if earlier is not None and (now is None or now.version != earlier.version):
            self.store.client.set_registered_model_alias(self.name, PREVIOUS, earlier.version)
        elif earlier is None and now is not None:
            self.store.client.delete_registered_model_alias(self.name, PREVIOUS)

    def _delete(self, version: ModelVersion) -> None:
        self.store.client.delete_model_version(self.name, version.version)
        if model_id := logged_model(version):
            delete_model(self.store, model_id)

    def _tag(self, version: ModelVersion, key: str, value: str) -> None:
        self.store.client.set_model_version_tag(self.name, version.version, key, value)

    def _exists(self) -> bool:
        return bool(self.store.client.search_registered_models(f"name = '{self.name}'"))


def logged_model(version: ModelVersion) -> str | None:
    """The id of the model that the version was made from (the database store keeps it in the source alone)."""
    source = version.source or ""
    return source.removeprefix("models:/") if source.startswith("models:/m-") else None

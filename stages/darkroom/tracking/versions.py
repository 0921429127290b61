"""What a registered model holds: versions, aliases, and the record of what was decided."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlflow.entities import LoggedModel
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from darkroom.tracking import machine
from darkroom.tracking.decisions import DECISION, kept, stamped
from darkroom.tracking.packaging import delete_model
from darkroom.tracking.store import Store
from darkroom.tracking.values import TAG_LENGTH, cut

CHAMPION, PREVIOUS = "champion", "previous"
REPLACED = "darkroom.replaced"
DECIDED = "darkroom.decided"
LINE = 200
"""champions before a version that its tag names, the newest first: a deleted one is stepped over"""


@dataclass(frozen=True)
class Versions:
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

    def record(self, decision: Mapping[str, Any], run_id: str | None) -> None:
        """Adds a decision to the record: who, when, why and the numbers. Nothing is ever taken out of it.

        It goes into the candidate's run (`promotion/<time>.json`, tag `promotion`) and, as soon as the registered model
        exists, into its tags.
        """
        whole = stamped(decision)
        if run_id is not None and self.store.find(run_id):
            self.store.client.log_dict(run_id, whole, f"promotion/{whole['when']}.json")
            self.store.client.set_tag(run_id, "promotion", cut(str(decision["result"]), TAG_LENGTH, " …"))
        if self._exists():
            self.store.client.set_registered_model_tag(self.name, *kept(whole))

    def decisions(self) -> list[str]:
        """The record as JSON texts, the oldest first."""
        champion = self.holder(CHAMPION)  # read first: a decision leaves its version's tag when it is in the record
        tags = dict(self.store.client.get_registered_model(self.name).tags) if self._exists() else {}
        if champion is not None and DECIDED in champion.tags:  # killed between the alias and the record
            tags |= [kept(json.loads(champion.tags[DECIDED]))]
        return [text for key, text in sorted(tags.items()) if key.startswith(DECISION)]

    def _last_taken(self) -> dict[str, Any] | None:
        """The last decision that moved the alias."""
        decisions: Iterator[dict[str, Any]] = map(json.loads, reversed(self.decisions()))
        return next((each for each in decisions if each.get("version")), None)

    def _first_of(self, numbers: list[str]) -> ModelVersion | None:
        there = {str(version.version): version for version in self.versions()}
        return next((there[number] for number in numbers if number in there), None)

    def _delete(self, version: ModelVersion) -> None:
        """Its model first: killed in between, the next call finds the version and does both again."""
        if model_id := logged_model(version):
            delete_model(self.store, model_id)
        self.store.client.delete_model_version(self.name, version.version)

    def _tag(self, version: ModelVersion, key: str, value: str) -> None:
        self.store.client.set_model_version_tag(self.name, version.version, key, value)

    def _exists(self) -> bool:
        return bool(self.store.client.search_registered_models(f"name = '{self.name}'"))


def line_of(version: ModelVersion) -> list[str]:
    """Numbers of the versions that were champion before that one, the newest first."""
    return str(version.tags.get(REPLACED, "")).split()


def line_with(champion: ModelVersion | None) -> list[str]:
    return [str(champion.version), *line_of(champion)][:LINE] if champion else []


def called(version: ModelVersion | None) -> str | None:
    return f"version {version.version}" if version else None


def in_hand(entity: ModelVersion | LoggedModel) -> bool:
    """Whether it belongs to a promotion elsewhere that has not ended."""
    return machine.may_work(entity.tags, entity.creation_timestamp)


def logged_model(version: ModelVersion) -> str | None:
    """The id of the model that the version was made from (the database store keeps it in the source alone)."""
    source = version.source or ""
    return source.removeprefix("models:/") if source.startswith("models:/m-") else None

"""The registry: versions of one registered model, which of them is champion, and what was decided.

`champion` is moved here and nowhere else. The truth is that alias and each version's tag `darkroom.replaced`, which
names the versions that were champion before it; `previous` follows from both. A decision stands in the version's tag
`darkroom.decided` before the alias moves. So a process that is killed between any two calls leaves the old champion or
the new one, and `tidy` puts the rest in order, the record too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from darkroom.errors import UserError
from darkroom.tracking import machine
from darkroom.tracking.decisions import stamped
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
from darkroom.tracking.versions import (
    CHAMPION,
    DECIDED,
    PREVIOUS,
    REPLACED,
    Versions,
    called,
    in_hand,
    line_of,
    line_with,
    logged_model,
)  # fmt: skip


class Registry(Versions):
    """One registered model, and who is its champion."""

    def tidy(self) -> list[str]:
        """Puts in order what a killed call left; returns a line for each thing done. It may be killed anywhere itself."""
        champion = self.holder(CHAMPION)
        crowned = champion.version if champion else None
        lines = [line for each in self.versions() for line in self._finish(each, crowned=each.version == crowned)]
        owned = {logged_model(version) for version in self.versions()}
        for model in incomplete_models(self.store):
            if in_hand(model):
                continue
            done = mark_complete if model.model_id in owned else delete_model
            done(self.store, model.model_id)
        if champion is not None:
            self._follow(champion)
            lines += self._notice(champion)
        return lines

    def register(self, files: ModelFiles, run_id: str, tags: Mapping[str, str]) -> ModelVersion:
        """A new version with the files and tags, marked incomplete until `crown`; nobody's alias moves."""
        client = self.store.client
        try:
            client.create_registered_model(self.name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            if not self._exists():
                raise UserError(
                    f"promote.name: {self.name!r} is a prompt at {self.store.address.shown}: choose another name"
                ) from None
        champion = self.holder(CHAMPION)
        tags = {**tags, **files.hashes(), **machine.this_process()}
        model_id = log_model(self.store, files, run_id, tags)
        # The database's own registry looks the model up at the process's address, not at its client's.
        with environment({"MLFLOW_TRACKING_URI": self.store.address.uri}):
            version = client.create_model_version(
                self.name,
                source=f"models:/{model_id}",
                run_id=run_id,
                model_id=model_id,
                description=files.card(),
                tags={**tags, STATE: INCOMPLETE, REPLACED: " ".join(line_with(champion))},
            )
        mark_complete(self.store, model_id)
        return version

    def announce(self, version: ModelVersion, decision: Mapping[str, Any]) -> dict[str, Any]:
        """Writes into the version what is about to make it champion; returns that, for `settle`."""
        decided = stamped({**decision, "version": str(version.version), "line": line_of(version)})
        self._tag(version, DECIDED, json.dumps(decided, ensure_ascii=False))
        return decided

    def settle(self, version: ModelVersion, decided: Mapping[str, Any]) -> None:
        """Records what was announced and has taken effect. A second time changes nothing."""
        self.record(decided, decided.get("run_id"))
        self.store.client.delete_model_version_tag(self.name, version.version, DECIDED)

    def crown(self, version: ModelVersion, over: str | None) -> None:
        """Makes the version champion in place of `over` ("version 3", or None), and that one previous.

        Promotions in one folder take turns; those of two machines on one server do not, and MLflow cannot compare and set.
        So the alias is read again before it moves and after. A call that falls between two calls of this one is not seen.
        Raises UserError where another version was made champion meanwhile; that one then stays.
        """
        moved = called(self.holder(CHAMPION)) == over and self._move(version, over)
        if moved:
            self._follow(version)
            self._tag(version, STATE, COMPLETE)
        if called(now := self.holder(CHAMPION)) != called(version):
            if not moved and version.tags.get(STATE) == INCOMPLETE:
                self._delete(version)
            self._overtaken(version, now)

    def champion_and_before(self) -> tuple[ModelVersion | None, ModelVersion]:
        """The champion and the version that was champion before it; None and the last one where the alias was removed.

        Raises UserError where there is none to go back to.
        """
        champion = self.holder(CHAMPION)
        if champion is None and (last := self.last_champion()):
            return None, last
        if champion is None:
            raise UserError(f"{self.name} has no champion at {self.store.address.shown}: nothing to go back from")
        earlier = self._before(champion)
        if earlier is None:
            raise UserError(
                f"version {champion.version} of {self.name} has no champion before it: there is none to go back to"
            )
        return champion, earlier

    def champion(self) -> ModelVersion | None:
        """The champion; None before the first one.

        Raises UserError where the alias, or its version, was removed by hand: anything would be better than nobody.
        """
        last = self.last_champion()  # read first: a promotion on another machine moves the alias before it is on record
        champion = self.holder(CHAMPION)
        if champion is None and last is not None:
            raise UserError(
                f"{self.name} has lost its champion: the alias or its version was removed by hand; python stages/promote.py"
                f" --rollback gives it to version {last.version}, another promote.name in params.yaml starts anew"
            )
        return champion

    def last_champion(self) -> ModelVersion | None:
        """The version that was champion last by the record, or the one before it where that was deleted."""
        last = self._last_taken()
        return self._first_of([last["version"], *last.get("line", [])]) if last else None

    def _move(self, version: ModelVersion, over: str | None) -> bool:
        """Whether the alias moved: of two calls that set an alias for the first time, the database takes one."""
        try:
            self.store.client.set_registered_model_alias(self.name, CHAMPION, version.version)
        except MlflowException:
            if called(self.holder(CHAMPION)) == over:
                raise
            return False
        return True

    def _overtaken(self, version: ModelVersion, now: ModelVersion | None) -> NoReturn:
        """Puts `previous` right, records it and says it."""
        if now is not None:
            self._follow(now)
        why = f"{called(now) or 'nobody'} became champion of {self.name} meanwhile, from another place"
        self.record({"result": f"not champion: {called(version)}, because {why}"}, version.run_id)
        raise UserError(
            f"{called(version)} is not champion: {why}; python stages/promote.py --history shows it, and promoting again"
            " compares with it"
        )

    def _before(self, version: ModelVersion) -> ModelVersion | None:
        """The champion before that version; where it was deleted the one before that."""
        return self._first_of(line_of(version))

    def _finish(self, version: ModelVersion, *, crowned: bool) -> Iterator[str]:
        """What a killed call began with the version: ended where the alias had moved, else taken back."""
        if in_hand(version):
            return
        incomplete, decided = version.tags.get(STATE) == INCOMPLETE, version.tags.get(DECIDED)
        if incomplete and not crowned:
            self._delete(version)
            yield f"version {version.version} of an interrupted promotion was removed"
            return
        if incomplete:
            self._tag(version, STATE, COMPLETE)
        if decided and crowned:
            self.settle(version, json.loads(decided))
            yield f"an interrupted decision was recorded: {json.loads(decided)['result']}"
        elif decided:
            self.store.client.delete_model_version_tag(self.name, version.version, DECIDED)

    def _notice(self, champion: ModelVersion) -> Iterator[str]:
        """Records that the alias was moved by hand (MLflow's page, its client), or by two promotions in the same moment."""
        last, number = self._last_taken(), str(champion.version)
        if last and last["version"] != number and called(self.holder(CHAMPION)) == called(champion):
            was = f"was version {last['version']}"
            result = f"found version {number} champion ({was}): moved by hand, or by two at once"
            self.record({"result": result, "version": number, "line": line_of(champion)}, None)
            yield result

    def _follow(self, champion: ModelVersion) -> None:
        """Lets the alias `previous` name the champion before this one, or nobody."""
        earlier, now = self._before(champion), self.holder(PREVIOUS)
        if earlier is not None and (now is None or now.version != earlier.version):
            self.store.client.set_registered_model_alias(self.name, PREVIOUS, earlier.version)
        elif earlier is None and now is not None:
            self.store.client.delete_registered_model_alias(self.name, PREVIOUS)

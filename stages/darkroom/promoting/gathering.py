"""The facts of a decision, from the candidate's files, the store and the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from darkroom.errors import UserError
from darkroom.packed import PackedSet
from darkroom.promoting.candidate import Candidate, stage_records
from darkroom.promoting.facts import Facts, Scored
from darkroom.promoting.scoring import score

if TYPE_CHECKING:
    from darkroom.tracking.registry import Registry


def gather(packed: PackedSet, candidate: Candidate, registry: Registry) -> Facts:
    """Candidate and champion scored on the test split of `packed`, with what is recorded of the candidate."""
    version = registry.champion()
    own = score("the candidate", candidate.onnx, packed)
    return Facts(
        stages=stage_records(registry.store, candidate),
        hashes=candidate.hashes | {"export/model.onnx": own.model_sha256},
        candidate=own,
        champion=_champion(str(version.version), packed, registry) if version else None,
        test=packed.meta,
        labels=np.asarray(packed.split("test").labels),
        latency_ms=candidate.latency_ms,
    )


def _champion(version: str, packed: PackedSet, registry: Registry) -> Scored:
    """The champion scored again, from its registered file: never two numbers from two test sets."""
    from darkroom.tracking.fetching import fetch_model

    name = f"version {version}"
    try:
        path = fetch_model(registry.store, f"models:/{registry.name}/{version}", "onnx").path
        return score(name, path, packed)
    except UserError as error:
        return Scored(name, [], "", "", problem=f"{name} cannot be compared with: {error}")

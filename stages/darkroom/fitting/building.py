"""From parameters to a session, and to the name of its checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from darkroom.door import say
from darkroom.files import sha256_bytes, sha256_code
from darkroom.models import NetworkSpec, SavedModel, check_image_size, network_spec
from darkroom.packed import Meta, PackedSet
from darkroom.params import Augment, Model, Train, flatten
from darkroom.training import (
    Augmentation,
    Outcome,
    Pictures,
    Recipe,
    Session,
    World,
    choose_device,
    choose_precision,
    set_threads,
    start_network,
)

SHAPELESS = {
    "accumulate", "device", "devices", "threads", "checkpoint_every", "checkpoint_keep", "finished_gb", "debug", "on_oom",
    "grad_checkpoint",
}  # fmt: skip
"""Keys of `train` that shape no result: a checkpoint of other values serves as well."""
OPEN_ENDED = ("constant", "plateau")
"""Schedules that do not look ahead: with more epochs a training of theirs goes on."""


@dataclass(frozen=True)
class Plan:
    """A training that is asked for."""

    packed: PackedSet
    augment: Augment
    model: Model
    train: Train
    init: SavedModel | None = None

    @property
    def open_ended(self) -> bool:
        return self.train.schedule in OPEN_ENDED

    def values(self) -> dict[str, Any]:
        """Flattened, as the run holds them."""
        sections = {"augment": self.augment, "model": self.model, "train": self.train}
        return flatten({name: section.model_dump() for name, section in sections.items()})

    def settled(self, outcome: Outcome) -> dict[str, Any]:
        """What this machine took for each `auto` of `train`, as params.yaml would say it: its choice may differ elsewhere."""
        chosen = {
            "threads": outcome.threads,
            "precision": outcome.precision,
            "channels_last": outcome.channels_last,
            "device": outcome.device,
            "devices": outcome.processes,
            "compile": "on" if outcome.compiled else "off",
        }
        return {f"train.{key}": value for key, value in chosen.items() if getattr(self.train, key) == "auto"}

    def spec(self) -> NetworkSpec:
        return spec_of(self.model, self.packed.meta)

    def fingerprint(self, *, with_epochs: bool | None = None) -> str:
        """A hash of all that shapes the result: settings, data, starting weights and code.

        `epochs` is in it where the schedule depends on it, unless `with_epochs` says otherwise.
        """
        here = Path(__file__).resolve().parents[1]
        counted = not self.open_ended if with_epochs is None else with_epochs
        left_out = SHAPELESS if counted else SHAPELESS | {"epochs"}
        shaping = {
            "augment": self.augment.model_dump(),
            "model": self.model.model_dump(exclude={"init"}),
            "train": self.train.model_dump(exclude=left_out)
            | {"precision": choose_precision(self.train.precision, choose_device(self.train.device))},
            "init": self.init.model_sha256 if self.init else None,
            "data": self.packed.meta.sha256,
            "code": sha256_code(here / "training", here / "models"),
        }
        return sha256_bytes(json.dumps(shaping, sort_keys=True).encode())[:32]

    def session(self, threads: Literal["auto"] | int, world: World, *, train: Pictures | None = None) -> Session:
        """`train` takes the place of the training split. Raises UserError where device, network and pictures do not fit."""
        spec = self.spec()
        check_image_size(spec)
        set_threads(threads)
        follows = not world.leads  # and gets the leader's weights
        start = start_network(
            spec,
            seed=self.train.seed,
            pretrained=self.model.pretrained and not follows,
            init=None if follows else self.init,
            freeze=self.model.freeze == "backbone",
        )
        for note in start.notes:
            say(note)
        return Session(
            start.network,
            train or self.packed.split("train"),
            self.packed.split("val"),
            recipe=Recipe(**self.train.model_dump(include={field.name for field in fields(Recipe)})),
            augmentation=Augmentation(**self.augment.model_dump()),
            num_classes=spec.num_classes,
            mean=self.packed.meta.mean,
            std=self.packed.meta.std,
            world=world,
        )


def spec_of(model: Model, meta: Meta) -> NetworkSpec:
    """The network that the parameters and the pictures describe."""
    return network_spec(
        model.name,
        width=model.width,
        blocks=model.blocks,
        dropout=model.dropout,
        channels=meta.channels,
        image_size=meta.image_size,
        num_classes=len(meta.classes),
    )

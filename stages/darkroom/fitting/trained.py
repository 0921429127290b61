"""What a finished training leaves, and the files that are made of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from darkroom.models import NetworkSpec, Preprocessing, SavedModel
from darkroom.packed import Meta
from darkroom.training import EpochRecord, Outcome

COLUMNS = ("epoch", "step", "train_loss", "val_loss", "val_accuracy", "lr", "images_per_s", "seconds")
"""of plots/training/epochs.csv"""


@dataclass(frozen=True)
class Trained:
    """What a finished training leaves."""

    outcome: Outcome
    epochs: list[EpochRecord]
    run_id: str
    """of the run that trained it"""

    def plain(self) -> dict[str, Any]:
        """As a checkpoint holds it."""
        return {
            "outcome": vars(self.outcome),
            "epochs": [asdict(record) for record in self.epochs],
            "run_id": self.run_id,
        }

    @classmethod
    def of(cls, values: dict[str, Any]) -> Trained:
        """What `plain` gave."""
        return cls(Outcome(**values["outcome"]), [EpochRecord(**each) for each in values["epochs"]], values["run_id"])

    def numbers(self) -> dict[str, Any]:
        """The scores and counts, without the weights; named as in the run, where train_loss is that of a step."""
        named = {"train_loss": "epoch_train_loss"}
        left_out = ("weights", "channels_last")
        return {named.get(key, key): value for key, value in vars(self.outcome).items() if key not in left_out}

    def table(self) -> str:
        """The epochs as CSV, which `dvc plots` draws."""
        rows = [",".join(str(getattr(record, column)) for column in COLUMNS) for record in self.epochs]
        return "\n".join([",".join(COLUMNS), *rows]) + "\n"

    def saved_model(self, network: NetworkSpec, meta: Meta, run_id: str) -> SavedModel:
        """The model that leaves the train stage; `run_id` is of the run that holds it."""
        return SavedModel.of(
            network=network,
            weights=self.outcome.weights,
            classes=meta.classes,
            preprocessing=Preprocessing(meta.image_size, meta.channels, meta.resize, meta.mean, meta.std),
            temperature=self.outcome.temperature,
            run_id=run_id,
            data_sha256=meta.sha256,
            made_with={
                "torch": str(torch.__version__),  # a class of its own, which weights_only refuses to load
                "cpu_capability": torch.backends.cpu.get_cpu_capability(),
                "threads": self.outcome.threads,
                "precision": self.outcome.precision,
                "device": self.outcome.device,
            },
        )

"""What each of several processes runs in test_distributed: a small session, told to a file by the one that leads.

torchrun --standalone --nproc-per-node 2 tests/joined.py RESULT.json '{"accumulate": 2}' [--stop STEP RANK]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stages"))

from darkroom.files import write_json
from darkroom.training import Augmentation, Session, StepRecord, join, start_network
from sessions import digits, recipe, small


def main() -> None:
    result, settings, *stop = sys.argv[1:]
    changes = json.loads(settings)
    spec = small(changes.pop("network", "simple_cnn"))
    torch.set_num_threads(1)
    with join(torch.device("cpu")) as world:
        chosen = recipe(**changes)
        session = Session(
            # the others begin with weights of their own, and must get the leader's
            start_network(spec, seed=world.rank).network, digits(0, 141), digits(141, 241), recipe=chosen,
            augmentation=Augmentation(crop_padding=1, flip=True, mixup=0.2), num_classes=10, mean=[0.3], std=[0.35],
            world=world,
        )  # fmt: skip
        steps, epochs = [], []
        for record in session.run():
            if isinstance(record, StepRecord):
                steps.append((record.loss, record.grad_norm))
            else:
                epochs.append((record.train_loss, record.val_loss, record.val_accuracy))
            session.wants_stop = bool(stop) and session.progress.steps >= int(stop[0]) and world.rank == int(stop[1])
            if session.stops:
                break
        outcome = session.result()
        weights = {key: value.double().sum().item() for key, value in outcome.weights.items()}
        ranks = world.gather((session.progress.steps, weights, outcome.val_loss, outcome.temperature))
        if world.leads:
            told = {"steps": steps, "epochs": epochs, "ranks": ranks, "processes": outcome.processes}
            write_json(Path(result), told)


if __name__ == "__main__":
    main()

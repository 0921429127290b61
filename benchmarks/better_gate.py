"""What the gate `better` lets through: pairs of the same settings with other seeds, and pairs that are truly apart.

    python benchmarks/better_gate.py [--quick] [--same 20] [--apart 10]

Each side of a pair is one setting trained with three seeds of its own on 3,000 pictures of Fashion-MNIST, by the train stage
and recorded, and scored on 5,000 test pictures, as promote.py --seeds 3 does. Exits with 1 where more than a tenth of the
pairs of the same setting would be promoted, or a pair of settings at least 1.5 points apart would not.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from comparing import REPOSITORY, arguments, fashion, show
from darkroom.packed import PackedSet
from darkroom.params import Params, read_params, with_values
from darkroom.promoting.scoring import answers_of_checkpoint
from darkroom.promoting.seeds import FEWEST, Answers, Beside, beside
from darkroom.tracking import open_store
from darkroom.tracking.store import Store
from rivals import Task
from train import train_with
from training_speed import packed

LEVEL, GAP = 0.05, 0.015
WEAK = {
    "model.name": "simple_cnn", "model.blocks": "auto", "model.width": 8, "train.epochs": 3, "train.batch_size": 64, "train.optimizer": "adamw",
    "train.lr": 3e-3, "train.warmup_epochs": 0.5, "train.ema_decay": 0.0, "train.precision": "fp32", "augment.crop_padding": 0,
    "tracking.system_metrics": False,
}  # fmt: skip
STRONG = WEAK | {"model.width": 24, "train.epochs": 6}


@dataclass(frozen=True)
class Bench:
    """Trains and scores."""

    pictures: PackedSet
    store: Store
    params: Params
    folder: Path
    seeds: Iterator[int]
    """each is used once"""

    def side(self, values: dict[str, object]) -> list[Answers]:
        """The networks of one setting."""
        return [self.network(values | {"train.seed": next(self.seeds)}) for _ in range(FEWEST)]

    def network(self, values: dict[str, object]) -> Answers:
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
            numbers = train_with(
                with_values(self.params, values), packed=self.pictures, store=self.store, out=Path(out),
                checkpoints=self.folder / ".checkpoints",
            )  # fmt: skip
        return answers_of_checkpoint(self.store, numbers["mlflow_run_id"], self.pictures)

    def pair(self, own: dict[str, object], other: dict[str, object]) -> Beside:
        found = beside(self.side(own), self.side(other), self.pictures.split("test").labels, "accuracy")
        print(f"  {found.own:.4f} beside {found.other:.4f}: p {found.p:.3f}", flush=True)
        return found


def measured(same: int, apart: int) -> tuple[list[Beside], list[Beside]]:
    task = Task(fashion("train").first(3000), fashion("t10k").first(5000), 0, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "packed").mkdir()
        params = with_values(read_params(REPOSITORY / "params.yaml"), {"tracking.system_metrics": False})
        pictures, store = packed(task, folder / "packed"), open_store(params.tracking, folder)
        bench = Bench(pictures, replace(store, root=folder), params, folder, count())
        return [bench.pair(WEAK, WEAK) for _ in range(same)], [bench.pair(STRONG, WEAK) for _ in range(apart)]


def main() -> None:
    wanted = arguments(__doc__, same=20, apart=10)
    if wanted.quick:
        wanted.same, wanted.apart = 3, 2
    same, apart = measured(wanted.same, wanted.apart)
    false, true = (sum(pair.p < LEVEL for pair in pairs) for pairs in (same, apart))
    gaps = [pair.gain for pair in apart]
    show(
        ["pairs", "promoted", "gain of the means"],
        [
            [f"{len(same)} of the same setting", str(false), f"{min(p.gain for p in same):+.4f} to {max(p.gain for p in same):+.4f}"],
            [f"{len(apart)} of two settings", str(true), f"{min(gaps):+.4f} to {max(gaps):+.4f}"],
        ],
    )  # fmt: skip
    if false > max(len(same) // 10, 1) or any(pair.p >= LEVEL for pair in apart if pair.gain >= GAP):
        sys.exit("error: the gate does not keep its promise")


if __name__ == "__main__":
    main()

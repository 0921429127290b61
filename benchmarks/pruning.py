"""A sweep that prunes beside random search that does not: what each finds on Fashion-MNIST, and for how many epochs.

    python benchmarks/pruning.py [--quick] [--seeds 5] [--trials 27] [--epochs 9]

`python stages/sweep.py` as it comes (TPE, successive halving) and with `sweep.sampler: random`, `sweep.pruner: none`, on the
same 4 parameters of a small network and 2,500 pictures, once for each seed; 4,000 other pictures of the training split
validate. Writes docs/pruning.png. Exits with 1 where the mean of the sweep's best validation accuracies is more than one
standard error below random search's, or its epochs are more than half.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comparing import MEAN, REPOSITORY, STD, Labelled, arguments, fashion, show
from darkroom.packed import SPLITS, Meta, PackedSet, write_meta
from darkroom.params import as_yaml, read_params, with_values

PICTURE = REPOSITORY / "docs/pruning.png"
LARGEST_SHARE = 0.5
"""of random search's epochs that the sweep may take"""
NUM_TRAIN, NUM_VAL = 2500, 4000
SWEEP, RANDOM = "the sweep", "random search"
WAYS: dict[str, dict[str, Any]] = {RANDOM: {"sweep.sampler": "random", "sweep.pruner": "none"}, SWEEP: {}}
VALUES: dict[str, Any] = {
    "data.name": "fashion_mnist",
    "model.name": "simple_cnn", "model.blocks": "auto", "train.precision": "fp32", "train.warmup_epochs": 0,
    "augment.crop_padding": 0, "tracking.system_metrics": False,
    "sweep.space": {
        "train.lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "train.weight_decay": {"low": 1e-3, "high": 1.0, "log": True},
        "train.batch_size": {"choices": [32, 64, 128, 256]},
        "model.width": {"low": 4, "high": 12, "step": 4},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Searched:
    """One study, in the order in which its trials ended."""

    epochs: NDArray[np.int64]
    """trained up to the end of each trial"""
    best: NDArray[np.float64]
    """highest validation accuracy of the complete trials until then; 0 before the first"""

    def after(self, epochs: NDArray[np.int64]) -> NDArray[np.float64]:
        """The best after so many epochs; NaN before there is one."""
        found = np.concatenate([[0.0], self.best])[np.searchsorted(self.epochs, epochs, side="right")]
        return np.where(found > 0, found, np.nan)


Found = Mapping[str, Sequence[Searched]]
"""by way, one a seed"""


def make_project(folder: Path, num_train: int, epochs: int, trials: int) -> None:
    """params.yaml and data/packed, as prepare would leave them; the test split is a single picture that nobody opens."""
    given = with_values(
        read_params(REPOSITORY / "params.yaml"), VALUES | {"train.epochs": epochs, "sweep.trials": trials}
    )
    (folder / "params.yaml").write_text("".join(f"{line}\n" for line in _lines(given.model_dump())))
    train, packed = fashion("train"), folder / "data/packed"
    packed.mkdir(parents=True)
    ends = {"train": (0, num_train), "val": (num_train, num_train + NUM_VAL), "test": (num_train + NUM_VAL,) * 2}
    parts = {name: Labelled(train.images[start:end], train.labels[start:end]) for name, (start, end) in ends.items()}
    for name, part in parts.items():
        np.save(packed / f"{name}.images.npy", part.images)
        np.save(packed / f"{name}.labels.npy", part.labels)
    counts: dict[str, list[int]] = {name: np.bincount(parts[name].labels, minlength=10).tolist() for name in SPLITS}
    meta = Meta("fashion_mnist", [str(n) for n in range(10)], 28, 1, "crop", [MEAN], [STD], counts, "0" * 64, {})
    hashes: dict[str, str] = {name: PackedSet(packed, meta).split(name).sha256() for name in SPLITS}
    write_meta(packed, replace(meta, split_sha256=hashes))


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [
        line
        for section, keys in values.items()
        for line in (f"{section}:", *(f"  {key}: {as_yaml(value)}" for key, value in keys.items()))
    ]


def searched(folder: Path, way: str, seed: int) -> Searched:
    """Runs the sweep in a process of its own, as a person does."""
    study = f"{way} {seed}"
    values = WAYS[way] | {"sweep.seed": seed, "train.seed": seed}
    options = [part for key, value in values.items() for part in ("-S", f"{key}={as_yaml(value)}")]
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "stages/sweep.py"), "--study", study, "-S", "sweep.confirm.top=0", *options],
        cwd=folder, env=os.environ | {"DVC_ROOT": str(folder)}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"error: {study} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    rmtree(folder / ".checkpoints")  # the other way's first points are the same, and would be used as they are
    found = read_study(folder, study)
    print(f"  {study}: {found.best[-1]:.4f} for {found.epochs[-1]} epochs", file=sys.stderr, flush=True)
    return found


def read_study(folder: Path, name: str) -> Searched:
    import optuna

    from darkroom.sweeping.standing import counts

    study = optuna.load_study(study_name=name, storage=f"sqlite:///{folder / 'optuna.db'}")
    trials = sorted(filter(counts, study.trials), key=_ended)
    values = [trial.value if trial.state.name == "COMPLETE" else 0.0 for trial in trials]
    epochs = np.cumsum([trial.last_step or 0 for trial in trials])
    return Searched(epochs, np.maximum.accumulate(np.array(values, dtype=np.float64)))


def _ended(trial: Any) -> float:
    return float(trial.datetime_complete.timestamp())


def bests(searches: Sequence[Searched]) -> list[float]:
    return [float(search.best[-1]) for search in searches]


def spent(searches: Sequence[Searched]) -> int:
    return sum(int(search.epochs[-1]) for search in searches)


def standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def draw(found: Found, path: Path) -> None:
    """Mean of the best so far, with its standard error, over the epochs trained so far."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for way, searches in found.items():
        epochs = np.arange(1, max(int(search.epochs[-1]) for search in searches) + 1)
        curves = np.array([search.after(epochs) for search in searches])
        mean, error = curves.mean(axis=0), curves.std(axis=0, ddof=1) / math.sqrt(len(curves))
        axes.plot(epochs, mean, label=f"{way}: {mean[-1]:.4f} for {spent(searches) / len(searches):.0f} epochs")
        axes.fill_between(epochs, mean - error, mean + error, alpha=0.2)
    axes.set(
        xlabel="epochs trained, all trials together", ylabel="best validation accuracy so far",
        title=f"Fashion-MNIST, 4 parameters: mean and standard error of {len(found[SWEEP])} seeds",
    )  # fmt: skip
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120, bbox_inches="tight")


def broken(found: Found) -> list[str]:
    """What was promised and is not so."""
    mean, least = statistics.mean(bests(found[SWEEP])), statistics.mean(bests(found[RANDOM]))
    least -= standard_error(bests(found[RANDOM]))
    share = spent(found[SWEEP]) / spent(found[RANDOM])
    print(f"\nthe sweep's mean {mean:.4f} (promised: at least {least:.4f}, random search's less its standard error)")
    print(f"for {share:.2f} of its epochs (promised: at most {LARGEST_SHARE})")
    faults = {"the mean is too low": mean < least, "too many epochs": share > LARGEST_SHARE}
    return [what for what, is_so in faults.items() if is_so]


def main() -> None:
    wanted = arguments(__doc__, seeds=5, trials=27, epochs=9)
    seeds, trials, epochs = (2, 6, 3) if wanted.quick else (wanted.seeds, wanted.trials, wanted.epochs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_project(folder, 500 if wanted.quick else NUM_TRAIN, epochs, trials)
        found: dict[str, list[Searched]] = {way: [] for way in WAYS}
        for seed in range(seeds):
            for way, searches in found.items():
                searches.append(searched(folder, way, seed))
        draw(found, folder / "pruning.png" if wanted.quick else PICTURE)
    rows = [[way, *(f"{best:.4f}" for best in bests(found[way])), f"{statistics.mean(bests(found[way])):.4f}",
             f"{standard_error(bests(found[way])):.4f}", f"{spent(found[way]) / seeds:.0f}"] for way in WAYS]  # fmt: skip
    numbers = [f"seed {seed}" for seed in range(seeds)]
    show([f"{trials} trials of {epochs} epochs", *numbers, "mean", "standard error", "epochs of a study"], rows)
    faults = broken(found)
    if faults and not wanted.quick:
        sys.exit("error: " + ", ".join(faults))


if __name__ == "__main__":
    main()

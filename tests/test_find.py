"""find.py: a learning rate, the largest micro-batch, one batch by heart; params.yaml changes when asked alone."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from darkroom.errors import UserError
from darkroom.finding import batch as batches
from darkroom.finding.batch import Fit, computed, tried
from darkroom.finding.labels import likely_errors
from darkroom.finding.lr import FEWEST, Curve, range_test
from darkroom.finding.overfit import overfit
from darkroom.fitting import Plan
from darkroom.packed import PackedSet
from darkroom.params import Params, with_values
from darkroom.training import ALONE
from digits import pack_digits
from find import find_labels, find_lr
from pipelines import REPOSITORY
from stores import points, store_at

SMALL = {
    "model.name": "simple_cnn",
    "model.width": 4,
    "model.blocks": "auto",
    "train.threads": 1,
    "train.warmup_epochs": 0,
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    return pack_digits(tmp_path_factory.mktemp("packed") / "data/packed")


def plan(packed: PackedSet, params: Params, **changes: object) -> Plan:
    values = with_values(params, SMALL | {name.replace("__", "."): value for name, value in changes.items()})
    return Plan(packed, values.augment, values.model, values.train)


def test_the_suggestion_is_where_the_loss_falls_fastest() -> None:
    lrs = [10 ** (-6 + 7 * step / 99) for step in range(100)]
    losses = [2.3 if lr < 1e-3 else max(0.3, 2.3 - (torch.tensor(lr / 1e-3).log10().item()) ** 2) for lr in lrs]
    after = [*losses[:80], *(loss + 0.5 * n for n, loss in enumerate(losses[80:]))]
    assert 0.01 < Curve(lrs, after, after).suggestion < 0.05


@pytest.mark.parametrize(("optimizer", "low", "high"), [("adamw", 1e-4, 0.5), ("sgd", 1e-3, 5.0)])
def test_a_learning_rate_that_is_found_trains(
    packed: PackedSet, params: Params, optimizer: str, low: float, high: float
) -> None:
    curve = range_test(plan(packed, params, train__optimizer=optimizer), 120)
    assert FEWEST < len(curve.lr) <= 120
    assert curve.lr == sorted(curve.lr)
    assert low < curve.suggestion < high


def test_the_curve_is_drawn_and_recorded_in_a_run_of_its_own(packed: PackedSet, params: Params, tmp_path: Path) -> None:
    store = store_at(tmp_path)
    curve = find_lr(plan(packed, params), store, steps=60, out=tmp_path / "find")
    with Image.open(tmp_path / "find/lr.png") as picture:
        assert picture.width > 500
    rows = list(csv.DictReader((tmp_path / "find/lr.csv").read_text().splitlines()))
    assert [float(row["lr"]) for row in rows] == curve.lr
    [run] = store.client.search_runs([store.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "lr range test")
    assert points(store, run.info.run_id, "suggested_lr") == [(0, curve.suggestion)]
    assert {file.path for file in store.client.list_artifacts(run.info.run_id, "find")} == {
        "find/lr.csv",
        "find/lr.png",
    }


def test_a_batch_is_learned_by_heart(packed: PackedSet, params: Params) -> None:
    learned = overfit(plan(packed, params, train__lr=0.01, augment__flip=True, augment__mixup=0.3, model__dropout=0.5))
    assert learned.pictures == 64
    assert learned.last <= 0.05 < 1 < learned.first
    assert learned.steps < 300


def test_a_network_that_does_not_learn_is_told(packed: PackedSet, params: Params) -> None:
    with pytest.raises(
        UserError, match=r"does not learn 64 pictures by heart: the loss went from 2\.\d+ to 2\.\d+ in 300"
    ):
        overfit(plan(packed, params, train__lr=1e-9))


def test_on_a_cpu_the_micro_batch_is_computed(
    packed: PackedSet, params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = plan(packed, params).session(1, ALONE)
    memory = psutil.virtual_memory()
    monkeypatch.setattr(batches.psutil, "virtual_memory", lambda: memory._replace(available=int(2e8)))
    some = computed(session)
    monkeypatch.setattr(batches.psutil, "virtual_memory", lambda: memory._replace(available=int(4e8)))
    assert computed(session).pictures == pytest.approx(2 * some.pictures, rel=0.01)
    # 8×8 maps of 4 and 8 channels in float32, before and after their ReLU, and 4×4 maps of 8: some 10 kB a picture
    assert 1e3 < 0.8 * 2e8 / some.pictures < 1e5
    monkeypatch.setattr(batches.psutil, "virtual_memory", lambda: memory._replace(available=10))
    with pytest.raises(UserError, match="not even 1 pictures fit"):
        computed(session)


def test_on_a_gpu_it_is_tried(packed: PackedSet, params: Params) -> None:
    session = plan(packed, params).session(1, ALONE)

    def refuse(_module: nn.Module, inputs: tuple[Tensor]) -> None:
        if len(inputs[0]) > 1500:  # more than there are pictures
            raise torch.OutOfMemoryError("CUDA out of memory")

    session.network.register_forward_pre_hook(refuse)
    assert 1500 / 1.125 - 1 <= tried(session).pictures <= 1500
    session.network.register_forward_pre_hook(
        lambda _module, inputs: refuse(_module, (inputs[0].repeat(2000, 1, 1, 1),))
    )
    with pytest.raises(UserError, match="not even 1 pictures fit"):
        tried(session)


def test_accumulate_is_the_least_that_fits() -> None:
    assert [Fit(60, "").accumulate(size) for size in (1, 60, 61, 128)] == [1, 1, 2, 3]


def test_the_script_changes_params_yaml_when_asked_alone(packed: PackedSet, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/packed").symlink_to(packed.folder)
    text = (REPOSITORY / "params.yaml").read_text()
    (tmp_path / "params.yaml").write_text(text)

    def run(*options: str) -> str:
        command = [sys.executable, str(REPOSITORY / "stages/find.py"), *options]
        for key, value in SMALL.items():
            command += ["-S", f"{key}={value}"]
        environment = {"PATH": "/usr/bin:/bin", "DVC_ROOT": str(tmp_path), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    told = run("lr", "--steps", "40")
    assert "is where the loss falls fastest" in told
    assert (tmp_path / "params.yaml").read_text() == text
    assert "+  lr: " in run("lr", "--steps", "40", "--apply")
    changed = (tmp_path / "params.yaml").read_text()
    assert changed != text
    assert "ok: 64 pictures are learned by heart" in run("overfit", "-S", "train.lr=0.01")
    assert "fit in a micro-batch (computed: " in run("batch")
    assert (tmp_path / "params.yaml").read_text() == changed


def test_labels_that_were_changed_are_found(packed: PackedSet, params: Params, tmp_path: Path) -> None:
    """Of 40 changed labels most are named, with the right class, and hardly any true one is."""
    folder = tmp_path / "packed"
    shutil.copytree(packed.folder, folder)
    labels = np.load(folder / "train.labels.npy")
    changed = np.random.default_rng(0).choice(len(labels), 40, replace=False)
    wrong = labels.copy()
    wrong[changed] = (labels[changed] + 3) % 10
    np.save(folder / "train.labels.npy", wrong)
    asked = plan(PackedSet(folder, packed.meta), params, train__epochs=8, model__width=16)
    suspects = find_labels(asked, store_at(tmp_path), folds=3, out=tmp_path / "find")
    found = {each.index: each for each in suspects}
    assert len(found.keys() & set(changed.tolist())) >= 34
    assert len(found) <= 60
    hits = [found[i] for i in changed.tolist() if i in found]
    assert np.mean([each.suggested == str(labels[each.index]) for each in hits]) > 0.8
    assert all(each.label == str(wrong[each.index]) and each.source == f"all/{each.index}" for each in hits)
    credible = [each.label_probability for each in suspects]
    assert credible == sorted(credible), "the least credible first"
    rows = list(csv.DictReader((tmp_path / "find/labels.csv").read_text().splitlines()))
    assert [int(row["index"]) for row in rows] == [each.index for each in suspects]
    with Image.open(tmp_path / "find/labels.png") as picture:
        assert picture.width > 300


def test_a_class_of_one_picture_cannot_be_judged(packed: PackedSet, params: Params, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    shutil.copytree(packed.folder, folder)
    labels = np.load(folder / "train.labels.npy")
    labels[1:][labels[1:] == labels[0]] = (labels[0] + 1) % 10
    np.save(folder / "train.labels.npy", labels)
    with pytest.raises(UserError, match="a class has 1 training picture: at least 2 are needed"):
        likely_errors(plan(PackedSet(folder, packed.meta), params), 3, sources=[""] * len(labels))

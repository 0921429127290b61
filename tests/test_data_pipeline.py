"""download and prepare as DVC runs them: earlier results, own pictures, a temporary experiment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from darkroom.params import parse_yaml
from pipelines import Pipeline, clone, hashes

OWN = ["-S", "data.name=image_folder", "-S", "data.folder=data/own/pets"]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A clone with the two stages alone, the digits prepared, and own pictures that nothing tracks yet."""
    pipeline = clone(tmp_path_factory.mktemp("data") / "darkroom")
    stages = parse_yaml((pipeline.folder / "dvc.yaml").read_text())["stages"]
    both = {"stages": {name: stages[name] for name in ("download", "prepare")}}
    (pipeline.folder / "dvc.yaml").write_text(yaml.safe_dump(both))
    for label, name in enumerate(("cat", "dog")):
        for i in range(10):
            path = pipeline.folder / "data/own/pets" / name / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = np.random.default_rng(100 * label + i).integers(0, 256, (3, 4, 3), np.uint8)
            Image.fromarray(coarse).resize((60, 45)).save(path)
    pipeline.run("dvc", "repro")
    pipeline.commit("digits")
    return pipeline


def test_git_keeps_no_pictures_but_what_stands_for_them(pipeline: Pipeline) -> None:
    kept = pipeline.run("git", "ls-files", "data", "models").stdout.split()
    assert "data/own/README.md" in kept
    assert not [name for name in kept if name.endswith(".jpg")]


def test_a_second_time_nothing_runs(pipeline: Pipeline) -> None:
    assert "Running" not in pipeline.run("dvc", "repro").stdout


def test_a_refused_set_leaves_the_way_back(pipeline: Pipeline) -> None:
    """DVC deletes a stage's outs before it runs; the error says how they come back, and so they do."""
    before = hashes(pipeline.folder / "data/raw")
    done = pipeline.run("dvc", "exp", "run", "-S", "data.name=image_folder", "-S", "data.folder=tests", code=255)
    assert "data.folder: tests holds no pictures" in done.stderr
    assert "dvc checkout" in done.stderr
    pipeline.run("dvc", "checkout")
    assert hashes(pipeline.folder / "data/raw") == before


def test_a_temporary_experiment_sees_pictures_that_dvc_tracks(pipeline: Pipeline) -> None:
    pipeline.run("dvc", "add", "data/own/pets")
    pipeline.commit("pets")
    pictures = hashes(pipeline.folder / "data/own/pets")
    done = pipeline.run("dvc", "exp", "run", "--temp", "--name", "pets", *OWN)
    assert "image_folder, 2 classes, 64×64×3, 10 train, 2 val, 8 test" in done.stdout
    pipeline.run("dvc", "exp", "apply", "pets")
    numbers = pipeline.json("metrics/data.json")
    assert [entry["name"] for entry in numbers["classes"]] == ["cat", "dog"]
    assert hashes(pipeline.folder / "data/own/pets") == pictures
    assert pipeline.run("dvc", "status").stdout.strip() == "Data and pipelines are up to date."


def test_a_changed_picture_is_noticed(pipeline: Pipeline) -> None:
    """After the test above: the folder is a dependency."""
    path: Path = pipeline.folder / "data/own/pets/cat/0.jpg"
    path.unlink()
    Image.new("RGB", (60, 45), "red").save(path)
    assert "data/own/pets" in pipeline.run("dvc", "status", "download").stdout

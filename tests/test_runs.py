"""runs.py: a run's whole story, by any of its names, and the command that makes it again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from darkroom.errors import UserError
from pipelines import Pipeline, all_runs, changed
from runs import runs
from stores import store_at, tags


def told(pipeline: Pipeline, what: str) -> dict[str, object]:
    shown = pipeline.run("python", "stages/runs.py", "show", what, "--format", "json").stdout
    values: dict[str, object] = json.loads(shown)
    return values


def test_the_story_goes_from_the_pictures_to_the_files(pipeline: Pipeline) -> None:
    trained, test, data = (pipeline.json(f"metrics/{name}.json") for name in ("train", "test", "data"))
    values = told(pipeline, trained["mlflow_run_id"])
    assert values["run"] == {
        "id": trained["mlflow_run_id"], "name": all_runs(pipeline)[0].info.run_name, "status": "FINISHED"
    }  # fmt: skip
    assert values["stages"] == dict.fromkeys(("train", "evaluate", "export", "report"), "finished")
    assert values["data"] == {"name": "digits", "sha256": data["sha256"], "train": 970, "val": 108, "test": 719}
    assert values["code"] == {"commit": all_runs(pipeline)[0].data.tags["git.commit"], "uncommitted": False}
    assert values["model_sha256"] == trained["model_sha256"]
    assert values["scores"]["test_accuracy"] == test["accuracy"]
    assert {"export/", "model/", "params.yaml", "report/"} <= set(values["files"])
    text = pipeline.run("python", "stages/runs.py", "show", trained["mlflow_run_id"][:8]).stdout
    assert f"run {trained['mlflow_run_id']}" in text
    assert f"again      {values['again']}" in text


def test_a_versions_command_makes_the_same_weights_in_a_fresh_clone_elsewhere(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    with changed(pipeline, promote__name="story", promote__minimum=0.0):
        pipeline.run("python", "stages/promote.py")
    version = told(pipeline, "models:/story@champion")
    assert {"name": "story", "version": "1", "aliases": ["champion"]} in version["versions"], (
        "others may promote it too"
    )
    assert version["model_sha256"] == pipeline.json("metrics/train.json")["model_sha256"]
    command = version["again"]
    other = Pipeline(tmp_path / "elsewhere")
    subprocess.run(["git", "clone", "--quiet", pipeline.folder, other.folder], check=True)
    other.run("bash", "-c", f"{command} train")
    first, second = (
        torch.load(each.folder / "models/model.pt", weights_only=True)["weights"] for each in (pipeline, other)
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not (other.folder / ".checkpoints").resolve().is_relative_to(pipeline.folder)


def test_sweeps_continuations_and_reuse_are_followed_both_ways(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    with store.start("sweep", {}, name="sweep") as parent:
        pass
    with store.start("train", {"train.lr": 0.1}, parent=parent.run_id, name="trial 3") as trial:
        trial.reproduced_by({"train.threads": 2})
    with store.start("train", {"train.lr": 0.1}, name="chosen", tags={"darkroom.reuses": trial.run_id}) as chosen:
        pass
    assert runs(trial.run_id, store=store)["sweep"] == f"{parent.run_id} (sweep)"
    assert runs("sweep", store=store)["below"] == [f"{trial.run_id} (trial 3)"]
    assert runs(trial.run_id, store=store)["taken_over_by"] == [f"{chosen.run_id} (chosen)"]
    story = runs("chosen", store=store)
    assert story["trained_in"] == f"{trial.run_id} (trial 3)"
    assert story["again"] == tags(store, trial.run_id)["darkroom.reproduce"]
    assert "-S train.lr=0.1 -S train.threads=2" in story["again"]


def test_names_that_name_nothing_or_several(tmp_path: Path) -> None:
    store = store_at(tmp_path, experiment_name="twin")
    made = []
    for _ in range(2):
        with store.start("train", {}) as run:
            made.append(run.run_id)
    with pytest.raises(UserError, match=r"'twin' names 2 runs, give the id of one:\n  [0-9a-f]{32} twin FINISHED\n"):
        runs("twin", store=store)
    assert runs(made[0][:10], store=store)["run"]["id"] == made[0]
    assert runs(f"runs:/{made[1]}", store=store)["run"]["id"] == made[1]
    for absent in ("nobody's", "abcdef123", "f" * 32):
        with pytest.raises(UserError, match="names no run at sqlite:.*dvc exp show"):
            runs(absent, store=store)
    store.client.delete_run(made[0])
    with pytest.raises(UserError, match="names no run"):
        runs(made[0], store=store)
    with pytest.raises(UserError, match="the registry at .* has no such model"):
        runs("models:/darkroom@champion", store=store)
    with pytest.raises(UserError, match="names no model; use runs:/ID"):
        runs("models:/darkroom", store=store)

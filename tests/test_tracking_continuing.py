"""Which run a stage works on: the one that it belongs to, or a continuation that holds nothing untrue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from darkroom.tracking.store import Store
from stores import files, points, read, status, store_at, tags

TRAIN = {"train.lr": 0.1, "train.epochs": 3, "model.name": "mlp"}
EVALUATE = {"evaluate.batch_size": 512}
EXPORT = {"export.opset": 18}
SHA = "a" * 64


def write_params(folder: Path, values: Mapping[str, Any]) -> None:
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    (folder / "params.yaml").write_text(json.dumps(sections))


def train(store: Store, values: Mapping[str, Any] = TRAIN) -> str:
    with store.start("train", values) as run:
        series = run.series(store.root / f"{run.run_id}.jsonl")
        for step in range(20):
            series.add(step, {"train_loss": float(step)})
        run.metrics({"val_accuracy": 0.9})
        run.tags({"model.sha256": SHA})
        run.dataset(name="digits", sha256="d" * 64, source="data/raw", counts={"train": 9})
        run.text("weights", "model/model.pt")
    return run.run_id


def evaluate(
    store: Store, run_id: str, values: Mapping[str, Any] = EVALUATE, accuracy: float = 0.8, sha: str = SHA
) -> str:
    with store.join("evaluate", values, run_id=run_id, model_sha256=sha) as run:
        run.metrics({"test_accuracy": accuracy})
    return run.run_id


def export(store: Store, run_id: str, values: Mapping[str, Any] = EXPORT) -> str:
    with store.join("export", values, run_id=run_id, model_sha256=SHA) as run:
        run.metrics({"onnx_bytes": 1000})
    return run.run_id


def num_runs(store: Store) -> int:
    return len(store.client.search_runs([store.experiment_id]))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    write_params(tmp_path, TRAIN | EVALUATE | EXPORT)
    return store_at(tmp_path)


def test_all_stages_of_one_pipeline_share_a_run(store: Store):
    run_id = train(store)
    assert evaluate(store, run_id) == export(store, run_id) == run_id
    found = store.client.get_run(run_id).data
    assert found.params == {
        "train.lr": "0.1",
        "train.epochs": "3",
        "model.name": "mlp",
        "evaluate.batch_size": "512",
        "export.opset": "18",
    }
    assert found.metrics == {"train_loss": 19, "val_accuracy": 0.9, "test_accuracy": 0.8, "onnx_bytes": 1000}
    assert [found.tags[f"stage.{stage}"] for stage in ("train", "evaluate", "export")] == ["finished"] * 3
    assert status(store, run_id) == "FINISHED"
    assert num_runs(store) == 1


def test_a_stage_done_again_shows_its_newest_numbers(store: Store):
    run_id = train(store)
    evaluate(store, run_id, accuracy=0.8)
    assert evaluate(store, run_id, accuracy=0.7) == run_id
    assert store.client.get_run(run_id).data.metrics["test_accuracy"] == 0.7


def test_another_value_opens_a_continuation_that_carries_what_is_true(store: Store):
    run_id = train(store)
    evaluate(store, run_id, accuracy=0.8)
    export(store, run_id)
    write_params(store.root, TRAIN | EXPORT | {"evaluate.batch_size": 64})
    new = evaluate(store, run_id, {"evaluate.batch_size": 64}, accuracy=0.81)
    assert new != run_id
    found = store.client.get_run(new)
    assert found.data.params["evaluate.batch_size"] == "64"
    assert found.data.params["train.lr"] == "0.1"
    assert points(store, new, "train_loss") == points(store, run_id, "train_loss")
    assert points(store, new, "test_accuracy") == [(0, 0.81)], "not the numbers of the other value"
    assert found.data.metrics["onnx_bytes"] == 1000
    assert found.data.tags["darkroom.trained_by"] == run_id
    assert found.data.tags["darkroom.trained_commit"] == "c" * 40
    assert [found.data.tags[f"stage.{stage}"] for stage in ("train", "evaluate", "export")] == ["finished"] * 3
    assert found.inputs.dataset_inputs[0].dataset.name == "digits"
    links = json.loads(read(store, new, "trained_by.json"))
    assert f"runs:/{run_id}/model/model.pt" in links["artifacts"]
    assert store.client.get_run(run_id).data.metrics["test_accuracy"] == 0.8, "the earlier run stays as it was"


def test_a_change_of_two_stages_makes_one_continuation(store: Store):
    run_id = train(store)
    evaluate(store, run_id)
    export(store, run_id)
    changed_evaluate, changed_export = {"evaluate.batch_size": 64}, {"export.opset": 20}
    write_params(store.root, TRAIN | changed_evaluate | changed_export)
    new = evaluate(store, run_id, changed_evaluate)
    found = store.client.get_run(new).data
    assert "export.opset" not in found.params
    assert "onnx_bytes" not in found.metrics, "made with the other opset"
    assert "stage.export" not in found.tags
    assert export(store, run_id, changed_export) == new
    assert num_runs(store) == 2


def test_a_change_of_one_stage_after_another_goes_on_from_the_nearest(store: Store):
    run_id = train(store)
    evaluate(store, run_id)
    export(store, run_id)
    changed_evaluate, changed_export = {"evaluate.batch_size": 64}, {"export.opset": 20}
    write_params(store.root, TRAIN | changed_evaluate | EXPORT)
    first = evaluate(store, run_id, changed_evaluate, accuracy=0.81)
    write_params(store.root, TRAIN | changed_evaluate | changed_export)
    second = export(store, run_id, changed_export)
    assert len({run_id, first, second}) == 3
    found = store.client.get_run(second).data
    assert (found.params["evaluate.batch_size"], found.params["export.opset"]) == ("64", "20")
    assert found.metrics["test_accuracy"] == 0.81
    assert found.tags["darkroom.trained_by"] == run_id
    write_params(store.root, TRAIN | EVALUATE | EXPORT)
    assert evaluate(store, run_id) == run_id, "back to the first values, back to the first run"


def test_an_experiment_has_a_row_of_its_own_and_one_alone(store: Store):
    run_id = train(store)
    evaluate(store, run_id)
    owl = store_at(store.root, experiment_name="owl")
    first = evaluate(owl, run_id)
    assert first != run_id
    assert export(owl, run_id) == first
    found = store.client.get_run(first)
    assert found.info.run_name == "owl"
    assert found.data.tags["dvc.exp"] == "owl"
    assert num_runs(store) == 2
    assert evaluate(store, run_id) == run_id, "outside an experiment it is the run itself"


def test_a_run_of_an_experiment_is_joined_after_it_was_applied(store: Store):
    owl = store_at(store.root, experiment_name="owl")
    run_id = train(owl)
    assert evaluate(owl, run_id) == run_id
    assert evaluate(store, run_id) == run_id


@pytest.mark.parametrize("how", ["deleted", "never there"])
def test_a_run_that_is_gone_is_replaced_and_said_so(store: Store, capsys: pytest.CaptureFixture[str], how: str):
    run_id = train(store) if how == "deleted" else "f" * 32
    if how == "deleted":
        store.client.delete_run(run_id)
    locked = {
        "stages": {"train": {"params": {"params.yaml": {"train": {"lr": 0.1, "epochs": 3}, "model.name": "mlp"}}}}
    }
    (store.root / "dvc.lock").write_text(json.dumps(locked))
    new = evaluate(store, run_id)
    told = capsys.readouterr().out.splitlines()
    assert [line for line in told if run_id in line] == [
        f"run {run_id}, which trained this model, is not in the store at {store.address.shown}: run {new} replaces it"
    ]
    found = store.client.get_run(new)
    assert found.data.params == {
        "train.lr": "0.1",
        "train.epochs": "3",
        "model.name": "mlp",
        "evaluate.batch_size": "512",
    }
    assert found.data.tags["model.sha256"] == SHA
    assert found.data.tags["darkroom.trained_by"] == run_id
    assert export(store, run_id) == new, "the next stage finds the one that replaced it"


def test_numbers_of_other_weights_stay_apart(store: Store):
    run_id = train(store)
    new = evaluate(store, run_id, sha="b" * 64)
    assert new != run_id
    assert tags(store, new)["model.sha256"] == "b" * 64
    assert "train_loss" not in store.client.get_run(new).data.metrics


def test_params_yaml_of_the_run_stays_true(store: Store):
    """evaluate's own keys changed before it first ran: the file follows. Training's changed without training: it stays."""
    run_id = train(store)
    write_params(store.root, TRAIN | EXPORT | {"evaluate.batch_size": 64})
    assert evaluate(store, run_id, {"evaluate.batch_size": 64}) == run_id
    assert json.loads(read(store, run_id, "params.yaml"))["evaluate"]["batch_size"] == 64
    write_params(store.root, TRAIN | EXPORT | {"evaluate.batch_size": 64, "train.lr": 0.2})
    assert export(store, run_id) == run_id
    assert json.loads(read(store, run_id, "params.yaml"))["train"]["lr"] == 0.1


def test_a_stage_of_other_code_says_so_and_leaves_the_trainings_code_be(store: Store):
    run_id = train(store_at(store.root, diff="of training"))
    later = store_at(store.root, commit="e" * 40, diff="of evaluation")
    assert evaluate(later, run_id) == run_id
    assert read(store, run_id, "code.diff") == "of training"
    assert read(store, run_id, "code.evaluate.diff") == "of evaluation"
    assert (tags(store, run_id)["git.commit"], tags(store, run_id)["git.commit.evaluate"]) == ("c" * 40, "e" * 40)


def test_another_spelling_of_a_number_is_no_other_value(store: Store):
    with pytest.raises(KeyboardInterrupt), store.start("train", {"train.momentum": 1}) as run:
        raise KeyboardInterrupt
    with store.start("train", {"train.momentum": 1.0, "train.new": 2}, resume=run.run_id) as again:
        pass
    assert again.run_id == run.run_id
    assert store.client.get_run(run.run_id).data.params == {"train.momentum": "1", "train.new": "2"}


def test_a_run_killed_before_its_first_line_is_found(store: Store):
    """Between the run's creation and the first thing that the stage does with it."""
    run = store.start("train", TRAIN)
    assert {"darkroom.pid", "darkroom.host"} < tags(store, run.run_id).keys()


def test_an_interrupted_training_goes_on_in_its_run(store: Store):
    with pytest.raises(KeyboardInterrupt), store.start("train", TRAIN) as run:
        raise KeyboardInterrupt
    with store.start("train", TRAIN, resume=run.run_id) as again:
        pass
    assert again.run_id == run.run_id
    assert status(store, run.run_id) == "FINISHED"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"values": TRAIN | {"train.accumulate": 4, "train.lr": 0.2}}, "another train.lr"),
        ({"experiment_name": "owl"}, "DVC experiment (none)"),
        ({"experiment": "elsewhere"}, "belongs to another experiment"),
        ({"gone": True}, "not in the store any more"),
    ],
)
def test_an_interrupted_training_that_is_not_the_same_goes_on_in_a_new_run(
    store: Store, capsys: pytest.CaptureFixture[str], change: dict[str, Any], reason: str
):
    with pytest.raises(KeyboardInterrupt), store.start("train", TRAIN) as run:
        run.series(store.root / "spool.jsonl").add(1, {"train_loss": 1.0})
        raise KeyboardInterrupt
    if change.get("gone"):
        store.client.delete_run(run.run_id)
    names = {key: change[key] for key in ("experiment", "experiment_name") if key in change}
    other = store_at(store.root, **names)
    with other.start("train", change.get("values", TRAIN), resume=run.run_id) as again:
        again.series(store.root / "spool.jsonl").add(2, {"train_loss": 2.0})
    assert again.run_id != run.run_id
    assert reason in capsys.readouterr().out
    assert tags(other, again.run_id)["darkroom.trained_by"] == run.run_id
    assert points(other, again.run_id, "train_loss") == [(1, 1.0), (2, 2.0)], "the spool brings its series along"
    assert other.client.get_run(again.run_id).data.params["train.lr"] == str(change.get("values", TRAIN)["train.lr"])


def test_only_the_stage_that_failed_is_told_of(store: Store):
    run_id = train(store)
    with pytest.raises(RuntimeError), store.join("evaluate", EVALUATE, run_id=run_id, model_sha256=SHA):
        raise RuntimeError("no")
    found = tags(store, run_id)
    assert (found["stage.train"], found["stage.evaluate"]) == ("finished", "failed")
    assert status(store, run_id) == "FAILED"
    assert "errors/evaluate.txt" in files(store, run_id)

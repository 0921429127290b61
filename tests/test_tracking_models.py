"""MLflow's LoggedModels: whose numbers are whose, in the runs of every stage and in the registry."""

from __future__ import annotations

from pathlib import Path

from mlflow.entities import LoggedModel

from champions import candidate, packed_set, sha_of
from darkroom.tracking.models import TRAINED
from darkroom.tracking.store import Store
from pipelines import Pipeline, client_of
from promote import promote
from stores import points
from test_promote import gate

SHA = "a" * 64


def trained(store: Store) -> list[LoggedModel]:
    return list(store.client.search_logged_models([store.experiment_id], f"name = '{TRAINED}'"))


def numbers(model: LoggedModel) -> dict[str, tuple[float, str | None]]:
    """{name: (value, name of the pictures)}"""
    return {metric.key: (metric.value, metric.dataset_name) for metric in model.metrics or []}


def train(store: Store, **accuracy: float) -> str:
    with store.start("train", {"train.lr": 0.1}) as run:
        run.dataset(name="digits", sha256="d" * 64, source="data/packed", counts={"train": 5})
        run.metrics({"data_num_train": 5})
        run.model(SHA)
        run.metrics(accuracy)
    return run.run_id


def test_the_numbers_of_all_stages_are_the_models_on_the_runs_pictures(store: Store):
    run_id = train(store, val_accuracy=0.9)
    with store.join("evaluate", {"evaluate.tta": "none"}, run_id=run_id, model_sha256=SHA) as run:
        run.model(SHA)
        run.metrics({"test_accuracy": 0.8, "test_f1/cat": 0.7})
    (model,) = trained(store)
    assert (model.source_run_id, str(model.status), model.params["train.lr"]) == (run_id, "READY", "0.1")
    assert model.tags["model.sha256"] == SHA
    assert numbers(model) == {
        "val_accuracy": (0.9, "digits"), "test_accuracy": (0.8, "digits"), "test_f1/cat": (0.7, "digits"),
    }  # fmt: skip
    run = store.client.get_run(run_id)
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
    assert run.inputs.model_inputs == []


def test_a_continuation_takes_the_model_in(store: Store):
    """Its run did not train it; the model's page shows what both found."""
    first = train(store, val_accuracy=0.9)
    for tta, accuracy in (("none", 0.8), ("flip", 0.85), ("flip", 0.85)):
        with store.join("evaluate", {"evaluate.tta": tta}, run_id=first, model_sha256=SHA) as run:
            run.model(SHA)
            run.metrics({"test_accuracy": accuracy})
    assert run.run_id != first
    (model,) = trained(store)
    assert [each.model_id for each in store.client.get_run(run.run_id).inputs.model_inputs] == [model.model_id]
    assert store.client.get_run(run.run_id).outputs.model_outputs == []
    assert sorted((m.run_id == first, m.value) for m in model.metrics if m.key == "test_accuracy") == [
        (False, 0.85), (True, 0.8),
    ]  # fmt: skip


def test_the_same_weights_trained_again_are_the_same_model(store: Store):
    train(store, val_accuracy=0.9)
    train(store, val_accuracy=0.9)
    assert len(trained(store)) == 1


def test_a_number_that_stands_in_the_series_is_the_models_and_stays_one_point(store: Store, tmp_path: Path):
    with store.start("train", {}) as run:
        series = run.series(tmp_path / "series.jsonl")
        series.add(1, {"val_accuracy": 0.5})
        series.add(2, {"val_accuracy": 0.75})
        run.model(SHA)
        run.metrics({"val_accuracy": 0.75})
        run.metrics({"best_val_accuracy": 0.75}, step=2)
    assert points(store, run.run_id, "val_accuracy") == [(1, 0.5), (2, 0.75)]
    (model,) = trained(store)
    assert {(m.key, m.value, m.step) for m in model.metrics} == {
        ("val_accuracy", 0.75, 2),
        ("best_val_accuracy", 0.75, 2),
    }


def test_a_promoted_model_has_its_runs_scores_and_the_run_gets_nothing_twice(store: Store, tmp_path: Path):
    asked = candidate(store, tmp_path / "files", right=90)
    run_id = asked.run_ids["train"]
    store.client.log_metric(run_id, "test_accuracy", 0.9, step=7)
    store.client.log_metric(run_id, "train_loss", 0.1, step=7)
    promote(packed_set(tmp_path / "packed"), asked, promote=gate(), store=store)
    (model,) = store.client.search_logged_models([store.experiment_id], "name = 'classifier'")
    assert {(m.key, m.value, m.step, m.run_id) for m in model.metrics} == {("test_accuracy", 0.9, 7, run_id)}
    assert len(points(store, run_id, "test_accuracy")) == 1
    assert model.tags["model.sha256"] == sha_of(90)


def test_the_pipelines_model_has_the_numbers_of_its_metrics_files(pipeline: Pipeline):
    ids = pipeline.json("metrics/train.json")
    client = client_of(pipeline)
    experiments = [each.experiment_id for each in client.search_experiments()]
    condition = f"name = '{TRAINED}' and tags.`model.sha256` = '{ids['model_sha256']}'"
    (model,) = client.search_logged_models(experiments, condition)
    assert model.source_run_id == ids["mlflow_run_id"]
    own = [metric for metric in model.metrics if metric.run_id == ids["mlflow_run_id"]]
    found = {metric.key: metric.value for metric in own}
    test, export = (pipeline.json(f"metrics/{name}.json") for name in ("test", "export"))
    assert found["val_accuracy"] == ids["val_accuracy"]
    assert found["test_accuracy"] == test["accuracy"]
    assert found["onnx_accuracy"] == export["onnx"]["accuracy"]
    assert {metric.dataset_name for metric in own} == {"digits"}

"""Which run a later stage works on, and what a continuation run carries over from the one before.

MLflow never lets a parameter change, and a number must not stand beside parameters that did not make it. So a stage
whose values differ from what the run has works on a new run, which takes along all that is still true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Run

from darkroom.tracking.lineage import Lineage
from darkroom.tracking.values import (
    METRICS_A_CALL,
    PARAMS_A_CALL,
    TAGS_A_CALL,
    chunks,
    owned_names,
    params_of,
    same_value,
    tags_of,
)

TRAINED_BY = "darkroom.trained_by"
MODEL_SHA256 = "model.sha256"
STAGE = "stage."
OWN_TAGS = (
    "mlflow.", "git.", "dvc.", "promotion",
    "darkroom.host", "darkroom.pid", "darkroom.process_started", "darkroom.error",
)  # fmt: skip
"""Tags that say something about one run alone, by how they start."""


def differing(run: Run, values: Mapping[str, Any]) -> list[str]:
    """The keys that the run has with another value."""
    recorded = run.data.params
    return [key for key, value in values.items() if key in recorded and not same_value(recorded[key], value)]


def closest(family: Sequence[Run], lineage: Lineage, model_sha256: str) -> Run | None:
    """Of a training's run and its continuations the one that is nearest to the working folder's parameters.

    Inside a DVC experiment one of that experiment goes before any other; of equal ones the younger before the older.
    None where all of them are of other weights.
    """
    same_model = [run for run in family if run.data.tags.get(MODEL_SHA256, model_sha256) == model_sha256]
    present = lineage.present_values()

    def nearness(run: Run) -> tuple[bool, int, bool, int]:
        same_experiment = run.data.tags.get("dvc.exp") == lineage.experiment
        inside = lineage.experiment is not None
        return inside and same_experiment, -len(differing(run, present)), same_experiment, run.info.start_time

    return max(same_model, key=nearness, default=None)


def fits(run: Run, values: Mapping[str, Any], experiment: str | None) -> bool:
    """Whether a stage with `values`, in that DVC experiment, may work on the run."""
    return not differing(run, values) and (experiment is None or run.data.tags.get("dvc.exp") == experiment)


def carry(client: MlflowClient, source: Run, new: str, stage: str, lineage: Lineage) -> None:
    """Takes over to the run `new` what stays true of `source` when `stage` is done again.

    Left behind is what `stage` itself logged, and what later stages logged under values that are no longer set: they
    will run again. Artifacts stay where they are: `trained_by.json` lists them.
    """
    outdated = {stage, *_outdated_stages(source, lineage)}
    params = {key: text for key, text in source.data.params.items() if key.split(".")[0] not in outdated}
    names = set(source.data.metrics) - {name for each in outdated for name in owned_names(each, source.data.tags)}
    names = {name for name in names if not name.startswith("system/")}
    for part in chunks(params_of(params), PARAMS_A_CALL):
        client.log_batch(new, params=part)
    for metrics in chunks(_histories(client, source.info.run_id, names), METRICS_A_CALL):
        client.log_batch(new, metrics=metrics)
    for tags in chunks(tags_of(_tags(source, outdated)), TAGS_A_CALL):
        client.log_batch(new, tags=tags)
    if source.inputs and source.inputs.dataset_inputs:
        client.log_inputs(new, source.inputs.dataset_inputs)
    client.log_dict(new, _links(client, source), "trained_by.json")


def _outdated_stages(run: Run, lineage: Lineage) -> Iterator[str]:
    """Stages after training whose section of params.yaml, which has their name, is no longer what the run has."""
    present = lineage.present_values()
    done = [key.removeprefix(STAGE) for key in run.data.tags if key.startswith(STAGE)]
    for stage in done:
        section = {key: value for key, value in present.items() if key.startswith(f"{stage}.")}
        if stage != "train" and differing(run, section):
            yield stage


def _histories(client: MlflowClient, run_id: str, names: set[str]) -> Iterator[Metric]:
    for name in sorted(names):
        for point in client.get_metric_history(run_id, name):
            yield Metric(point.key, point.value, point.timestamp, point.step)


def _tags(run: Run, outdated: set[str]) -> dict[str, str]:
    gone = tuple(f"{STAGE}{stage}" for stage in outdated) + tuple(f"darkroom.metrics.{stage}." for stage in outdated)
    commit = run.data.tags.get("darkroom.trained_commit") or run.data.tags.get("git.commit")
    kept = {key: text for key, text in run.data.tags.items() if not key.startswith((*OWN_TAGS, *gone))}
    return kept | ({"darkroom.trained_commit": commit} if commit else {})


def _links(client: MlflowClient, run: Run) -> dict[str, Any]:
    return {
        "run_id": run.info.run_id,
        "experiment_id": run.info.experiment_id,
        "artifact_uri": run.info.artifact_uri,
        "artifacts": [f"runs:/{run.info.run_id}/{path}" for path in artifact_paths(client, run.info.run_id)],
    }


def artifact_paths(client: MlflowClient, run_id: str, folder: str | None = None) -> Iterator[str]:
    """The run's files, as paths below its artifacts."""
    for entry in client.list_artifacts(run_id, folder):
        if entry.is_dir:
            yield from artifact_paths(client, run_id, entry.path)
        else:
            yield entry.path

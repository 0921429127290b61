"""Models as MLflow 3 means them: one LoggedModel for each set of weights, which numbers of every stage belong to.

A trained one has no files of its own, they are its run's artifacts; promotion logs one that can be served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow.entities import LoggedModelInput, LoggedModelOutput, LoggedModelStatus, Metric, Run

from darkroom.tracking.continuing import MODEL_SHA256

if TYPE_CHECKING:
    from darkroom.tracking.store import Store

TRAINED = "trained"
"""Name of the models that training logs."""
MODEL_TYPE = "image classifier"


@dataclass(frozen=True)
class Link:
    """What a number belongs to beside its run."""

    model_id: str
    dataset_name: str | None
    dataset_digest: str | None

    def linked(self, metrics: list[Metric], run_id: str) -> list[Metric]:
        belonging = (self.model_id, self.dataset_name, self.dataset_digest, run_id)
        return [Metric(each.key, each.value, each.timestamp, each.step, *belonging) for each in metrics]


def link_of(run: Run, model_id: str) -> Link:
    """The model, and the pictures that the run took."""
    datasets = run.inputs.dataset_inputs if run.inputs else []
    if not datasets:
        return Link(model_id, None, None)
    return Link(model_id, datasets[0].dataset.name, datasets[0].dataset.digest)


def trained_model(store: Store, run_id: str, model_sha256: str) -> Link:
    """The model of these weights: an output of the run that trained it first, an input of every other."""
    client, run = store.client, store.client.get_run(run_id)
    condition = f"name = '{TRAINED}' and tags.`{MODEL_SHA256}` = '{model_sha256}'"
    ready = [
        model
        for model in client.search_logged_models([store.experiment_id], condition)
        if model.status == LoggedModelStatus.READY
    ]
    if not ready:
        return link_of(run, _log(store, run, model_sha256))
    if all(model.source_run_id != run_id for model in ready):
        client.log_inputs(run_id, models=[LoggedModelInput(ready[0].model_id)])
    return link_of(run, ready[0].model_id)


def _log(store: Store, run: Run, model_sha256: str) -> str:
    model = store.client.create_logged_model(
        run.info.experiment_id,
        name=TRAINED,
        source_run_id=run.info.run_id,
        tags={MODEL_SHA256: model_sha256, "files": f"runs:/{run.info.run_id}"},
        params=run.data.params,
        model_type=MODEL_TYPE,
    )
    store.client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step=0)])
    store.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return str(model.model_id)

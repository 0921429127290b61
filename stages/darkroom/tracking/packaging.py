"""A promoted model as MLflow's LoggedModel: the ONNX file that MLflow serves, with checkpoint and TorchScript beside it.

Done with the client, not with `mlflow.onnx.log_model`: that one needs an active run, which it would set to RUNNING, and
a tracking address for the whole process.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus, Metric
from mlflow.models import Model, ModelSignature
from mlflow.types import Schema, TensorSpec

from darkroom.files import sha256_file
from darkroom.tracking.fetching import IN_VERSION, Kind, hash_tag
from darkroom.tracking.models import MODEL_TYPE, link_of
from darkroom.tracking.series import last_points
from darkroom.tracking.store import Store
from darkroom.tracking.values import METRICS_A_CALL, chunks

STATE = "darkroom.state"
INCOMPLETE, COMPLETE = "incomplete", "complete"
MODEL_NAME = "classifier"
SCORES = ("test_", "val_", "best_val_", "onnx_")
"""How the numbers of a run begin that its model is shown with."""
REQUIREMENTS = ("mlflow", "onnx", "onnxruntime", "numpy")
"""Named with their versions: MLflow would load the model to find out, which takes three times as long."""


@dataclass(frozen=True)
class ModelFiles:
    """What a version is made of."""

    onnx: Path
    """uint8 N×C×H×W in, logits and probabilities out"""
    shape: tuple[int, int, int]
    """C, H, W of its input"""
    num_classes: int
    beside: dict[Kind, Path] = field(default_factory=dict)
    """other formats of the same weights, and what is said of them"""

    def card(self) -> str | None:
        """The model card, in Markdown: what MLflow's page says of the version."""
        return self.beside["card"].read_text(encoding="utf-8") if "card" in self.beside else None

    def hashes(self) -> dict[str, str]:
        """Tags that a fetched file is compared with."""
        return {hash_tag("onnx"): sha256_file(self.onnx)} | {
            hash_tag(kind): sha256_file(path) for kind, path in self.beside.items()
        }


def log_model(store: Store, files: ModelFiles, run_id: str, tags: Mapping[str, str]) -> str:
    """Logs the files as a model of the run, marked incomplete; returns its id."""
    client = store.client
    run = client.get_run(run_id)
    model = client.create_logged_model(
        run.info.experiment_id,
        name=MODEL_NAME,
        source_run_id=run_id,
        tags={**tags, STATE: INCOMPLETE},
        params=run.data.params,
        model_type=MODEL_TYPE,
    )
    scores = [
        Metric(name, last.value, last.when, last.step)
        for name, last in last_points(client, run_id).items()
        if name.startswith(SCORES)
    ]
    for part in chunks(link_of(run, model.model_id).linked(scores, run_id), METRICS_A_CALL):
        client.log_batch(run_id, metrics=part)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        _write(folder, files, model, run_id)
        client.log_model_artifacts(model.model_id, str(folder))
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
    return str(model.model_id)


def _write(folder: Path, files: ModelFiles, model: LoggedModel, run_id: str) -> None:
    """MLflow's folder of an ONNX model, loadable by mlflow.pyfunc, mlflow.onnx and onnxruntime from anywhere."""
    import onnx

    with warnings.catch_warnings():
        # MLflow warns of its own type hints while this is imported
        warnings.filterwarnings("ignore", message=".*type hint is inferred as AnyType")
        import mlflow.onnx
        import mlflow.pyfunc

    mlflow.onnx.save_model(
        onnx.load(files.onnx),
        str(folder),
        mlflow_model=Model(
            artifact_path=model.artifact_location, model_uuid=model.model_id, run_id=run_id, model_id=model.model_id
        ),
        signature=_signature(files),
        pip_requirements=[f"{name}=={importlib.metadata.version(name)}" for name in REQUIREMENTS],
        onnx_execution_providers=["CPUExecutionProvider"],
        save_as_external_data=False,
    )
    shutil.copyfile(files.onnx, folder / IN_VERSION["onnx"])  # byte for byte what was exported, scored and hashed
    for kind, path in files.beside.items():
        (folder / IN_VERSION[kind]).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, folder / IN_VERSION[kind])


def _signature(files: ModelFiles) -> ModelSignature:
    """Any number of pictures; the input has no name, so that a plain array and a plain list do."""
    scores = (-1, files.num_classes)
    return ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(np.uint8), (-1, *files.shape))]),
        outputs=Schema([TensorSpec(np.dtype(np.float32), scores, name) for name in ("logits", "probabilities")]),
    )


def incomplete_models(store: Store) -> list[LoggedModel]:
    """Models that a promotion logged and did not get to register."""
    return list(store.client.search_logged_models([store.experiment_id], f"tags.`{STATE}` = '{INCOMPLETE}'"))


def mark_complete(store: Store, model_id: str) -> None:
    store.client.set_logged_model_tags(model_id, {STATE: COMPLETE})


def delete_model(store: Store, model_id: str) -> None:
    store.client.delete_logged_model(model_id)

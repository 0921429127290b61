"""The champion of a pipeline that ran: promoted by the script, and used from anywhere by the tools that people have."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from darkroom.packed import open_packed
from darkroom.promoting.candidate import of_workspace
from darkroom.serving.predictor import Predictor
from pipelines import Pipeline
from stores import store_at


@pytest.fixture(scope="module")
def project(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The pipeline's folder, copied to another place: promotion leaves the shared one as it is."""
    folder = tmp_path_factory.mktemp("moved") / "project"
    shutil.copytree(pipeline.folder, folder, symlinks=True)
    copy = Pipeline(folder)
    copy.set({"promote.minimum": 0.1})
    return copy


@pytest.fixture(scope="module")
def promoted(project: Pipeline) -> Pipeline:
    told = project.run("python", "stages/promote.py").stdout
    assert "version 1 of darkroom is champion" in told
    return project


def test_the_workspaces_run_is_the_versions(promoted: Pipeline):
    store = store_at(promoted.folder)
    version = store.client.get_model_version_by_alias("darkroom", "champion")
    assert version.run_id == promoted.json("metrics/train.json")["mlflow_run_id"]
    assert version.tags["model.sha256"] == promoted.json("metrics/export.json")["model_sha256"]
    assert float(version.tags["test.accuracy"]) == pytest.approx(
        promoted.json("metrics/test.json")["accuracy"], abs=1e-6
    )
    assert float(version.tags["test.nll"]) == pytest.approx(promoted.json("metrics/test.json")["nll"], abs=1e-3)


def test_the_same_model_again_is_refused(promoted: Pipeline):
    done = promoted.run("python", "stages/promote.py", code=1)
    assert "not promoted, because of gain" in done.stderr
    assert "+0.0000 over version 1" in done.stdout


def test_a_run_is_promoted_by_its_id(promoted: Pipeline):
    run_id = promoted.json("metrics/train.json")["mlflow_run_id"]
    promoted.set({"promote.name": "by-run"})
    promoted.run("python", "stages/promote.py", "--run", run_id)
    promoted.set({"promote.name": "darkroom"})
    version = store_at(promoted.folder).client.get_model_version_by_alias("by-run", "champion")
    assert version.run_id == run_id


def test_there_is_nothing_to_go_back_to(promoted: Pipeline):
    assert "none to go back to" in promoted.run("python", "stages/promote.py", "--rollback", code=1).stderr


USE = """
import json, sys
import mlflow, numpy
images = numpy.load(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/darkroom@champion")
found = [model.predict(images[:n])["probabilities"].tolist() for n in (1, 2, 5)]
again = model.predict(images[:5])["probabilities"].tolist()
onnx_model = mlflow.onnx.load_model("models:/darkroom@champion")
assert [each.name for each in onnx_model.graph.input] == ["images"]
assert "torch" not in sys.modules
print(json.dumps([found, again]))
"""


def pictures(project: Pipeline, count: int) -> np.ndarray:
    test = open_packed(project.folder / "data/packed").split("test")
    return np.ascontiguousarray(test.images[:count].transpose(0, 3, 1, 2))


def environment(project: Pipeline) -> dict[str, str]:
    return os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{project.folder / 'mlflow.db'}"}


def test_it_loads_from_anywhere_in_batches_of_any_size(promoted: Pipeline, tmp_path: Path):
    images = pictures(promoted, 5)
    np.save(tmp_path / "images.npy", images)
    done = subprocess.run(
        [sys.executable, "-c", USE, "images.npy"],
        cwd=tmp_path, env=environment(promoted), capture_output=True, text=True, check=True,
    )  # fmt: skip
    found, again = json.loads(done.stdout.splitlines()[-1])
    expected = Predictor(promoted.folder / "export/model.onnx").probabilities(images)
    for probabilities in found:
        assert np.allclose(probabilities, expected[: len(probabilities)], atol=1e-6)
    assert again == found[-1]


def test_its_file_is_the_exported_one(promoted: Pipeline):
    version = store_at(promoted.folder).client.get_model_version_by_alias("darkroom", "champion")
    model = version.source.removeprefix("models:/")
    copy = promoted.folder / "mlruns/models" / model / "artifacts/model.onnx"
    assert copy.read_bytes() == (promoted.folder / "export/model.onnx").read_bytes()
    beside = copy.parent
    assert (beside / "checkpoint/model.pt").read_bytes() == (promoted.folder / "models/model.pt").read_bytes()
    assert (beside / "torchscript/model.ts").read_bytes() == (promoted.folder / "export/model.ts").read_bytes()
    for name in ("report.html", "model_card.md"):
        assert (beside / "report" / name).read_bytes() == (promoted.folder / "reports" / name).read_bytes()
    assert not list(beside.glob("*.data"))
    version = store_at(promoted.folder).client.get_model_version("darkroom", "1")
    assert version.description == (promoted.folder / "reports/model_card.md").read_text()


def test_a_report_of_another_model_does_not_go_with_it(promoted: Pipeline):
    card = promoted.folder / "reports/model_card.md"
    kept = card.read_text()
    assert set(of_workspace(promoted.folder).documents) == {"report", "card"}
    card.chmod(0o644)
    card.write_text(kept.replace(promoted.json("metrics/train.json")["model_sha256"], "0" * 64))
    try:
        assert of_workspace(promoted.folder).documents == {}
    finally:
        card.write_text(kept)


def edited(file: Path) -> bytes:
    """Changes a byte of the file; gives what it was."""
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return content


def test_an_edited_file_is_refused_in_a_line(promoted: Pipeline):
    version = store_at(promoted.folder).client.get_model_version_by_alias("darkroom", "champion")
    copy = promoted.folder / "mlruns/models" / version.source.removeprefix("models:/") / "artifacts/model.onnx"
    export = promoted.folder / "export/model.onnx"
    promote, predict = ("python", "stages/promote.py"), ("python", "stages/predict.py", "plots/data")
    for file, command, said in (
        (export, promote, "export/model.onnx was changed after its export (sha256 "),
        (copy, promote, "not promoted, because of gain"),
        (copy, (*predict, "--model", "models:/darkroom@champion"), "is not the one that was promoted"),
    ):
        whole = edited(file)
        error = promoted.run(*command, code=1).stderr
        file.write_bytes(whole)
        assert said in error
        assert "Traceback" not in error


@contextmanager
def served(project: Pipeline, folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["mlflow", "models", "serve", "--model-uri", "models:/darkroom@champion", "--env-manager", "local",
               "--port", str(port), "--host", "127.0.0.1"]  # fmt: skip
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        command, cwd=folder, env=environment(project), start_new_session=True, stdout=log, stderr=log
    )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=2)
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.3)
        assert process.poll() is None, (folder / "log").read_text()
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        log.close()


def test_mlflow_serves_it(promoted: Pipeline, tmp_path: Path):
    images = pictures(promoted, 3)
    with served(promoted, tmp_path) as address:
        body = json.dumps({"inputs": images.tolist()}).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.loads(answer.read())["predictions"]
    expected = Predictor(promoted.folder / "export/model.onnx").probabilities(images)
    assert np.allclose(found["probabilities"], expected, atol=1e-6)

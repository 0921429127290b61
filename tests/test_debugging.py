"""train.debug: NaN named where it is made, a table of activations, a trace that opens; the training stays the same."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from darkroom.errors import UserError
from darkroom.fitting import Debugging
from darkroom.packed import PackedSet
from darkroom.params import Params, with_values
from darkroom.training import Session
from digits import pack_digits
from sessions import digits, session, small
from stores import store_at
from test_train import SMALL, run_stage

TRAIN, VAL = digits(0, 150), digits(150, 250)


def debugged(ours: Session, *kinds: str) -> dict[str, bytes]:
    """The files that looking at a whole training leaves."""
    files: dict[str, bytes] = {}

    def keep(path: Path, folder: str) -> None:
        files[f"{folder}/{path.name}"] = path.read_bytes()

    with Debugging(kinds, keep).watching(ours) as look:
        for record in ours.run():
            look(record)
    return files


class MakesNan(nn.Module):
    """Its backward pass gives NaN where its forward pass does not."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        zeros: Tensor = self.head(images.flatten(1)) * 0
        return zeros.sqrt() * 0 + zeros


def test_anomaly_names_the_operation_and_the_line_that_made_nan() -> None:
    ours = session(small("mlp"), TRAIN, VAL)
    broken = MakesNan()
    ours.passes.model = ours.passes.network = broken
    with pytest.raises(UserError) as error:
        debugged(ours, "anomaly")
    assert "train.debug: anomaly: Function 'SqrtBackward0' returned nan values" in str(error.value)
    assert "test_debugging.py" in str(error.value), "the line of the forward pass"


def test_activations_are_a_table_of_every_layer_in_the_first_step_of_each_epoch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours = session(small("vgg"), TRAIN, VAL, epochs=2, lr=1e-9)
    with torch.no_grad():
        ours.network.get_parameter("stages.1.2.bias").fill_(-1e6)  # a norm whose outputs all die in the ReLU behind it
    rows = list(csv.DictReader(debugged(ours, "activations")["debug/activations.csv"].decode().splitlines()))
    layers = [name for name, module in ours.network.named_modules() if not any(module.children())]
    assert [(row["epoch"], row["layer"]) for row in rows] == [(str(n), layer) for n in (1, 2) for layer in layers]
    shares = {row["layer"]: float(row["share_of_zeros"]) for row in rows}
    assert shares["stages.1.3"] == 1
    assert 0 < shares["stages.0.2"] < 1
    assert "every output of stages.1.3 is 0 in epoch 1: a dead layer" in capsys.readouterr().out


def test_profile_leaves_a_trace_that_a_browser_opens_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    files = debugged(session(small(), TRAIN, VAL, epochs=4), "profile")
    trace = json.loads(gzip.decompress(files["debug/trace.json.gz"]))
    names = {event.get("name", "") for event in trace["traceEvents"]}
    assert any(name.startswith("aten::") and "conv" in name for name in names)
    assert "aten::" in files["debug/operations.txt"].decode()
    assert "ui.perfetto.dev" in capsys.readouterr().out


def test_profile_says_where_there_were_too_few_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert debugged(session(small(), TRAIN, VAL, epochs=1), "profile") == {}
    assert "so there is no trace" in capsys.readouterr().out


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedSet:
    return pack_digits(tmp_path_factory.mktemp("packed"))


def test_a_debugged_training_is_the_same_and_its_run_has_the_files(
    packed: PackedSet, params: Params, tmp_path: Path
) -> None:
    kinds: dict[str, Any] = {"train.debug": ["anomaly", "activations", "profile"]}
    plain = run_stage(packed, with_values(params, SMALL), store_at(tmp_path / "a"), tmp_path / "a")
    store = store_at(tmp_path / "b")
    numbers = run_stage(packed, with_values(params, SMALL | kinds), store, tmp_path / "b")
    assert numbers["model_sha256"] == plain["model_sha256"]
    found = {file.path for file in store.client.list_artifacts(numbers["mlflow_run_id"], "debug")}
    assert found == {"debug/activations.csv", "debug/operations.txt", "debug/trace.json.gz"}

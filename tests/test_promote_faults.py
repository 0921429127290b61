"""Promotion of what is not whole: runs that did not end well, aliases and versions moved by hand, edited files, odd names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from champions import DATA, candidate, packed_set, write_onnx
from darkroom.errors import UserError
from darkroom.files import sha256_file, write_json
from darkroom.models import save_model
from darkroom.packed import PackedSet
from darkroom.promoting.candidate import of_run, of_workspace
from darkroom.tracking.fetching import IN_VERSION, Kind, fetch_model
from darkroom.tracking.registry import Registry
from darkroom.tracking.store import Store
from darkroom.tracking.versions import CHAMPION, PREVIOUS
from promote import _rollback, promote
from test_promote import gate, holders, refused
from test_saved import saved


@pytest.fixture
def packed(tmp_path: Path) -> PackedSet:
    return packed_set(tmp_path / "packed")


@pytest.fixture
def registry(store: Store, packed: PackedSet, tmp_path: Path) -> Registry:
    """Versions 1, 2 and 3, right on 70, 80 and 90 pictures; 3 is champion."""
    for right in (70, 80, 90):
        promote(packed, candidate(store, tmp_path / str(right), right=right), promote=gate(), store=store)
    return Registry(store, "darkroom")


def results(registry: Registry) -> list[str]:
    return [json.loads(text)["result"] for text in registry.decisions()]


@pytest.mark.parametrize("status", ["FAILED", "KILLED", "RUNNING"])
def test_a_run_that_did_not_end_well_is_refused(
    store: Store, packed: PackedSet, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str
):
    asked = candidate(store, tmp_path / "one", right=90)
    store.client.update_run(asked.run_ids["train"], status)
    shut = refused(packed, asked, store, capsys)
    assert set(shut) == {"runs"}
    assert shut["runs"].split()[1] == status


def test_without_the_alias_nobody_is_promoted_and_rollback_gives_it_back(
    registry: Registry, packed: PackedSet, tmp_path: Path
):
    store = registry.store
    store.client.delete_registered_model_alias("darkroom", CHAMPION)
    with pytest.raises(UserError, match="models:/darkroom@champion: the registry at .* has no such model"):
        fetch_model(store, "models:/darkroom@champion", "onnx")
    worse = candidate(store, tmp_path / "worse", right=60)
    for dry_run in (True, False):
        with pytest.raises(
            UserError, match=r"lost its champion: .*promote.py --rollback gives it to version 3, another"
        ):
            promote(packed, worse, promote=gate(), store=store, dry_run=dry_run)
    assert holders(registry) == (None, "2")
    _rollback(registry)
    assert holders(registry) == ("3", "2")
    assert results(registry)[-1] == "rolled back from nobody: the alias was removed"
    _rollback(registry)
    assert holders(registry) == ("2", "1")


def test_a_deleted_champion_is_followed_by_the_one_before_it(registry: Registry, packed: PackedSet, tmp_path: Path):
    client = registry.store.client
    client.delete_model_version("darkroom", "3")
    with pytest.raises(UserError, match="gives it to version 2"):
        promote(packed, candidate(registry.store, tmp_path / "worse", right=60), promote=gate(), store=registry.store)
    _rollback(registry)
    assert holders(registry) == ("2", "1")
    _rollback(registry)
    client.delete_model_version("darkroom", "1")
    assert registry.last_champion() is None, "2 was rolled back from: it does not come again by itself"
    with pytest.raises(UserError, match="darkroom has no champion"):
        _rollback(registry)
    promote(packed, candidate(registry.store, tmp_path / "new", right=60), promote=gate(), store=registry.store)
    assert holders(registry) == ("4", None)


def test_a_version_deleted_in_the_middle_is_stepped_over(registry: Registry):
    registry.store.client.delete_model_version("darkroom", "2")
    _rollback(registry)
    assert holders(registry) == ("1", None)
    assert results(registry)[-1] == "rolled back from version 3"


def test_an_alias_moved_by_hand_is_in_the_history(registry: Registry, packed: PackedSet, tmp_path: Path):
    store = registry.store
    store.client.set_registered_model_alias("darkroom", CHAMPION, "2")
    promote(packed, candidate(store, tmp_path / "better", right=85), promote=gate(), store=store)
    assert holders(registry) == ("4", "2")
    assert results(registry)[-2:] == [
        "found version 2 champion (was version 3): moved by hand, or by two at once",
        "promoted as darkroom version 4",
    ]
    assert registry.tidy() == []


@pytest.mark.parametrize("by_hand", ["deleted", "moved"])
def test_previous_is_put_right(registry: Registry, by_hand: str):
    client = registry.store.client
    if by_hand == "deleted":
        client.delete_registered_model_alias("darkroom", PREVIOUS)
    else:
        client.set_registered_model_alias("darkroom", PREVIOUS, "1")
    _rollback(registry)
    assert holders(registry) == ("2", "1")
    client.set_registered_model_alias("darkroom", PREVIOUS, "3")
    registry.tidy()
    assert holders(registry) == ("2", "1")


def test_an_alias_that_is_none_is_told(registry: Registry):
    for alias in ("v1", "Champion", "nobody", "latest-one"):
        with pytest.raises(UserError, match=f"models:/darkroom@{alias}: the registry at .* has no such model"):
            fetch_model(registry.store, f"models:/darkroom@{alias}")
    for newest in ("@latest", "@Latest", "/latest"):
        with pytest.raises(UserError, match=f"'models:/darkroom{newest}' names no model; use runs:/ID, models:/NAME@"):
            fetch_model(registry.store, f"models:/darkroom{newest}")


@pytest.mark.parametrize("name", ["a b", "a.b-c_d", "hunde-größe", "犬", "x" * 80, "m-" + "a" * 32, "latest", "v1"])
def test_any_name_that_params_take_does(store: Store, packed: PackedSet, tmp_path: Path, name: str):
    for right in (80, 90):
        promote(packed, candidate(store, tmp_path / str(right), right=right), promote=gate(name=name), store=store)
    registry = Registry(store, name)
    assert holders(registry) == ("2", "1")
    assert fetch_model(store, f"models:/{name}@champion", "onnx").path.is_file()
    _rollback(registry)
    assert results(registry)[2:] == ["rolled back from version 2"]


def test_a_prompts_name_is_refused(store: Store, packed: PackedSet, tmp_path: Path):
    store.client.register_prompt("darkroom", "Say what is on the picture.")
    with pytest.raises(UserError, match=r"promote.name: 'darkroom' is a prompt at .*: choose another name"):
        promote(packed, candidate(store, tmp_path / "one", right=90), promote=gate(), store=store)


KINDS: tuple[Kind, ...] = ("onnx", "checkpoint", "torchscript")


@pytest.mark.parametrize("kind", KINDS)
def test_a_registered_file_that_was_edited_is_not_fetched(registry: Registry, tmp_path: Path, kind: Kind):
    whole = fetch_model(registry.store, "models:/darkroom@champion", kind).path
    assert registry.versions()[0].tags[f"{kind}.sha256"] == sha256_file(whole)
    for path in tmp_path.glob(f"mlruns/models/*/artifacts/{IN_VERSION[kind]}"):
        path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(UserError, match=r"models:/darkroom/3: its .* is not the one that was promoted \(sha256 "):
        fetch_model(registry.store, "models:/darkroom@champion", kind)
    assert not whole.exists(), "nobody takes the file left in .downloads for a good one"


def test_a_champion_that_was_edited_is_not_beaten_but_rolled_back(
    registry: Registry, packed: PackedSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Its file answers worse now, and says in its metadata that it is the same model."""
    [path] = [
        each for each in tmp_path.glob("mlruns/models/*/artifacts/model.onnx") if sha256_file(each) == _of(registry)
    ]
    write_onnx(path, right=5, sha256=registry.versions()[0].tags["model.sha256"])
    shut = refused(packed, candidate(registry.store, tmp_path / "worse", right=60), registry.store, capsys)
    assert "version 3 cannot be compared with: models:/darkroom/3: its model.onnx is not the one" in shut["gain"]
    _rollback(registry)
    assert holders(registry) == ("2", "1")


def test_nobody_goes_back_to_an_edited_version(registry: Registry, tmp_path: Path):
    for path in tmp_path.glob("mlruns/models/*/artifacts/model.onnx"):
        path.write_bytes(path.read_bytes() + b"\0")
    before = registry.decisions()
    for dry_run in (True, False):
        with pytest.raises(UserError, match="models:/darkroom/2: its model.onnx is not the one that was promoted"):
            _rollback(registry, dry_run=dry_run)
    assert holders(registry) == ("3", "2")
    assert registry.decisions() == before


def _of(registry: Registry) -> str:
    return registry.versions()[0].tags["onnx.sha256"]


@pytest.fixture
def workspace(store: Store, tmp_path: Path) -> Path:
    """What a finished pipeline leaves in its folder, and in its run."""
    folder = tmp_path / "workspace"
    with store.start("train", {"train.lr": 0.1}) as started:
        model = saved(run_id=started.run_id, data_sha256=DATA)
        save_model(folder / "models/model.pt", model)
        write_onnx(folder / "export/model.onnx", right=90, sha256=model.model_sha256)
        (folder / "export/model.ts").write_text("script 90")
        about = {"model_sha256": model.model_sha256, "mlflow_run_id": started.run_id}
        formats = {"onnx": "model.onnx", "torchscript": "model.ts"}
        hashes = {name: {"sha256": sha256_file(folder / "export" / file)} for name, file in formats.items()}
        write_json(folder / "metrics/export.json", about | hashes)
        write_json(folder / "metrics/test.json", about | {"accuracy": 0.9, "ece": None})
        started.metrics({"test_accuracy": 0.9})
        started.tags({"data.sha256": DATA, "stage.evaluate": "finished", "stage.export": "finished"})
        for place in ("export", "metrics"):
            started.artifacts(folder / place, place)
        started.artifact(folder / "models/model.pt", "model")
    return folder


def better_score(path: Path) -> None:
    write_json(path, json.loads(path.read_text()) | {"accuracy": 0.99})


def one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def other_graph(path: Path) -> None:
    """Bytes of a better model, below the metadata of the one that was exported."""
    write_onnx(path, right=99, sha256=saved(run_id="", data_sha256=DATA).model_sha256)


EDITS = [
    ("export/model.onnx", other_graph, r"export/model.onnx was changed after its export \(sha256 "),
    ("export/model.ts", one_byte, r"export/model.ts was changed after its export \(sha256 "),
    ("models/model.pt", one_byte, r"model.pt is damaged"),
    ("metrics/test.json", better_score, r"metrics/test.json has accuracy 0.99, run \w+ recorded 0.9: one of both was edited"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "edit", "said"), EDITS)
def test_an_edited_workspace_is_refused(
    store: Store, packed: PackedSet, workspace: Path, file: str, edit: Callable[[Path], None], said: str
):
    edit(workspace / file)
    with pytest.raises(UserError, match=said):
        promote(packed, of_workspace(workspace), promote=gate(), store=store)
    assert store.client.search_registered_models() == []


@pytest.mark.parametrize(("file", "edit", "said"), EDITS)
def test_a_run_with_an_edited_file_is_refused(
    store: Store, packed: PackedSet, workspace: Path, file: str, edit: Callable[[Path], None], said: str
):
    run_id = json.loads((workspace / "metrics/test.json").read_text())["mlflow_run_id"]
    edit(store.root / "mlruns" / run_id / "artifacts" / file.replace("models/", "model/"))
    with pytest.raises(UserError, match=said):
        promote(packed, of_run(store, run_id), promote=gate(), store=store)
    assert store.client.search_registered_models() == []


def test_an_untouched_workspace_and_its_run_are_promoted(store: Store, packed: PackedSet, workspace: Path):
    found = of_workspace(workspace)
    assert (found.claimed, found.torchscript) == ({"accuracy": 0.9}, workspace / "export/model.ts")
    assert promote(packed, found, promote=gate(), store=store)["candidate"]["accuracy"] == 0.9
    again = of_run(store, found.run_ids["train"])
    assert promote(packed, again, promote=gate(name="again"), store=store)["version"] == "1"


@pytest.mark.parametrize(
    "missing", ["models/model.pt", "export/model.onnx", "metrics/test.json", "metrics/export.json"]
)
def test_a_missing_file_is_named_with_what_makes_it(workspace: Path, missing: str):
    (workspace / missing).unlink()
    with pytest.raises(UserError, match=f"{missing} is missing: run dvc repro (train|export|evaluate)$"):
        of_workspace(workspace)


def test_a_file_of_another_model_is_refused(
    store: Store, packed: PackedSet, workspace: Path, capsys: pytest.CaptureFixture[str]
):
    """Whole, but not the one that was scored and exported."""
    other: dict[str, Any] = {
        "run_id": of_workspace(workspace).run_ids["train"],
        "data_sha256": DATA,
        "temperature": 2.0,
    }
    save_model(workspace / "models/model.pt", saved(**other))
    shut = refused(packed, of_workspace(workspace), store, capsys)
    assert set(shut) == {"one"}
    foreign = replace(of_workspace(workspace), run_ids=dict.fromkeys(("train", "evaluate", "export"), "0" * 32))
    assert {"runs", "stages"} <= set(refused(packed, foreign, store, capsys))

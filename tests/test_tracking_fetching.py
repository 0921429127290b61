"""Models by their address in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from champions import candidate, packed_set
from darkroom.errors import UserError
from darkroom.params import read_params
from darkroom.tracking.fetching import fetch_model, is_model_uri
from darkroom.tracking.store import Store
from pipelines import REPOSITORY
from promote import promote
from stores import store_at


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One version, champion, and the run that it came from."""
    root = tmp_path_factory.mktemp("project")
    store = store_at(root)
    gate = read_params(REPOSITORY / "params.yaml").promote.model_copy(update={"minimum": 0.5})
    promote(packed_set(root / "packed"), candidate(store, root / "one", right=90), promote=gate, store=store)
    return store


def run_of_champion(store: Store) -> str:
    return str(store.client.get_model_version_by_alias("darkroom", "champion").run_id)


@pytest.mark.parametrize("uri", ["models:/darkroom@champion", "models:/darkroom/1", "runs:/{run}"])
def test_each_address_gives_the_same_files(store: Store, uri: str):
    address = uri.format(run=run_of_champion(store))
    assert is_model_uri(address)
    fetched = fetch_model(store, address)
    assert fetched.path.read_text() == "weights 90"
    assert fetched.run_id == run_of_champion(store)
    assert fetch_model(store, address, "torchscript").path.read_text() == "script 90"
    assert fetch_model(store, address, "onnx").path.read_bytes() == (store.root / "one" / "model.onnx").read_bytes()
    assert store.root / ".downloads" in fetched.path.parents


def test_the_description_says_where_it_is_from(store: Store):
    run_id = run_of_champion(store)
    assert fetch_model(store, "models:/darkroom@champion").description == f"darkroom version 1 (champion), run {run_id}"
    assert fetch_model(store, f"runs:/{run_id}").description.startswith(f"run {run_id} (")


def test_a_continuation_leads_to_the_run_that_trained(store: Store):
    run_id = run_of_champion(store)
    sha256 = store.client.get_run(run_id).data.tags["model.sha256"]
    with store.join("evaluate", {"evaluate.batch_size": 1}, run_id=run_id, model_sha256=sha256) as joined:
        assert joined.run_id == run_id
    with store.join("evaluate", {"evaluate.batch_size": 2}, run_id=run_id, model_sha256=sha256) as other:
        assert other.run_id != run_id
    assert fetch_model(store, f"runs:/{other.run_id}").path.read_text() == "weights 90"


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("models/model.pt", "names no model"),
        ("models:/darkroom", "names no model"),
        ("models:/darkroom@", "names no model"),
        ("models:/darkroom@previous", "has no such model"),
        ("models:/darkroom/7", "has no such model"),
        ("models:/nobody@champion", "has no such model"),
        ("runs:/" + "f" * 32, "has no such run, or it was deleted"),
    ],
)
def test_an_address_of_nothing_is_told_in_a_line(store: Store, uri: str, told: str):
    with pytest.raises(UserError, match=told) as error:
        fetch_model(store, uri)
    assert "\n" not in str(error.value)


def test_a_run_without_a_model_is_told(store: Store):
    with store.start("train", {}) as run:
        pass
    with pytest.raises(UserError, match="has no export/model.onnx: its stage did not finish"):
        fetch_model(store, f"runs:/{run.run_id}", "onnx")


def test_files_stay_whole_when_fetched_again(store: Store):
    first = fetch_model(store, "models:/darkroom@champion").path
    assert fetch_model(store, "models:/darkroom@champion").path == first
    assert [
        path.name for path in Path(store.root / ".downloads" / "models").iterdir() if path.name.startswith("tmp")
    ] == []

from __future__ import annotations

import time
from pathlib import Path

import pytest

from darkroom.errors import UserError
from darkroom.tracking.address import find_address, masked
from stores import store_at, tracking

ROOT = Path("/project")


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_without_a_setting_it_is_the_database_at_the_root(monkeypatch: pytest.MonkeyPatch):
    for empty in (None, "", "  "):
        if empty is not None:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", empty)
        address = find_address("", ROOT)
        assert (address.uri, address.default) == ("sqlite:////project/mlflow.db", True)
        assert address.file == ROOT / "mlflow.db"


def test_the_environment_goes_before_params_yaml(monkeypatch: pytest.MonkeyPatch):
    assert find_address("http://here:5000", ROOT).uri == "http://here:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://there")
    assert find_address("http://here:5000", ROOT).uri == "https://there"


@pytest.mark.parametrize(
    ("uri", "absolute"),
    [
        ("sqlite:///runs.db", "sqlite:////project/runs.db"),
        ("sqlite:///below/runs.db?timeout=9", "sqlite:////project/below/runs.db?timeout=9"),
        ("sqlite:////data/runs.db", "sqlite:////data/runs.db"),
        ("postgresql+psycopg2://ada@db/runs", "postgresql+psycopg2://ada@db/runs"),
        ("databricks", "databricks"),
    ],
)
def test_an_address_is_absolute(uri: str, absolute: str, monkeypatch: pytest.MonkeyPatch):
    """A relative one would lie in the copy that a temporary experiment is deleted with."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert find_address("", ROOT).uri == absolute


@pytest.mark.parametrize(
    "uri", ["./mlruns", "mlruns", "/data/mlruns", "file:///data/mlruns", "file:mlruns", "http:/x", "C:\\runs"]
)
def test_a_folder_is_refused_and_the_right_address_named(uri: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError) as told:
        find_address("", ROOT)
    text = str(told.value)
    assert text.startswith("MLFLOW_TRACKING_URI: ")
    assert "sqlite:////project/mlflow.db" in text
    assert "\n" not in text


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(uri: str):
    with pytest.raises(UserError, match="in memory only"):
        find_address(uri, ROOT)


def test_a_password_in_params_yaml_is_refused_and_not_repeated():
    with pytest.raises(UserError, match="MLFLOW_TRACKING_PASSWORD") as told:
        find_address("https://ada:s3cret@runs.example.org", ROOT)
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://ada:s3cret@host/x", "https://***:***@host/x"),
        ("https://ada:p@ss@host/x", "https://***:***@host/x"),
        ("https://:s3cret@host", "https://***:***@host"),
        ("postgresql://db/runs?user=ada&password=s3cret", "postgresql://db/runs?user=ada&password=***"),
        ("no answer from http://a:b@c and http://d:e@f", "no answer from http://***:***@c and http://***:***@f"),
        ("https://host:5000/a@b", "https://host:5000/a@b"),
        ("sqlite:////data/a.db", "sqlite:////data/a.db"),
    ],
)
def test_passwords_are_masked(text: str, shown: str):
    assert masked(text) == shown


def test_a_server_that_does_not_answer_is_told_within_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ada:s3cret@127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(UserError) as told:
        store_at(tmp_path, uri="unused")
    assert time.monotonic() - start < 6
    assert "no MLflow server answers" in str(told.value)
    assert "s3cret" not in str(told.value)
    assert "\n" not in str(told.value)


def test_a_database_server_that_does_not_answer_is_told_within_seconds(tmp_path: Path):
    start = time.monotonic()
    with pytest.raises(UserError, match="no database answers at 127.0.0.1:9"):
        store_at(tmp_path, uri="postgresql://127.0.0.1:9/runs")
    assert time.monotonic() - start < 6


def test_the_params_key_is_named_where_it_is_wrong():
    assert tracking(uri="http://x").uri == "http://x"
    with pytest.raises(UserError, match=r"^tracking\.uri: "):
        find_address("ftp://x/y", ROOT)

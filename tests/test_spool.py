"""The spool keeps every point through kills, torn lines and full disks; the sender sends each of them once."""

from __future__ import annotations

import math
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.exceptions import MlflowException

from darkroom.errors import UserError
from darkroom.tracking import series as series_module
from darkroom.tracking.series import Series
from darkroom.tracking.spool import Spool, read_points, whole_length
from stores import points, program, status, store_at

numbers = st.dictionaries(st.sampled_from(["train_loss", "lr", "grad_norm"]), st.floats(), min_size=1)


def contents(path: Path) -> list[tuple[int, dict[str, float]]]:
    return [(point.step, point.numbers) for point in read_points(path)]


@given(st.lists(numbers, max_size=20))
def test_numbers_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, added: list[dict[str, float]]):
    path = tmp_path_factory.mktemp("spool") / "series.jsonl"
    with closing(Spool(path)) as spool:
        for step, each in enumerate(added):
            spool.add(step, each)
    found = contents(path)
    assert [step for step, _ in found] == list(range(len(added)))
    for (_, back), each in zip(found, added, strict=True):
        assert back.keys() == each.keys()
        assert all(
            a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(back.values(), each.values(), strict=True)
        )


@pytest.mark.parametrize("torn", [b"[", b'[3,17,{"a":1.0', b'[3,17,{"a":1.0}]'])
def test_a_torn_last_line_is_cut(tmp_path: Path, torn: bytes):
    path = tmp_path / "series.jsonl"
    with closing(Spool(path)) as spool:
        spool.add(1, {"a": 1.0})
    path.write_bytes(path.read_bytes() + torn)
    assert contents(path) == [(1, {"a": 1.0})]
    with closing(Spool(path)) as spool:
        spool.add(2, {"a": 2.0})
    assert contents(path) == [(1, {"a": 1.0}), (2, {"a": 2.0})]


def test_a_torn_line_in_a_long_file_is_cut(tmp_path: Path):
    path = tmp_path / "series.jsonl"
    whole = b'[1,2,{"a":1.0}]\n' * 50_000
    path.write_bytes(whole + b'[1,2,{"a"')
    assert whole_length(path) == len(whole)


def test_a_damaged_line_is_passed_over(tmp_path: Path):
    path = tmp_path / "series.jsonl"
    with closing(Spool(path)) as spool:
        spool.add(1, {"a": 1.0})
        path.write_bytes(path.read_bytes() + b"\0\0\0\0\n")
        spool.add(2, {"a": 2.0})
    assert contents(path) == [(1, {"a": 1.0}), (2, {"a": 2.0})]


def test_cutting_forgets_what_came_later(tmp_path: Path):
    with closing(Spool(tmp_path / "series.jsonl")) as spool:
        spool.add(1, {"a": 1.0})
        position = spool.position()
        spool.add(2, {"a": 2.0})
        spool.cut(position)
        spool.add(2, {"a": 3.0})
    assert contents(spool.path) == [(1, {"a": 1.0}), (2, {"a": 3.0})]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_a_full_disk_is_named(tmp_path: Path):
    with closing(Spool(tmp_path / "series.jsonl")) as spool, Path("/dev/full").open("ab", buffering=0) as full:
        spool._file.close()
        spool._file = full
        with pytest.raises(UserError, match="the disk is full"):
            spool.add(1, {"a": 1.0})


def test_a_step_costs_little(tmp_path: Path):
    with closing(Spool(tmp_path / "series.jsonl")) as spool:
        start = time.perf_counter()
        for step in range(2000):
            spool.add(step, {"train_loss": 1 / (step + 1), "lr": 0.1, "grad_norm": 1.0})
    assert (time.perf_counter() - start) / 2000 < 200e-6, "about 6 µs on a quiet machine"


def test_every_point_arrives_once_with_its_time(tmp_path: Path):
    store = store_at(tmp_path)
    before = time.time() * 1000
    with store.start("train", {}) as run:
        series = run.series(tmp_path / "spool.jsonl")
        for step in range(1200):
            series.add(step, {"train_loss": 1 / (step + 1), "lr": 0.1})
        series.add(3, {"val_loss": 0.5})
    assert points(store, run.run_id, "train_loss") == [(step, 1 / (step + 1)) for step in range(1200)]
    assert points(store, run.run_id, "lr") == [(step, 0.1) for step in range(1200)]
    assert points(store, run.run_id, "val_loss") == [(3, 0.5)]
    times = [point.timestamp for point in store.client.get_metric_history(run.run_id, "lr")]
    assert all(before - 1 <= when <= time.time() * 1000 for when in times)


def test_a_resumed_training_sends_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Killed after step 80 was sent, with its checkpoint at step 50: steps 51 to 99 come once."""
    store = store_at(tmp_path)
    with store.start("train", {}) as run:
        series = run.series(tmp_path / "spool.jsonl")
        for step in range(81):
            series.add(step, {"train_loss": float(step)})
            if step == 50:
                position = series.position()
    sent: list[int] = []
    log_batch = type(store.client).log_batch

    def counting(self: Any, run_id: str, metrics: Any = (), **rest: Any) -> None:
        sent.extend(metric.step for metric in metrics if metric.key == "train_loss")
        log_batch(self, run_id, metrics=metrics, **rest)

    monkeypatch.setattr(type(store.client), "log_batch", counting)
    with store.start("train", {}, resume=run.run_id) as again:
        assert again.run_id == run.run_id
        series = again.series(tmp_path / "spool.jsonl")
        series.cut(position)
        for step in range(51, 100):
            series.add(step, {"train_loss": float(step)})
    assert sent == list(range(81, 100))
    assert points(store, run.run_id, "train_loss") == [(step, float(step)) for step in range(100)]


def test_kill_9_loses_nothing(tmp_path: Path):
    store = store_at(tmp_path)
    body = """
with store.start("train", {}) as run:
    series = run.series(root / "spool.jsonl")
    for step in range(500):
        series.add(step, {"train_loss": float(step)})
    (root / "run").write_text(run.run_id)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run(program(tmp_path, body), check=False).returncode == -9
    run_id = (tmp_path / "run").read_text()
    store.mark_vanished()
    assert status(store, run_id) == "KILLED"
    with store.start("train", {}, resume=run_id) as run:
        run.series(tmp_path / "spool.jsonl")
    assert points(store, run_id, "train_loss") == [(step, float(step)) for step in range(500)]
    assert status(store, run_id) == "FINISHED"


class Client:
    """A store that is away for the first calls, or slow."""

    def __init__(
        self, inner: Any, *, failures: int = 0, seconds: float = 0.0, code: str = "TEMPORARILY_UNAVAILABLE"
    ) -> None:
        self.inner, self.failures, self.seconds, self.code = inner, failures, seconds, code
        self.calls = 0

    def log_batch(self, *args: Any, **kwargs: Any) -> None:
        self.calls += 1
        time.sleep(self.seconds)
        if self.calls <= self.failures:
            error = MlflowException("connection refused at http://ada:s3cret@host")
            error.error_code = self.code
            raise error
        self.inner.log_batch(*args, **kwargs)

    def get_run(self, run_id: str) -> Any:
        return self.inner.get_run(run_id)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_module, "SEND_SECONDS", 0.02)
    monkeypatch.setattr(series_module, "SLOW_SECONDS", 0.1)


@pytest.mark.usefixtures("quick")
def test_a_store_that_is_away_holds_nothing_up_and_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = store_at(tmp_path)
    with store.start("train", {}) as run:
        client: Any = Client(store.client, failures=3)
        series = Series(client, run.run_id, tmp_path / "spool.jsonl", "somewhere")
        for step in range(100):
            start = time.perf_counter()
            series.add(step, {"train_loss": float(step)})
            assert time.perf_counter() - start < 0.1
        series.close(10)
    assert len(points(store, run.run_id, "train_loss")) == 100
    told = capsys.readouterr().out
    assert told.count("does not answer") == 1
    assert "s3cret" not in told
    assert str(tmp_path / "spool.jsonl") in told


@pytest.mark.usefixtures("quick")
def test_a_store_that_stays_away_ends_the_run_in_bounded_time_and_names_the_spool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store = store_at(tmp_path)
    with store.start("train", {}) as run:
        client: Any = Client(store.client, failures=10**9)
        series = Series(client, run.run_id, tmp_path / "spool.jsonl", "somewhere")
        series.add(1, {"train_loss": 1.0})
        start = time.monotonic()
        series.close(0.3)
        assert time.monotonic() - start < 2
        again = Series(store.client, run.run_id, tmp_path / "spool.jsonl", "somewhere")
        again.close()
    assert "not in the store at somewhere yet: they lie in" in capsys.readouterr().out
    assert points(store, run.run_id, "train_loss") == [(1, 1.0)]


@pytest.mark.usefixtures("quick")
def test_a_store_that_is_back_at_the_end_gets_what_the_thread_gave_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """MLflow waits up to two minutes between two tries, longer than closing waits for the thread."""
    monkeypatch.setattr(series_module, "CLOSE_SECONDS", 0.1)
    store = store_at(tmp_path)
    with store.start("train", {}) as run:
        series = run.series(tmp_path / "spool.jsonl")
        series._client = Client(store.client, failures=1, seconds=0.5)
        for step in range(50):
            series.add(step, {"train_loss": float(step)})
    assert points(store, run.run_id, "train_loss") == [(step, float(step)) for step in range(50)]
    assert status(store, run.run_id) == "FINISHED"


@pytest.mark.usefixtures("quick")
def test_a_stage_whose_points_do_not_arrive_fails_and_its_next_try_sends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(series_module, "CLOSE_SECONDS", 0.1)
    store = store_at(tmp_path)
    with pytest.raises(UserError, match="^the end of run .* is not in the store"), store.start("train", {}) as run:
        series = run.series(tmp_path / "spool.jsonl")
        series._client = Client(store.client, failures=10**9)
        series.add(1, {"train_loss": 1.0})
    assert status(store, run.run_id) == "RUNNING"
    with store.start("train", {}, resume=run.run_id) as again:
        again.series(tmp_path / "spool.jsonl")
    assert points(store, run.run_id, "train_loss") == [(1, 1.0)]
    assert status(store, run.run_id) == "FINISHED"


@pytest.mark.usefixtures("quick")
def test_a_slow_store_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = store_at(tmp_path)
    with store.start("train", {}) as run:
        client: Any = Client(store.client, seconds=0.3)
        series = Series(client, run.run_id, tmp_path / "spool.jsonl", "somewhere")
        for step in range(3):
            series.add(step, {"train_loss": 1.0})
            time.sleep(0.1)
        series.close()
    assert capsys.readouterr().out.count("is slow or away") == 1
    assert len(points(store, run.run_id, "train_loss")) == 3


@pytest.mark.usefixtures("quick")
def test_a_run_that_is_deleted_while_it_trains_ends_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = store_at(tmp_path)
    run = store.start("train", {})
    client: Any = Client(store.client, failures=10**9, code="RESOURCE_DOES_NOT_EXIST")
    series = Series(client, run.run_id, tmp_path / "spool.jsonl", "somewhere")
    for step in range(50):
        series.add(step, {"train_loss": 1.0})
        time.sleep(0.002)
    series.close(5)
    assert client.calls == 1, "another try would change nothing"
    assert "does not take points any more" in capsys.readouterr().out


def test_many_numbers_in_a_step_and_odd_names(tmp_path: Path):
    store = store_at(tmp_path)
    with store.start("train", {}) as run:
        series = run.series(tmp_path / "spool.jsonl")
        series.add(0, {f"layer {place}%": float(place) for place in range(1500)})
        series.add(1, {"train_loss": math.nan, "lr": math.inf})
    logged = store.client.get_run(run.run_id).data.metrics
    assert logged["layer 1499-x25-"] == 1499.0
    assert len([name for name in logged if name.startswith("layer")]) == 1500
    assert math.isnan(logged["train_loss"])
    assert logged["lr"] > 1e308


def test_a_number_logged_before_the_series_went_out_hides_none_of_it(tmp_path: Path):
    """A training that is used again: its spool is whole, its run is new, its result is logged at once."""
    with closing(Spool(tmp_path / "spool.jsonl")) as spool:
        for epoch in range(1, 31):
            spool.add(epoch, {"val_loss": 1 / epoch})
    store = store_at(tmp_path)
    with store.start("train", {}) as run:
        run.series(tmp_path / "spool.jsonl")
        run.metrics({"val_loss": 0.2})
    found = points(store, run.run_id, "val_loss")
    assert found == sorted([*((epoch, 1 / epoch) for epoch in range(1, 31)), (30, 0.2)])
    assert store.client.get_run(run.run_id).data.metrics["val_loss"] == 0.2

"""One study, several coordinators: nobody overshoots, nothing is trained twice, and what one leaves another takes over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import psycopg
import pytest
import sqlalchemy.exc
import yaml

from darkroom.params import Params
from darkroom.sweeping import coordinator, liveness
from darkroom.sweeping.coordinator import patiently
from darkroom.sweeping.ledger import Ledger
from darkroom.sweeping.liveness import ALIVE, Roll
from darkroom.sweeping.space import identity
from darkroom.sweeping.standing import counts
from digits import pack_digits
from servers import servers
from stores import project, store_at
from test_sweep import STAGES, runs_of, wanted
from test_sweep_study import claim, complete, ledger_of, section

CLAIMING = """
import sys, time
sys.path[:0] = {paths!r}
import optuna
from darkroom.params import read_params, with_values
from darkroom.sweeping.ledger import Ledger
from darkroom.sweeping.space import make_space
optuna.logging.set_verbosity(optuna.logging.WARNING)
params = with_values(read_params(), {{"sweep.trials": {trials}, "sweep.sampler": {sampler!r}}})
storage = optuna.storages.RDBStorage({url!r}, engine_kwargs={options!r})
ledger = Ledger(optuna.load_study(study_name="darkroom", storage=storage), make_space(params.sweep.space), params.sweep)
print("ready", flush=True)
sys.stdin.readline()
while (found := ledger.claim()) is not None:
    ledger.complete(found, {{"val_accuracy": found.point["train.lr"]}})
    print(found.number, flush=True)
"""
SQLITE = {"connect_args": {"timeout": 60}}


def claiming(
    url: str, *, trials: int, processes: int, options: dict[str, Any], sampler: str = "tpe"
) -> list[list[int]]:
    """The numbers that each of so many processes got, all begun at once."""
    paths = [str(Path(__file__).resolve().parents[1] / "stages")]
    program = CLAIMING.format(paths=paths, trials=trials, sampler=sampler, url=url, options=options)
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True, cwd=Path(paths[0]).parent)
        for _ in range(processes)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate()[0].split() for process in started]
    assert [process.returncode for process in started] == [0] * processes
    return [[int(number) for number in numbers] for numbers in told]


def check_total(ledger: Ledger, numbers: list[int], total: int) -> None:
    counted = [trial for trial in ledger.trials() if counts(trial)]
    assert sorted(numbers) == [trial.number for trial in counted]
    assert sorted(trial.user_attrs["place"] for trial in counted) == list(range(total))
    assert len({identity(ledger.space.decode(trial.params)) for trial in counted}) == total


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_processes_that_ask_at_once_share_the_total(params: Params, tmp_path: Path, sampler: str):
    """With one seed, and the random sampler, two in the same place would draw the same point."""
    with ledger_of(section(params, trials=20), tmp_path) as ledger:
        url = f"sqlite:///{tmp_path / 'optuna.db'}"
        told = claiming(url, trials=20, processes=4, options=SQLITE, sampler=sampler)
        assert sum(map(bool, told)) > 1, "no single one did it all"
        check_total(ledger, [number for numbers in told for number in numbers], 20)


def test_a_coordinator_elsewhere_is_gone_when_its_beats_stop(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]
    monkeypatch.setattr(liveness.time, "monotonic", lambda: now[0])
    with ledger_of(section(params, trials=2), tmp_path) as ledger:
        left = claim(ledger)
        left.trial.set_user_attr("coordinator", "elsewhere 7 1")
        ledger.started(left, "run of elsewhere")
        for beat in range(3):
            ledger.study.set_user_attr(f"{ALIVE}elsewhere 7 1", beat)
            assert ledger.recover() == 0
            now[0] += liveness.GONE_SECONDS - 1
        assert ledger.recover() == 0
        now[0] += 1
        assert ledger.recover() == 1
        again = claim(ledger)
        assert (again.retry_of, again.run_id, again.point) == (left.number, "run of elsewhere", left.point)
        assert not ledger.is_ours(left)
        assert ledger.report(left, 1, 0.5), "who was taken for gone, and comes back, stops"
        complete(ledger, left, 0.9)
        complete(ledger, again, 0.5)
        assert [trial.value for trial in ledger.trials() if counts(trial)] == [0.5]


def test_two_that_take_a_third_for_gone_make_one_successor(params: Params, tmp_path: Path):
    """The second finds it ended; and should both have queued one, the second of the two is dismissed."""
    with ledger_of(section(params, trials=1), tmp_path) as ledger:
        left = claim(ledger)
        seen_by_both = ledger.trials()[left.number]
        assert ledger.lose(left, "gone")
        assert ledger.lose(left, "gone")
        ledger.study.enqueue_trial(left.trial.params, user_attrs={"retry_of": left.number, "place": 0, "kills": 1})
        again = claim(ledger)
        assert again.retry_of == left.number
        complete(ledger, again, 0.5)
        assert ledger.claim() is None
        assert [trial.number for trial in ledger.trials() if counts(trial)] == [again.number]
        assert seen_by_both.number == left.number


def test_beats_are_written_now_and_then(params: Params, tmp_path: Path):
    with ledger_of(params, tmp_path) as ledger:
        roll = Roll(ledger.study)
        for _ in range(50):
            roll.beat()
        (beats,) = (value for key, value in ledger.study.user_attrs.items() if key.startswith(ALIVE))
        assert beats == 1


def test_a_storage_that_comes_back_is_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(coordinator.time, "sleep", lambda _: None)
    left = [3]

    def do() -> None:
        left[0] -= 1
        if left[0]:
            lost = ConnectionError("server closed the connection")
            raise sqlalchemy.exc.OperationalError("select 1", {}, lost) from lost

    patiently(do)
    assert left == [0]
    said = capsys.readouterr()
    assert (said.out + said.err).count(
        "does not answer (server closed the connection): trying again for 5 minutes"
    ) == 1
    monkeypatch.setattr(coordinator, "OUTAGE_SECONDS", 0.0)
    left[0] = 3
    started = time.monotonic()
    with pytest.raises(sqlalchemy.exc.OperationalError):
        patiently(do)
    assert time.monotonic() - started < 1


@pytest.fixture(scope="module")
def database() -> Iterator[Callable[[str], str]]:
    """A PostgreSQL: gives the address of a new, empty database on it."""
    with servers() as stores, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSWORD", stores.database_password)

        def made(name: str) -> str:
            with psycopg.connect(stores.database("postgres"), autocommit=True) as known:
                known.execute(f"create database {name}")
            return stores.database(name)

        yield made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "orders").mkdir()
    pack_digits(tmp_path / "data/packed")
    return project(tmp_path)


HOST = f"""
import sys
sys.path[:0] = [{str(STAGES)!r}, {str(Path(__file__).parent)!r}]
from pathlib import Path
from darkroom.door import enter
from darkroom.packed import open_packed
from darkroom.params import read_params
from darkroom.sweeping import coordinator, liveness, search
from darkroom.tracking import machine
from sweep import sweep
from trials import Made

root, name, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
machine.host = lambda: name
coordinator.TEND_SECONDS, liveness.BEAT_SECONDS, liveness.GONE_SECONDS = 0.3, 0.3, 4.0
search.draw = lambda *_: None

def main():
    sweep(read_params(root / "params.yaml"), packed=open_packed(root / "data/packed", "train", "val"), root=root,
          train=Made(root / "orders", seconds=seconds))

if __name__ == "__main__":
    enter(main)
"""


def host(place: Path, name: str, seconds: float = 0.1) -> subprocess.Popen[str]:
    """A sweep on a machine of that name, a process group of its own."""
    command = [sys.executable, "-c", HOST, str(place), name, str(seconds)]
    return subprocess.Popen(
        command, cwd=place, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def prepared(params: Params, place: Path, storage: str, trials: int) -> None:
    changed = wanted(params, trials=trials, workers=1, storage=storage, pruner="none")
    (place / "params.yaml").write_text(yaml.safe_dump(changed.model_dump(exclude_none=True)))


def found(storage: str) -> list[optuna.trial.FrozenTrial]:
    opened = optuna.storages.RDBStorage(storage)
    try:
        return optuna.load_study(study_name="darkroom", storage=opened).get_trials()
    finally:
        opened.engine.dispose()


def check_runs(place: Path, trials: list[optuna.trial.FrozenTrial]) -> None:
    """One parent, and below it a finished run for each trial that counts: MLflow and Optuna agree."""
    store = store_at(place)
    (parent,) = runs_of(store, "sweep")
    assert parent.info.status == "FINISHED"
    nested = {run.info.run_id: run for run in runs_of(store, "train")}
    assert {run.data.tags["mlflow.parentRunId"] for run in nested.values()} == {parent.info.run_id}
    assert {trial.user_attrs["mlflow_run_id"] for trial in trials if counts(trial)} == set(nested)
    assert {run.info.status for run in nested.values()} == {"FINISHED"}


def test_two_machines_share_a_study(params: Params, place: Path, database: Callable[[str], str]):
    """Both begin it, lose all their connections on the way, and end with the same winner."""
    storage = database("shared")
    prepared(params, place, storage, trials=8)
    machines = [host(place, name) for name in ("north", "south")]
    while not (place / "orders/epoch-3").exists():
        time.sleep(0.05)
        assert all(each.poll() is None for each in machines), [each.communicate()[0] for each in machines]
    with psycopg.connect(storage, autocommit=True) as known:
        known.execute("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
                      " and datname = current_database()")  # fmt: skip
    told = [each.communicate(timeout=120)[0] for each in machines]
    assert [each.returncode for each in machines] == [0, 0], told
    trials = found(storage)
    counted = [trial for trial in trials if counts(trial)]
    assert {trial.state.name for trial in counted} == {"COMPLETE"}
    assert sorted(trial.user_attrs["place"] for trial in counted) == list(range(8))
    assert {trial.user_attrs["coordinator"].split()[0] for trial in counted} == {"north", "south"}
    assert not [trial for trial in trials if trial.state.name in ("RUNNING", "WAITING")]
    best = max(trial.value for trial in counted)
    assert all(f"val_accuracy {best:.4f}" in text for text in told)
    check_runs(place, trials)


def test_a_machine_that_is_switched_off_loses_nothing(params: Params, place: Path, database: Callable[[str], str]):
    storage = database("lost")
    prepared(params, place, storage, trials=6)
    north, south = host(place, "north", 0.3), host(place, "south", 0.3)
    while not (place / "orders/epoch-2").exists():
        time.sleep(0.05)
        assert (north.poll(), south.poll()) == (None, None)
    os.killpg(north.pid, signal.SIGKILL)
    north.communicate()
    told = south.communicate(timeout=120)[0]
    assert south.returncode == 0, told
    trials = found(storage)
    assert sum(map(counts, trials)) == 6
    assert {trial.user_attrs.get("lost") for trial in trials if not counts(trial)} <= {"the sweep was killed"}
    assert not [trial for trial in trials if trial.state.name in ("RUNNING", "WAITING")]
    check_runs(place, trials)

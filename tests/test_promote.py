"""Promotion: every gate, the alias, the way back, and what is recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST

from champions import CLASSES, candidate, packed_set, sha_of
from darkroom.errors import UserError
from darkroom.packed import PackedSet
from darkroom.params import Promote, read_params
from darkroom.promoting.candidate import Candidate, of_run
from darkroom.tracking import machine
from darkroom.tracking.registry import Registry
from darkroom.tracking.store import Store
from darkroom.tracking.versions import CHAMPION, PREVIOUS
from pipelines import REPOSITORY, Pipeline, all_runs
from promote import _rollback, promote
from stores import files, read, store_at, tags


def gate(**values: Any) -> Promote:
    chosen = {"name": "darkroom", "metric": "accuracy", "minimum": 0.5, "min_gain": 0.0}
    return read_params(REPOSITORY / "params.yaml").promote.model_copy(update=chosen | values)


@pytest.fixture
def packed(tmp_path: Path) -> PackedSet:
    return packed_set(tmp_path / "packed")


@pytest.fixture
def registry(store: Store) -> Registry:
    return Registry(store, "darkroom")


def holders(registry: Registry) -> tuple[str | None, str | None]:
    found = [registry.holder(alias) for alias in (CHAMPION, PREVIOUS)]
    first, second = (str(version.version) if version else None for version in found)
    return first, second


def refused(
    packed: PackedSet, asked: Candidate, store: Store, capsys: pytest.CaptureFixture[str], **values: Any
) -> dict[str, str]:
    """Asks for promotion, which must change nothing; gives {gate: what it found} of the gates that are shut."""
    registry = Registry(store, "darkroom")
    before = (holders(registry), len(registry.versions()))
    capsys.readouterr()
    with pytest.raises(UserError, match="not promoted"):
        promote(packed, asked, promote=gate(**values), store=store)
    assert (holders(registry), len(registry.versions())) == before
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines() if line.startswith("NO")]
    return {name: rest for _, name, rest in lines}


def test_the_first_that_is_good_enough_becomes_champion(
    store: Store, packed: PackedSet, registry: Registry, tmp_path: Path
):
    asked = candidate(store, tmp_path / "first", right=90)
    done = promote(packed, asked, promote=gate(), store=store)
    assert (done["version"], done["candidate"]["accuracy"]) == ("1", 0.9)
    assert holders(registry) == ("1", None)
    version = registry.versions()[0]
    assert version.run_id == asked.run_ids["train"]
    assert version.tags | {"model.sha256": sha_of(90), "git.commit": "c" * 40, "test.accuracy": "0.9"} == version.tags
    assert version.tags["darkroom.state"] == "complete"


def test_a_tie_is_refused_and_recorded(
    store: Store, packed: PackedSet, registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    first = candidate(store, tmp_path / "one", right=90)
    promote(packed, first, promote=gate(), store=store)
    assert refused(packed, first, store, capsys)["gain"].startswith("+0.0000 over version 1 (0.9000)")
    same = candidate(store, tmp_path / "two", right=90, sha256="e" * 64)
    assert set(refused(packed, same, store, capsys)) == {"gain"}
    last = json.loads(registry.decisions()[-1])
    assert last["result"] == "refused: gain"
    assert last["candidate"]["accuracy"] == last["champion"]["accuracy"] == 0.9
    assert last["who"]
    assert last["when"]


def test_what_is_not_good_enough_is_refused_and_recorded(
    store: Store, packed: PackedSet, registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    asked = candidate(store, tmp_path / "one", right=49)
    reasons = refused(packed, asked, store, capsys)
    assert {name: text.split() for name, text in reasons.items()} == {"accuracy": ["0.4900", "at", "least", "0.5"]}
    run_id = asked.run_ids["train"]
    assert tags(store, run_id)["promotion"] == "refused: accuracy"
    name = next(path for path in files(store, run_id) if path.startswith("promotion/"))
    kept = json.loads(read(store, run_id, name))
    assert kept["candidate"]["accuracy"] == 0.49
    assert {verdict["gate"]: verdict["passed"] for verdict in kept["gates"]}["accuracy"] is False
    assert store.client.search_registered_models() == []


def test_a_deleted_run_is_refused(store: Store, packed: PackedSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    asked = candidate(store, tmp_path / "one", right=90)
    store.client.delete_run(asked.run_ids["train"])
    assert set(refused(packed, asked, store, capsys)) == {"runs", "stages", "code"}, (
        "whether its code was committed is not known any more"
    )
    with pytest.raises(UserError, match="no such run, or it was deleted"):
        of_run(store, asked.run_ids["train"])


def test_other_data_and_other_classes_are_refused(
    store: Store, packed: PackedSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    promote(packed, candidate(store, tmp_path / "one", right=80), promote=gate(), store=store)
    other = candidate(store, tmp_path / "two", right=90, data="e" * 64)
    assert set(refused(packed, other, store, capsys)) == {"data"}
    swapped = [CLASSES[1], CLASSES[0], *CLASSES[2:]]
    renamed = candidate(store, tmp_path / "three", right=90, classes=swapped)
    assert "'class 1' for 'class 0'" in refused(packed, renamed, store, capsys)["classes"]
    more = packed_set(tmp_path / "more", classes=[*CLASSES, "new"])
    grown = candidate(store, tmp_path / "four", right=90, classes=[*CLASSES, "new"])
    reasons = refused(more, grown, store, capsys)
    assert set(reasons) == {"classes", "gain"}
    assert "version 1 knows 10 classes, data/packed has 11" in reasons["gain"]


def test_pictures_of_another_size_cannot_be_compared(
    store: Store, packed: PackedSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    promote(packed, candidate(store, tmp_path / "one", right=80), promote=gate(), store=store)
    larger = packed_set(tmp_path / "larger", size=8)
    reasons = refused(larger, candidate(store, tmp_path / "two", right=90, size=8), store, capsys)
    assert "version 1 takes pictures of 4 pixels in 1 channels, data/packed has 8 in 1" in reasons["gain"]


def test_a_champion_whose_file_is_gone_is_not_beaten_by_default(
    store: Store, packed: PackedSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    promote(packed, candidate(store, tmp_path / "one", right=80), promote=gate(), store=store)
    for path in tmp_path.glob("mlruns/models/*/artifacts/model.onnx"):
        path.unlink()
    assert "has no model.onnx" in refused(packed, candidate(store, tmp_path / "two", right=90), store, capsys)["gain"]


def test_dry_run_changes_nothing(store: Store, packed: PackedSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    asked = candidate(store, tmp_path / "one", right=90)
    before = (tmp_path / "mlflow.db").read_bytes()
    assert promote(packed, asked, promote=gate(), store=store, dry_run=True)["version"] is None
    assert "would become champion" in capsys.readouterr().out
    with pytest.raises(UserError, match="not promoted, because of accuracy"):
        promote(packed, asked, promote=gate(minimum=0.95), store=store, dry_run=True)
    assert (tmp_path / "mlflow.db").read_bytes() == before


def test_rollback_goes_back_along_the_history(store: Store, packed: PackedSet, registry: Registry, tmp_path: Path):
    with pytest.raises(UserError, match="darkroom has no champion"):
        _rollback(registry)
    for right in (80, 90, 95):
        promote(packed, candidate(store, tmp_path / str(right), right=right), promote=gate(), store=store)
    before = (tmp_path / "mlflow.db").read_bytes()
    _rollback(registry, dry_run=True)
    assert (tmp_path / "mlflow.db").read_bytes() == before
    _rollback(registry)
    assert holders(registry) == ("2", "1")
    _rollback(registry)
    assert holders(registry) == ("1", None)
    with pytest.raises(UserError, match="version 1 of darkroom has no champion before it"):
        _rollback(registry)
    promote(packed, candidate(store, tmp_path / "last", right=99), promote=gate(), store=store)
    assert holders(registry) == ("4", "1")
    record = [json.loads(text)["result"] for text in registry.decisions()]
    assert record == [
        "promoted as darkroom version 1", "promoted as darkroom version 2", "promoted as darkroom version 3",
        "rolled back from version 3", "rolled back from version 2", "promoted as darkroom version 4",
    ]  # fmt: skip


@pytest.mark.parametrize("moment", ["create_model_version", "set_registered_model_alias", "set_logged_model_tags"])
def test_a_promotion_that_is_killed_leaves_the_old_champion_and_the_next_call_tidies(
    store: Store, packed: PackedSet, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
):
    promote(packed, candidate(store, tmp_path / "one", right=80), promote=gate(), store=store)
    asked = candidate(store, tmp_path / "two", right=90)

    def killed(*_args: Any, **_kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(type(store.client), moment, killed)
        promote(packed, asked, promote=gate(), store=store)
    assert holders(registry) == ("1", None)
    promote(packed, asked, promote=gate(), store=store)
    champion, previous = holders(registry)
    assert previous == "1"
    assert {str(version.version) for version in registry.versions()} == {"1", champion}
    assert {version.tags["darkroom.state"] for version in registry.versions()} == {"complete"}
    assert len(store.client.search_logged_models([store.experiment_id])) == 2


def test_a_promotion_that_is_killed_after_the_alias_moved_is_completed(
    store: Store, packed: PackedSet, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    promote(packed, candidate(store, tmp_path / "one", right=80), promote=gate(), store=store)
    asked = candidate(store, tmp_path / "two", right=90)
    moved: list[str] = []
    move = type(store.client).set_registered_model_alias

    def once(self: Any, name: str, alias: str, version: str) -> None:
        if moved:
            raise KeyboardInterrupt
        moved.append(alias)
        move(self, name, alias, version)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(type(store.client), "set_registered_model_alias", once)
        promote(packed, asked, promote=gate(), store=store)
    assert moved == ["champion"]
    assert holders(registry) == ("2", None)
    before = registry.decisions()
    assert [json.loads(text)["result"] for text in before] == [f"promoted as darkroom version {n}" for n in (1, 2)]
    assert registry.tidy() == ["an interrupted decision was recorded: promoted as darkroom version 2"]
    assert holders(registry) == ("2", "1")
    assert registry.versions()[0].tags["darkroom.state"] == "complete"
    assert registry.decisions() == before
    assert registry.tidy() == []
    [kept] = [
        read(store, asked.run_ids["train"], name)
        for name in files(store, asked.run_ids["train"])
        if "promotion/" in name
    ]
    assert json.loads(kept)["gates"], "whole, as the killed call would have written it"


def test_two_at_once_take_turns(store: Store, packed: PackedSet, registry: Registry, tmp_path: Path):
    """The worse of two waits for the better one, and is then judged against it."""
    asked = [candidate(store, tmp_path / str(right), right=right) for right in (90, 80)]
    errors: list[UserError] = []
    judging, go_on = threading.Event(), threading.Event()

    class Slow(PackedSet):
        def split(self, name: Any) -> Any:
            judging.set()
            assert go_on.wait(30)
            return super().split(name)

    def second() -> None:
        try:
            promote(packed, asked[1], promote=gate(), store=store)
        except UserError as error:
            errors.append(error)

    threads = [
        threading.Thread(target=lambda: promote(Slow(**vars(packed)), asked[0], promote=gate(), store=store)),
        threading.Thread(target=second),
    ]
    threads[0].start()
    assert judging.wait(30)
    threads[1].start()
    threads[1].join(0.5)
    assert threads[1].is_alive(), "it waits"
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert [str(error) for error in errors] == ["not promoted, because of gain, not worse: the champion stays as it is"]
    assert holders(registry) == ("1", None)


def test_a_promotion_elsewhere_between_judging_and_crowning_is_not_overwritten(
    store: Store, packed: PackedSet, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two machines on one server: no lock holds one back while the other promotes."""
    elsewhere = store_at(tmp_path / "elsewhere", uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    worse = candidate(store, tmp_path / "worse", right=80)
    better = candidate(elsewhere, tmp_path / "better", right=90)
    register, this_process = Registry.register, machine.this_process

    def promote_better(self: Registry, *args: Any) -> ModelVersion:
        monkeypatch.setattr(machine, "this_process", lambda: {**this_process(), machine.HOST: "worse's"})
        version = register(self, *args)
        monkeypatch.setattr(machine, "this_process", this_process)
        monkeypatch.setattr(Registry, "register", register)
        promote(packed, better, promote=gate(), store=elsewhere)
        assert [str(each.version) for each in registry.versions()] == ["2", "1"], "what is at work is not tidied away"
        return version

    monkeypatch.setattr(Registry, "register", promote_better)
    with pytest.raises(UserError, match="version 1 is not champion: version 2 became champion of darkroom meanwhile"):
        promote(packed, worse, promote=gate(), store=store)
    assert holders(registry) == ("2", None)
    assert [str(version.version) for version in registry.versions()] == ["2"]
    assert len(store.client.search_logged_models([store.experiment_id])) == 1
    overtaken = "not champion: version 1, because version 2 became champion of darkroom meanwhile, from another place"
    results = [json.loads(text)["result"] for text in registry.decisions()]
    assert results == ["promoted as darkroom version 2", overtaken]
    assert tags(store, worse.run_ids["train"])["promotion"] == overtaken


def test_an_alias_that_another_machine_moves_at_the_same_moment_is_read_again(
    store: Store, packed: PackedSet, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    promote(packed, candidate(store, tmp_path / "one", right=80), promote=gate(), store=store)
    move = type(store.client).set_registered_model_alias

    def and_back(self: Any, name: str, alias: str, version: str) -> None:
        move(self, name, alias, version)
        move(self, name, alias, "1")

    with monkeypatch.context() as patched:
        patched.setattr(type(store.client), "set_registered_model_alias", and_back)
        with pytest.raises(UserError, match="version 2 is not champion: version 1 became champion"):
            promote(packed, candidate(store, tmp_path / "two", right=90), promote=gate(), store=store)
    assert holders(registry) == ("1", None)
    assert json.loads(registry.decisions()[-1])["result"].startswith("not champion: version 2, because version 1")
    assert {version.tags["darkroom.state"] for version in registry.versions()} == {"complete"}


def test_of_two_first_champions_at_the_same_moment_the_database_takes_one(
    store: Store, packed: PackedSet, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """PostgreSQL refuses the second as a duplicate key."""
    asked = [candidate(store, tmp_path / str(right), right=right) for right in (80, 90)]
    move = type(store.client).set_registered_model_alias

    def second(self: Any, name: str, alias: str, version: str) -> None:
        monkeypatch.setattr(type(store.client), "set_registered_model_alias", move)
        monkeypatch.setattr(machine, "may_work", lambda *_: True)  # the first one is at work, elsewhere
        promote(packed, asked[1], promote=gate(), store=store_at(tmp_path / "b", uri=store.address.uri))
        raise MlflowException("duplicate key value violates unique constraint", error_code=BAD_REQUEST)

    monkeypatch.setattr(type(store.client), "set_registered_model_alias", second)
    with pytest.raises(UserError, match="version 1 is not champion: version 2 became champion"):
        promote(packed, asked[0], promote=gate(), store=store)
    assert holders(registry) == ("2", None)
    assert [str(version.version) for version in registry.versions()] == ["2"]


def test_an_alias_that_cannot_be_moved_is_no_race(
    store: Store, packed: PackedSet, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_args: Any) -> None:
        raise MlflowException("the disk is full")

    monkeypatch.setattr(type(store.client), "set_registered_model_alias", refuse)
    with pytest.raises(MlflowException, match="^the disk is full$"):
        promote(packed, candidate(store, tmp_path / "one", right=80), promote=gate(), store=store)
    assert registry.decisions() == []


@pytest.mark.parametrize(
    ("host", "process", "hours", "works"),
    [
        ("here", "own", 0, False), ("here", "running", 9, True), ("here", "gone", 0, False),
        ("elsewhere", "running", 0.9, True), ("elsewhere", "running", 1.1, False), ("", "", 0, False),
    ],
)  # fmt: skip
def test_who_may_still_be_promoting(host: str, process: str, hours: float, works: bool):
    pids = {"own": os.getpid(), "running": os.getppid(), "gone": 2**22 + 1}
    described: dict[str, str] = {}
    if host:
        pid = pids[process]
        started = psutil.Process(pid).create_time() if psutil.pid_exists(pid) else 0
        described = {machine.HOST: machine.host() if host == "here" else host,
                     machine.PID: str(pid), machine.STARTED: str(started)}  # fmt: skip
    assert machine.may_work(described, int((time.time() - hours * 3600) * 1000)) is works


def test_wrong_usage_ends_with_2():
    stages = Path(__file__).resolve().parents[1] / "stages"
    for arguments in (["--run"], ["--rollback", "--run", "x"], ["--what"]):
        done = subprocess.run([sys.executable, stages / "promote.py", *arguments], capture_output=True, text=True)
        assert done.returncode == 2
        assert "usage:" in done.stderr


def test_history_and_experiments_by_name(pipeline: Pipeline) -> None:
    """By the script, as typed: refused and taken decisions in order, and an experiment found by its name."""
    pipeline.set({"promote.minimum": 0.0, "promote.name": "decided"})
    try:
        name = all_runs(pipeline)[0].info.run_name
        shown = pipeline.run("python", "stages/promote.py", "--experiment", name)
        assert "version 1 of decided is champion" in shown.stdout
        pipeline.run("python", "stages/promote.py", code=1)
        lines = pipeline.run("python", "stages/promote.py", "--history").stdout.splitlines()
        accuracy = pipeline.json("metrics/test.json")["accuracy"]
        assert [line.split("  ", 2)[2] for line in lines] == [
            f"promoted as decided version 1 (accuracy {accuracy:.4f})",
            f"refused: gain (accuracy {accuracy:.4f})",
        ]
        absent = pipeline.run("python", "stages/promote.py", "--experiment", "nobody", code=1)
        assert "'nobody' names no run" in absent.stderr
    finally:
        pipeline.run("git", "checkout", "params.yaml")

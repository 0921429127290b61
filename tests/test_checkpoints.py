"""Checkpoints: whole, verified, the last two kept; a damaged one is named and the one before used."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from darkroom.errors import UserError
from darkroom.training import Checkpoints
from sessions import digits, records, same_weights, session, small


def state(step: int) -> dict[str, Any]:
    return {"network": {"weight": torch.full((40, 5), float(step))}, "progress": {"steps": step, "loss": 0.5}}


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def checkpoints(tmp_path: Path, said: list[str]) -> Checkpoints:
    return Checkpoints(tmp_path / "fingerprint", said.append)


def steps(checkpoints: Checkpoints) -> list[str]:
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_the_last_two_are_kept_each_with_its_hash(checkpoints: Checkpoints, said: list[str]) -> None:
    assert checkpoints.latest() is None
    for step in (5, 10, 100, 1000):
        checkpoints.save(state(step), step)
    assert steps(checkpoints) == [
        "step-000000100.pt", "step-000000100.pt.sha256", "step-000001000.pt", "step-000001000.pt.sha256",
    ]  # fmt: skip
    latest = checkpoints.latest()
    assert latest is not None
    assert latest["progress"] == {"steps": 1000, "loss": 0.5}
    assert torch.equal(latest["network"]["weight"], state(1000)["network"]["weight"])
    assert said == []


def damages(content: bytes) -> list[bytes]:
    """Cut short, empty, something else, and one flipped bit at forty places."""
    rng = np.random.default_rng(0)
    flipped = []
    for place in rng.integers(0, len(content), 300).tolist():
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        flipped.append(bytes(damaged))
    return [content[: len(content) // 2], b"", b"<html>", *flipped]


def test_every_damage_is_named_and_the_checkpoint_before_is_used(checkpoints: Checkpoints, said: list[str]) -> None:
    checkpoints.save(state(1), 1)
    path = checkpoints.save(state(2), 2)
    content = path.read_bytes()
    for damaged in damages(content):
        said.clear()
        path.write_bytes(damaged)
        latest = checkpoints.latest()
        assert latest is not None
        assert latest["progress"]["steps"] == 1
        assert len(said) == 1
        assert said[0].startswith(f"{path} is damaged and passed over")


def test_a_checkpoint_without_its_hash_and_two_damaged_ones_give_nothing(
    checkpoints: Checkpoints, said: list[str]
) -> None:
    checkpoints.save(state(1), 1).with_name("step-000000001.pt.sha256").unlink()
    checkpoints.save(state(2), 2).write_bytes(b"")
    assert checkpoints.latest() is None
    assert len(said) == 2


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("/nowhere/evil",))


def test_a_pickled_object_is_refused_even_with_a_matching_hash(checkpoints: Checkpoints, said: list[str]) -> None:
    from darkroom.files import sha256_file

    checkpoints.save(state(1), 1)
    path = checkpoints.folder / "step-000000002.pt"
    path.write_bytes(pickle.dumps({"network": Evil()}))
    path.with_name(path.name + ".sha256").write_text(sha256_file(path))
    latest = checkpoints.latest()
    assert latest is not None
    assert latest["progress"]["steps"] == 1
    assert len(said) == 1


@pytest.mark.parametrize(
    "moment", ["torch.save", "darkroom.training.checkpoints.sha256_file", "os.fsync", "pathlib.Path.replace"]
)
def test_killed_while_saving_the_earlier_checkpoint_is_whole(
    checkpoints: Checkpoints, said: list[str], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    checkpoints.save(state(1), 1)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(moment, killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(state(2), 2)
    latest = checkpoints.latest()
    assert latest is not None
    assert latest["progress"]["steps"] == 1
    assert said == []
    assert steps(checkpoints) == ["step-000000001.pt", "step-000000001.pt.sha256"]


def test_full_disk_is_a_sentence_and_leaves_the_earlier_one(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    checkpoints.save(state(1), 1)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(UserError, match="the disk is full"):
            checkpoints.save(state(2), 2)
    latest = checkpoints.latest()
    assert latest is not None
    assert latest["progress"]["steps"] == 1


def test_finished_result_is_kept_and_steps_let_go(checkpoints: Checkpoints, said: list[str]) -> None:
    ours = session(small(), digits(0, 100), digits(100, 200))
    assert checkpoints.finished() is None
    checkpoints.save(ours.state_dict(), 0)
    records(ours)
    outcome = ours.result()
    checkpoints.finish({"outcome": vars(outcome), "records": [1.5, 2.5]})
    assert steps(checkpoints) == ["finished.pt", "finished.pt.sha256"]
    kept = checkpoints.finished()
    assert kept is not None
    assert same_weights(kept["outcome"]["weights"], outcome.weights)
    assert {**kept["outcome"], "weights": 0} == {**vars(outcome), "weights": 0}
    (checkpoints.folder / "finished.pt").write_bytes(b"")
    assert checkpoints.finished() is None
    assert len(said) == 1

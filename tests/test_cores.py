"""Threads that stay on their cores while a training runs, and are free again after it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from darkroom.training import cores
from darkroom.training.cores import own_cores

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="threads are held on Linux alone")


@pytest.fixture
def all_cores() -> Iterator[int]:
    before = torch.get_num_threads()
    num = len(cores._places())
    torch.set_num_threads(num)
    yield num
    torch.set_num_threads(before)


def places(threads: int) -> dict[int, set[int]]:
    """Where each of torch's threads may run."""
    openmp, found = cores._openmp(), {}
    assert openmp is not None, "pip's torch brings libgomp"
    cores._in_each_thread(openmp, threads, lambda number: found.update({number: os.sched_getaffinity(0)}))
    return found


def test_each_thread_has_a_core_of_its_own_and_is_free_afterwards(all_cores: int) -> None:
    if all_cores < 2:
        pytest.skip("one core has nothing to share")
    everywhere = os.sched_getaffinity(0)
    with own_cores(CPU):
        held = places(all_cores)
        assert len(held) == all_cores
        assert set.union(*held.values()) == everywhere
        assert sum(map(len, held.values())) == len(everywhere), "no CPU is given twice"
    assert places(all_cores) == dict.fromkeys(range(all_cores), everywhere)


def test_they_are_free_after_an_error_and_after_a_training_that_nobody_goes_on_with(all_cores: int) -> None:
    everywhere = os.sched_getaffinity(0)
    with pytest.raises(ValueError, match="stop"), own_cores(CPU):
        raise ValueError("stop")
    assert places(all_cores) == dict.fromkeys(range(all_cores), everywhere)

    def training() -> Iterator[int]:
        with own_cores(CPU):
            yield 1

    records = training()
    next(records)
    del records  # a pruned trial
    assert places(all_cores) == dict.fromkeys(range(all_cores), everywhere)


def test_fewer_threads_than_cores_and_gpus_are_left_alone(all_cores: int) -> None:
    everywhere = os.sched_getaffinity(0)
    with own_cores(torch.device("cuda")):
        assert os.sched_getaffinity(0) == everywhere
    torch.set_num_threads(1)
    with own_cores(CPU):
        assert os.sched_getaffinity(0) == everywhere, "another training beside this one has threads too"


def test_two_hardware_threads_of_a_core_are_one_place(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert cores._places() == [{0, 2}, {1, 3}]

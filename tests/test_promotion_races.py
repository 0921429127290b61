"""Two machines promote on one server: whichever call of the first the second falls in front of, both are on record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from champions import candidate, packed_set
from darkroom.errors import UserError
from darkroom.packed import PackedSet
from darkroom.promoting.candidate import Candidate
from darkroom.tracking import machine
from darkroom.tracking.registry import Registry
from darkroom.tracking.store import Store
from darkroom.tracking.versions import line_of
from promote import promote
from stores import store_at
from test_promote import gate, holders

CALLS = [name for name in vars(MlflowClient) if name.split("_")[0] in ("create", "delete", "get", "search", "set")]


def preempted(monkeypatch: pytest.MonkeyPatch, place: int, do: Callable[[], Any]) -> list[str]:
    """The client's calls from now on, less those that it makes in a call; `do` is called right before the one at `place`."""
    made: list[str] = []
    depth = 0

    def counted(name: str) -> Callable[..., Any]:
        plain = getattr(MlflowClient, name)

        def method(*args: Any, **options: Any) -> Any:
            nonlocal depth
            if not depth:
                made.append(name)
                if len(made) - 1 == place:
                    do()
            depth += 1
            try:
                return plain(*args, **options)
            finally:
                depth -= 1

        return method

    for name in CALLS:
        monkeypatch.setattr(MlflowClient, name, counted(name))
    return made


def raced(packed: PackedSet, stores: list[Store], asked: list[Candidate], name: str, place: int) -> list[str]:
    """The first promotes, the second in front of one of its calls: how both ended, and the calls where there is none."""
    ended: list[str] = []

    def run(number: int, host: str) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(machine, "this_process", lambda: {**this_process, machine.HOST: host})
            try:
                promote(packed, asked[number], promote=gate(name=name), store=stores[number])
                ended.append("promoted")
            except UserError as refusal:
                ended.append(str(refusal))

    this_process = machine.this_process()
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = preempted(monkeypatch, place, lambda: run(1, "the second's"))
        run(0, "the first's")
    return [*ended, *made] if place < 0 else ended


@pytest.mark.parametrize(("rights", "earlier"), [((80, 90), False), ((90, 80), True)])
def test_a_promotion_in_front_of_any_call_of_another(
    store: Store, tmp_path: Path, rights: tuple[int, int], earlier: bool
):
    packed = packed_set(tmp_path / "packed")
    stores = [store, store_at(tmp_path / "elsewhere", uri=f"sqlite:///{tmp_path / 'mlflow.db'}")]
    asked = [candidate(each, tmp_path / str(right), right=right) for each, right in zip(stores, rights, strict=True)]
    first = candidate(store, tmp_path / "first", right=70)

    def begin(name: str) -> Registry:
        if earlier:
            promote(packed, first, promote=gate(name=name), store=store)
        return Registry(store, name)

    begin("alone")
    _, *calls = raced(packed, stores, asked, "alone", -1)
    assert len(calls) > 20
    unseen = calls.index("set_registered_model_alias")  # MLflow cannot compare and set
    for place in range(len(calls)):
        registry = begin(f"race {place}")
        before = len(registry.decisions())
        ended = raced(packed, stores, asked, registry.name, place)
        assert len(ended) == 2, place
        results = [json.loads(text)["result"] for text in registry.decisions()][before:]
        assert sorted(result.split()[0] for result in results) == sorted(map(_first_word, ended)), ended
        holder = registry.champion()
        assert holder is not None
        champion = str(holder.version)
        assert champion in {result.split()[-1] for result in results if result.startswith("promoted")}, place
        assert {version.tags["darkroom.state"] for version in registry.versions()} == {"complete"}
        found = [f"found version {champion} champion"] if place == unseen else []
        assert [line.split(" (was ")[0] for line in registry.tidy()] == found, place
        assert holders(registry) == (champion, next(iter(line_of(holder)), None)), "what lagged is put right"


def _first_word(ended: str) -> str:
    """Of the decision that a promotion which ended so must have left."""
    if ended == "promoted":
        return "promoted"
    return "refused:" if ended.startswith("not promoted") else "not"

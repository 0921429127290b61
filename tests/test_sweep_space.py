"""The search space: what is drawn, under which conditions, and when it is tried out."""

from __future__ import annotations

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from darkroom.errors import UserError
from darkroom.params import Dimension, Params, with_values
from darkroom.sweeping.checking import check_space
from darkroom.sweeping.space import distribution, identity, make_space

MOMENTUM = {"low": 0.8, "high": 0.99, "when": {"train.optimizer": "sgd"}}
OPTIMIZER = {"choices": ["sgd", "adamw"]}


def space(**dimensions: dict[str, object]):
    return make_space({key.replace("__", "."): Dimension.model_validate(value) for key, value in dimensions.items()})


def draws(searched, count: int = 40):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    return [searched.suggest(study.ask()) for _ in range(count)], study


def test_a_conditional_key_is_drawn_only_where_its_condition_holds():
    points, _ = draws(space(train__momentum=MOMENTUM, train__optimizer=OPTIMIZER))
    assert {point["train.optimizer"] for point in points} == {"sgd", "adamw"}
    assert all(("train.momentum" in point) == (point["train.optimizer"] == "sgd") for point in points)


def test_a_key_that_waits_for_one_that_is_absent_is_absent():
    searched = space(
        train__weight_decay={"low": 0.0, "high": 0.1, "when": {"train.momentum": 0.9}},
        train__momentum={"choices": [0.8, 0.9], "when": {"train.optimizer": "sgd"}},
        train__optimizer=OPTIMIZER,
    )
    points, _ = draws(searched)
    assert all(("train.weight_decay" in point) == (point.get("train.momentum") == 0.9) for point in points)
    assert any("train.weight_decay" in point for point in points)


def test_lists_go_through_the_storage_and_come_back():
    searched = space(model__blocks={"choices": [[1, 1], [2, 2, 2]]})
    points, study = draws(searched)
    assert {tuple(point["model.blocks"]) for point in points} == {(1, 1), (2, 2, 2)}
    assert [searched.decode(trial.params) for trial in study.trials] == points
    assert all(searched.encode(point) == trial.params for point, trial in zip(points, study.trials, strict=True))


@pytest.mark.parametrize(
    ("key", "given", "kind"),
    [
        ("train.lr", {"low": 1, "high": 10}, "FloatDistribution(high=10.0, log=False, low=1.0, step=None)"),
        (
            "train.lr",
            {"low": 1e-3, "high": 1, "log": True},
            "FloatDistribution(high=1.0, log=True, low=0.001, step=None)",
        ),
        ("model.width", {"low": 16, "high": 50, "step": 8}, "IntDistribution(high=48, log=False, low=16, step=8)"),
        ("model.width", {"low": 4, "high": 64, "log": True}, "IntDistribution(high=64, log=True, low=4, step=1)"),
        (
            "train.momentum",
            {"low": 0.5, "high": 0.94, "step": 0.1},
            "FloatDistribution(high=0.9, log=False, low=0.5, step=0.1)",
        ),
    ],
)
def test_the_distribution_follows_the_key_and_ends_where_steps_lead(key: str, given: dict[str, object], kind: str):
    assert str(distribution(key, Dimension.model_validate(given))) == kind


@given(st.integers(1, 9), st.integers(1, 3000), st.integers(0, 30))
def test_steps_of_fractions_are_drawn_as_they_are_listed(count: int, mills: int, seed: int):
    searched = space(train__lr={"low": 0.05, "high": 0.05 + count * mills / 1000 + 0.0005, "step": mills / 1000})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    listed = {identity(point) for point in searched.points or []}
    assert {identity(searched.suggest(study.ask())) for _ in range(5)} <= listed


def test_points_are_listed_with_conditions_resolved():
    searched = space(
        train__momentum={"choices": [0.8, 0.9], "when": {"train.optimizer": "sgd"}}, train__optimizer=OPTIMIZER
    )
    assert [identity(point) for point in searched.points or []] == [
        '{"train.momentum": 0.8, "train.optimizer": "sgd"}',
        '{"train.momentum": 0.9, "train.optimizer": "sgd"}',
        '{"train.optimizer": "adamw"}',
    ]
    assert space(train__lr={"low": 0.1, "high": 1.0}).points is None


def test_a_choice_that_no_point_can_have_is_told_before_the_first_trial(params: Params):
    with pytest.raises(
        UserError, match=r"no point with model.name: mlp can be trained: model.blocks: \[1, 1, 1\] means nothing"
    ):
        check_space(params, space(model__name={"choices": ["mlp", "resnet"]}))
    check_space(params, space(model__name={"choices": ["resnet"]}, train__lr={"low": 0.1, "high": 1.0}))
    with pytest.raises(UserError, match="train.devices: 2 means nothing to a sweep"):
        check_space(with_values(params, {"train.devices": 2}), space(train__lr={"low": 0.1, "high": 1.0}))


def test_conditions_that_cannot_be_met_are_refused_all_at_once(params: Params):
    with pytest.raises(UserError) as refused:
        with_values(params, {"sweep.space": {
            "train.lr": {"low": 1.0, "high": 2.0, "when": {"train.optimizer": "lion"}},
            "train.optimizer": {"choices": ["sgd", "sgd"], "when": {"train.lr": 1.5}},
            "model.width": {"low": 4, "high": 8, "step": 9},
        }})  # fmt: skip
    for part in (
        "lion is never drawn",
        "holds sgd twice",
        "step: 9",
        "train.lr and train.optimizer wait for each other",
    ):
        assert part in str(refused.value)

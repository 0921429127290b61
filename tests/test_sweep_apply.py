"""The winner goes into params.yaml, and nothing else there changes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from darkroom.errors import UserError
from darkroom.params import as_yaml, flatten, parse_yaml, read_params
from darkroom.sweeping.applying import apply
from pipelines import REPOSITORY

WINNER = {
    "train.lr": 5e-5,
    "train.batch_size": 128,
    "model.blocks": [2, 2],
    "train.optimizer": "sgd",
    "augment.flip": True,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(shutil.copy(REPOSITORY / "params.yaml", tmp_path / "params.yaml"))


def test_values_change_and_every_comment_stays(file: Path):
    before = file.read_text().splitlines()
    difference = apply(file, WINNER)
    after = file.read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert [new for _, new in changed] == [
        "  flip: true # mirror half of the pictures left to right",
        "  blocks: [2, 2] # resnet: blocks in each stage, auto: [2, 2, 2, 2]; vgg: convolutions in each, auto: [1, 1, 2, 2]",
        "  batch_size: 128 # pictures in one optimizer step, over all devices",
        "  optimizer: sgd # adamw | sgd (Nesterov momentum), which wants about 30 times the lr",
        "  lr: 5.0e-05 # highest learning rate of the schedule",
    ]
    assert [line[1:] for line in difference.splitlines() if line.startswith("+  ")] == [new for _, new in changed]
    values = flatten(read_params(file))
    assert {key: values[key] for key in WINNER} == WINNER
    assert yaml.safe_load(file.read_text())["train"]["lr"] == 5e-5, "a number to YAML 1.1 too"


def test_applying_twice_changes_nothing(file: Path):
    apply(file, WINNER)
    stamp = file.stat().st_mtime_ns
    assert apply(file, WINNER) == ""
    assert file.stat().st_mtime_ns == stamp


def test_line_ends_and_block_lists_stay(tmp_path: Path):
    file = tmp_path / "params.yaml"
    file.write_bytes(
        b"model: # the network\r\n  blocks:\r\n    - 1\r\n    - 2 # two\r\n  # next\r\n  name: 'mlp' # m\xc3\xbc\r\n"
    )
    apply(file, {"model.blocks": [3, 4], "model.name": "resnet"})
    assert file.read_bytes() == (
        b"model: # the network\r\n  blocks:\r\n    [3, 4] # two\r\n  # next\r\n  name: resnet # m\xc3\xbc\r\n"
    )


@pytest.mark.parametrize("text", ["base: &lr 0.1\ntrain:\n  lr: *lr\n", "train: {}\n", "train:\n  epochs: 3\n"])
def test_what_cannot_be_changed_in_place_is_said_and_left(tmp_path: Path, text: str):
    file = tmp_path / "params.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match="set by hand"):
        apply(file, {"train.lr": 0.5})
    assert file.read_text() == text


@given(
    st.one_of(
        st.floats(allow_nan=False, allow_infinity=False),
        st.integers(),
        st.booleans(),
        st.text(),
        st.lists(st.integers()),
    )
)
@example("\n")
@example("a\u2028b\r\n")
def test_any_value_reads_back_in_both_versions_of_yaml(value: Any):
    text = f"key: {as_yaml(value)} # comment"
    assert parse_yaml(text) == yaml.safe_load(text) == {"key": value}
    assert "\n" not in text

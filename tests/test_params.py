"""params.yaml: what is taken, and that anything else is refused in words."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import ruamel.yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from darkroom.errors import UserError
from darkroom.params import SECTIONS, Params, check_params, flatten, parse_yaml, read_params, with_values
from edited_params import TEXT, changed
from pipelines import REPOSITORY


def test_the_published_file_is_taken_as_it_stands():
    params = read_params(REPOSITORY / "params.yaml")
    assert params.data.name == "digits"
    assert params.train.lr == 0.003
    assert set(flatten(params)) >= {"data.name", "model.blocks", "train.lr", "sweep.space.train.lr.low"}


@pytest.mark.parametrize(
    ("written", "number"),
    [("5e-4", 5e-4), ("1e-05", 1e-5), ("1E-3", 1e-3), ("1", 1.0), (".5", 0.5), ("+.5", 0.5), ("1.", 1.0), ("0x10", 16.0)],
)  # fmt: skip
def test_every_spelling_of_a_number_is_that_number(written: str, number: float):
    lr = check_params(parse_yaml(changed("train.lr", written))).train.lr
    assert lr == number
    assert type(lr) is float


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_that_dvc_writes_is_read_as_that_number(number: float):
    # `-S train.lr=1e-5` goes through ruamel's YAML 1.2, which writes 1e-05
    stream = StringIO()
    ruamel.yaml.YAML().dump({"lr": number}, stream)
    assert parse_yaml(stream.getvalue())["lr"] == number


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "y", "n", "1:30", "1_000", "2020-01-01", "0o9", "1e", "."])
def test_words_of_yaml_1_1_stay_text(word: str):
    assert parse_yaml(f"key: {word}") == {"key": word}


def test_a_missing_or_binary_file_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"params.yaml is missing.*git checkout params.yaml brings it back"):
        read_params(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_bytes(b"data: \xff\xfe")
    with pytest.raises(UserError, match=r"params.yaml: byte 6 is no UTF-8 text"):
        read_params(tmp_path / "params.yaml")


def test_a_byte_order_mark_and_windows_line_ends_are_taken(tmp_path: Path):
    (tmp_path / "params.yaml").write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert read_params(tmp_path / "params.yaml") == read_params(REPOSITORY / "params.yaml")


yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def refusal(call: Callable[[], object]) -> str | None:
    """What UserError says, None where there is none; anything else raised fails the test."""
    try:
        call()
    except UserError as error:
        return str(error)
    return None


@given(st.text(alphabet=st.sampled_from("ab:-[]{}#&*!|>'\"%@`,?\n\t 01.e~\0é"), max_size=40))
def test_any_text_is_parsed_or_refused_in_words(text: str):
    said = refusal(lambda: parse_yaml(text))
    assert said is None or said.startswith("params.yaml")


@given(st.sampled_from(sorted(flatten({n: dict.fromkeys(s.model_fields) for n, s in SECTIONS.items()}))), yaml_values)
def test_any_value_of_any_key_is_taken_or_refused_in_words(key: str, value: Any):
    section, name = key.split(".")
    values = parse_yaml(TEXT)
    values[section][name] = value
    said = refusal(lambda: check_params(values))
    assert said is None or said.startswith("params.yaml: ")
    assert "validation" not in (said or ""), "pydantic's own words"


def test_parameters_are_frozen(params: Params):
    with pytest.raises(ValidationError, match="frozen"):
        params.train.lr = 1.0  # type: ignore[misc]


def test_changes_by_dotted_key_are_checked_as_a_whole(params: Params):
    new = with_values(params, {"train.lr": 0.02, "model.blocks": [2, 2]})
    assert (new.train.lr, new.model.blocks) == (0.02, [2, 2])
    assert params.train.lr == 0.003
    assert new.sweep == params.sweep
    with pytest.raises(UserError, match=r"train.lr: 0 is too small"):
        with_values(params, {"train.lr": 0})
    with pytest.raises(UserError, match=r"train.lrr: unknown key; did you mean train.lr\?"):
        with_values(params, {"train.lrr": 0.1})
    with pytest.raises(UserError, match=r"lr: unknown key; did you mean train.lr\?"):
        with_values(params, {"lr": 0.1})
    with pytest.raises(UserError, match=r"model.blocks: \[1, 1, 1\] means nothing for mlp"):
        with_values(params, {"model.name": "mlp"})


def test_flattened_keys_lead_back_to_their_values(params: Params, params_values: dict[str, Any]):
    for key, value in flatten(params_values).items():
        if not key.startswith("sweep.space"):
            assert with_values(params, {key: value}) == params
    assert flatten({"a": {"b": {"c": 1}, "d": []}, "e": {}}) == {"a.b.c": 1, "a.d": [], "e": {}}


def test_every_comparison_survives_a_round_trip(params: Params):
    assert check_params(params.model_dump(exclude_none=True)) == params
    assert all(not isinstance(v, float) or math.isfinite(v) for v in flatten(params).values())


def test_a_fault_is_told_within_a_second_and_before_anything_heavy_is_imported(tmp_path: Path):
    (tmp_path / "params.yaml").write_text(changed("train.lr", "fast"))
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from darkroom.params import read_params\n"
        "try: read_params()\n"
        "except Exception as error: print(error)\n"
        "print([m for m in ('torch', 'torchvision', 'mlflow', 'optuna', 'numpy', 'sklearn') if m in sys.modules])"
    )
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", program, str(REPOSITORY / "stages")],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        seconds.append(time.perf_counter() - started)
    assert "train.lr: 'fast' is text, not a number" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
    assert min(seconds) < 1

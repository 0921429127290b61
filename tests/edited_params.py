"""params.yaml as a person edits it, and what it says then."""

from __future__ import annotations

import re

import pytest

from darkroom.errors import UserError
from darkroom.params import check_params, parse_yaml
from pipelines import REPOSITORY

TEXT = (REPOSITORY / "params.yaml").read_text()


def faults(text: str) -> list[str]:
    """The lines of the error that params.yaml with this text gives, without their indentation."""
    with pytest.raises(UserError) as error:
        check_params(parse_yaml(text))
    return [line.strip() for line in str(error.value).splitlines()]


def changed(key: str, value: str) -> str:
    """params.yaml with `key`'s value written as `value`, as a person edits the line."""
    section, name = key.split(".")
    lines = TEXT.splitlines()
    begin = lines.index(next(line for line in lines if line.startswith(f"{section}:")))
    place = next(i for i in range(begin, len(lines)) if lines[i].startswith(f"  {name}:"))
    lines[place] = f"  {name}: {value}"
    return "\n".join(lines) + "\n"


def added(section: str, name: str) -> str:
    """params.yaml with one more key, as `-S '+train.lrr=3'` or a person adds it."""
    return re.sub(rf"^({section}:.*)$", rf"\1\n  {name}: 3", TEXT, count=1, flags=re.MULTILINE)

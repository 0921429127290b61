"""Reading params.yaml: YAML 1.2's scalars, and every fault in one message.

PyYAML follows YAML 1.1, where `5e-4` and `1e-05` are text and `off` is false; DVC writes and reads YAML 1.2.
The loader here resolves scalars as YAML 1.2's core schema does (https://yaml.org/spec/1.2.2/#103-core-schema),
so that a value means the same to DVC, to this project and to the person who wrote it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from darkroom.errors import UserError

_SCALARS = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's scalars that refuses a key given twice."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a list or mapping is no key", problem_mark=key_node.start_mark)
            name = self.construct_object(key_node, deep=True)
            if name in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {name!r} stands twice", problem_mark=key_node.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), [c if c != "\0" else "" for c in _first])


def _int(_loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(node.value)
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _float(_loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(node.value).lower().replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


def parse_yaml(text: str, name: str = "params.yaml") -> Any:
    """The values in `text`. Raises UserError with the line where it is no YAML or names a key twice."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        tab = " (YAML takes spaces, not tabs)" if "\\t" in str(error.problem) else ""
        raise UserError(f"{name}{where}: {error.problem}{tab}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of more digits than Python converts
        raise UserError(f"{name}: {error}") from None
    except RecursionError:
        raise UserError(f"{name}: lists or mappings inside each other, too deep to read") from None


def read_yaml(path: Path) -> Any:
    """The values in the file. Raises UserError where it is missing, no text or no YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            f"{path.name} is missing: it lies beside dvc.yaml (git checkout {path.name} brings it back)"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path.name}: byte {error.start} is no UTF-8 text (save the file as UTF-8)") from None
    return parse_yaml(text, path.name)


def as_yaml(value: Any) -> str:
    """One line that YAML 1.1 and 1.2 read alike: 5.0e-05 is a number to both, 5e-05 is text to one."""
    quoted = (
        '"' if isinstance(value, str) and "".join(value.splitlines()) != value else None
    )  # else it takes many lines
    text = yaml.safe_dump(
        [value], default_style=quoted, default_flow_style=True, width=float("inf"), allow_unicode=True
    )
    return text.strip().removeprefix("[").removesuffix("]")

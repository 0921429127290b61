"""Writing the winner into params.yaml: only the values change, to the byte."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from darkroom.errors import UserError
from darkroom.files import write_bytes
from darkroom.params import as_yaml, flatten, parse_yaml


def apply(path: Path, changes: Mapping[str, Any]) -> str:
    """Sets {"train.lr": 0.1, ...} in the file and gives the difference, empty where it says all this already.

    Comments, order, spacing and line ends stay as they are. Raises UserError where the file is such that a value cannot
    be set in its place (an alias, a missing key).
    """
    before = path.read_bytes().decode("utf-8")
    present = flatten(parse_yaml(before, path.name))
    changes = {key: value for key, value in changes.items() if present.get(key) != value}
    after = with_changes(before, changes)
    if not _says(after, present | changes):
        wanted = "\n".join(f"  {key}: {as_yaml(value)}" for key, value in changes.items())
        raise UserError(f"{path.name} is written in a way that this cannot change; set by hand:\n{wanted}")
    if after != before:
        write_bytes(path, after.encode())
    names = (path.name, path.name)
    return "".join(difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), *names, n=0))


def with_changes(text: str, changes: Mapping[str, Any]) -> str:
    """The YAML text with other values at the places of those keys."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    places = [(_find(root, key), as_yaml(value)) for key, value in changes.items()]
    for node, new in sorted((place for place in places if place[0]), key=lambda place: -place[0].start_mark.index):
        text = text[: node.start_mark.index] + new + text[_end(node) :]
    return text


def _says(text: str, values: Mapping[str, Any]) -> bool:
    try:
        return flatten(parse_yaml(text)) == values
    except UserError:
        return False


def _find(node: Any, key: str) -> Any:
    """The value's node; None where there is none."""
    for name in key.split("."):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((value for key_node, value in pairs if key_node.value == name), None)
    return node


def _end(node: Any) -> int:
    """Where the value's text ends; a block sequence's own mark lies behind the comments that follow it."""
    while isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        node = node.value[-1]
    return int(node.end_mark.index)

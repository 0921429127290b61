"""Pydantic's findings as lines that say the value, what is allowed and what was meant."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from darkroom.params.base import Fault, Section
from darkroom.params.sweep import Dimension

_LIMITS = {
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
}
_WRONG_TYPE = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number", "bool_type": "true or false",
    "string_type": "text", "list_type": "a list, such as [2, 2, 2, 2]", "dict_type": "a mapping", "model_type": "a mapping",
    "finite_number": "a finite number",
}  # fmt: skip


def explain(
    name: str,
    schema: type[Section],
    values: dict[str, Any],
    sections: Mapping[str, type[Section]],
    only: str | None = None,
) -> list[Fault]:
    """Every fault of the section's values; of one key alone with `only`."""
    try:
        schema.model_validate(values)
    except ValidationError as error:
        grouped: dict[str, list[ErrorDetails]] = {}
        for details in error.errors(include_url=False):
            grouped.setdefault(_place(details), []).append(details)
        return [
            (f"{name}.{place}", _sentence(name, place, found, schema, sections))
            for place, found in grouped.items()
            if only in (None, place)
        ]
    return []


def _place(details: ErrorDetails) -> str:
    """The key, without pydantic's own words for members of a union or items of a list."""
    location = [str(part) for part in details["loc"]]
    return ".".join(location[:3]) if location[0] == "space" else location[0]


def _sentence(
    section: str, place: str, found: list[ErrorDetails], schema: type[Section], sections: Mapping[str, type[Section]]
) -> str:
    first = found[0]
    if first["type"] == "extra_forbidden":
        if place.startswith("space."):
            return f"unknown key (known: {', '.join(Dimension.model_fields)})"
        return unknown_key(f"{section}.{place}", sections)
    field = schema.model_fields.get(place.split(".", maxsplit=1)[0])
    about = field.description if field else ""
    if first["type"] == "missing":
        return f"missing: add it ({about})"
    value = first["input"]
    if isinstance(value, str) and not any(
        d["type"] in ("literal_error", "string_pattern_mismatch", "string_too_short") for d in found
    ):
        return f"{value!r} is text, not {_wanted(found)}{_without_quotes(value)}"
    if all(d["type"] in _LIMITS for d in found):
        limit = _LIMITS[first["type"]].format(**first.get("ctx", {}))
        size = "too small" if first["type"].startswith("greater") else "too large"
        return f"{value} is {size} ({limit})"
    return f"{value!r} is not {_wanted(found)}"


def _wanted(found: list[ErrorDetails]) -> str:
    """What would have been taken: choices, kinds and limits, each once."""
    parts: list[str] = []
    for details in found:
        kind, context = details["type"], details.get("ctx", {})
        if kind == "literal_error":
            parts.append("one of " + str(context["expected"]).replace("'", "").replace(" or ", ", "))
        elif kind in _LIMITS:
            parts.append("a number " + _LIMITS[kind].format(**context))
        else:
            parts.append(_WRONG_TYPE.get(kind, details["msg"]))
    return " or ".join(dict.fromkeys(parts))


def _without_quotes(value: str) -> str:
    try:
        float(value)
    except ValueError:
        return ""
    return f" (write {value} without quotes)"


def unknown_key(key: str, sections: Mapping[str, type[Section]]) -> str:
    """The sentence for a key that does not exist, with the nearest one that does."""
    section, _, field = key.partition(".")
    known = {f"{name}.{known_field}" for name, schema in sections.items() for known_field in schema.model_fields} | set(
        sections
    )
    for name, schema in sections.items():
        for known_field, info in schema.model_fields.items():
            extra = info.json_schema_extra
            also = extra.get("also", []) if isinstance(extra, dict) else []
            if name == section and isinstance(also, list) and field in also:
                return f"unknown key; did you mean {name}.{known_field}?"
    close = get_close_matches(key, known, n=1, cutoff=0.7)
    if not close:
        close = [
            f"{name}.{field or section}"
            for name, schema in sections.items()
            if (field or section) in schema.model_fields
        ][:1]
    if close:
        return f"unknown key; did you mean {close[0]}?"
    have = ", ".join(sections[section].model_fields) if section in sections else ", ".join(sections)
    return f"unknown key (known: {have})"

"""Pydantic's findings as lines that say the value, what is allowed and what was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from darkroom.errors import UserError
from darkroom.params.base import Fault, Section
from darkroom.params.promote import NAME
from darkroom.params.reading import parse_yaml
from darkroom.params.sweep import Dimension

_LIMITS = {
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
}
_WRONG_TYPE = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number", "bool_type": "true or false",
    "string_type": "text", "dict_type": "a mapping", "model_type": "a mapping", "finite_number": "a finite number",
    "too_short": "a list of at least {min_length}", "too_long": "a list of at most {max_length}",
    "string_too_short": "a text of at least {min_length} letter",
    "invalid_key": "a name in letters",
}  # fmt: skip
_PATTERNS = {
    r"^[1-9]\d* steps?$": "a text such as '500 steps'",
    NAME: "a name of at most 80 letters, digits, _ . - and spaces, with a letter, digit or _ at both ends",
}
_CHOSEN_TEXT = ("literal_error", "string_pattern_mismatch", "string_too_short")
"""Findings on a text where text is allowed, only not this one."""
_UNQUOTED = ("int_type", "float_type", "bool_type")


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
    if isinstance(value, str) and not any(details["type"] in _CHOSEN_TEXT for details in found):
        return f"{value!r} is text, not {_wanted(found)}{_without_quotes(value, found)}"
    if all(d["type"] in _LIMITS for d in found):
        limit = _LIMITS[first["type"]].format(**first.get("ctx", {}))
        size = "too small" if first["type"].startswith("greater") else "too large"
        return f"{value} is {size} ({limit})"
    return f"{value!r} is not {_wanted(found)}{_without_quotes(value, found)}"


def _wanted(found: list[ErrorDetails]) -> str:
    """What would have been taken: choices, kinds and limits, each once."""
    return " or ".join(dict.fromkeys(_wanted_by(details) for details in found))


def _wanted_by(details: ErrorDetails) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind == "literal_error":
        choices = str(context["expected"]).replace("'", "").replace(" or ", ", ")
        return f"one of {choices}" if "," in choices else choices
    if kind == "list_type":
        return f"a list, such as [{details['input']}]"
    if kind in _LIMITS:
        return "a number " + _LIMITS[kind].format(**context)
    if kind == "string_pattern_mismatch":
        return _PATTERNS[context["pattern"]]
    return _WRONG_TYPE.get(kind, details["msg"]).format(**context)


def _without_quotes(value: Any, found: list[ErrorDetails]) -> str:
    """The hint for a number, or true and false, written as a text where it would have been taken."""
    if not isinstance(value, str) or not any(details["type"] in _UNQUOTED for details in found):
        return ""
    try:
        is_text = not isinstance(parse_yaml(value), int | float)
    except UserError:
        is_text = True
    return "" if is_text else f" (write {value} without quotes)"


def unknown_key(key: str, sections: Mapping[str, type[Section]]) -> str:
    """The sentence for a key that does not exist, with the nearest one that does."""
    meant = next(_meant(key, sections), None)
    if meant:
        return f"unknown key; did you mean {meant}?"
    section = key.partition(".")[0]
    have = ", ".join(sections[section].model_fields) if section in sections else ", ".join(sections)
    return f"unknown key (known: {have})"


def _meant(key: str, sections: Mapping[str, type[Section]]) -> Iterator[str]:
    """Keys that the person may have meant, the likeliest first."""
    section, _, field = key.rpartition(".")
    if section in sections:
        also = {other: name for name, info in sections[section].model_fields.items() for other in _also(info)}
        near = get_close_matches(field, sections[section].model_fields, n=1, cutoff=0.7)
        yield from (f"{section}.{name}" for name in ([also[field]] if field in also else near))
    elsewhere = {name: schema.model_fields for name, schema in sections.items()}
    yield from (f"{name}.{field}" for name, fields in elsewhere.items() if field in fields)
    known = [f"{name}.{other}" for name, fields in elsewhere.items() for other in fields]
    yield from get_close_matches(key, known if section else sections, n=1, cutoff=0.7)


def _also(field: FieldInfo) -> list[str]:
    """The names that people of other tools type for a key."""
    extra = field.json_schema_extra
    names = extra.get("also", []) if isinstance(extra, dict) else []
    return [str(name) for name in names] if isinstance(names, list) else []

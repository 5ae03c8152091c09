"""Reads fields of JSON values from outside: each may be null, missing or of another type."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

#: fields in which an object has its text
TEXTS: Final = ("text", "content", "value", "summary", "parts")
#: maximum number of levels of nesting in an unknown field. Deeper values become null
_MAX_DEPTH: Final = 50


def whole_characters(text: str) -> str:
    """Join pairs of surrogates to one character. Replace single surrogates by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def flat_text(value: Any) -> str:
    """The text in a field of any type: the text of an object, the joined texts of a list, or a number as text.

    A text that is nested deeper than _MAX_DEPTH is left out.
    """
    return _flat_text(value, depth=0)


def _flat_text(value: Any, *, depth: int) -> str:
    if isinstance(value, str):
        return value
    if depth > _MAX_DEPTH:
        return ""
    if isinstance(value, dict):
        return next(filter(None, (_flat_text(value.get(name), depth=depth + 1) for name in TEXTS)), "")
    if isinstance(value, list):
        return "".join([_flat_text(item, depth=depth + 1) for item in value])
    return "" if value is None or isinstance(value, bool) else json.dumps(value)


def finite_number(value: Any) -> float | None:
    """A finite number, which may be a text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def arguments_text(arguments: Any) -> str:
    """The arguments of a call as text. Some servers send them as an object."""
    arguments = "" if arguments is None else arguments
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def is_json(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def clean_value(value: Any, *, depth: int = 0) -> tuple[Any, int]:
    """Returns (copy of a value that every JSON parser and database accepts, its size in characters)."""
    if isinstance(value, str):
        return whole_characters(value), len(value)
    is_float = isinstance(value, float) and not math.isfinite(value)
    if is_float or (depth == _MAX_DEPTH and isinstance(value, dict | list)):
        return None, 1
    if isinstance(value, list):
        parts = [clean_value(item, depth=depth + 1) for item in value]
        return [part for part, _ in parts], 1 + sum(size for _, size in parts)
    if isinstance(value, dict):
        pairs, size = clean_value(list(map(list, value.items())), depth=depth - 1)
        return dict(pairs), size
    return value, 1


def objects_in(value: Any) -> list[Mapping[str, Any]]:
    """The objects in a list. A single object is treated as a list of one."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, dict)]


def object_in(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object in a field; {} if the field has another type."""
    field = value.get(name)
    return field if isinstance(field, dict) else {}

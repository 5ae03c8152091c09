"""Reads columns with JSON. A fact is read by parsing its column, never by searching the text.

Callers and models write keys and texts of their own into the same JSON, so a text that looks like a fact proves
nothing. The databases cannot parse the columns for us: a cast of PostgreSQL fails on a damaged row and on an escaped
NUL, and then one row would stop every reader.
"""

import json
from collections.abc import Mapping
from typing import Any


def json_object(text: str | None) -> dict[str, Any]:
    """The JSON object of a column; {} for NULL. Raises ValueError for anything else."""
    value = {} if text is None or text == "{}" else json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"the JSON is a {type(value).__name__}, not an object")
    return value


def object_or_empty(text: str | None) -> dict[str, Any]:
    """Like `json_object`, but {} for a damaged column."""
    try:
        return json_object(text)
    except ValueError:
        return {}


def list_or_empty(text: str | None) -> list[Any]:
    """The JSON list of a column; [] for NULL and for a damaged column."""
    try:
        value = json.loads(text or "[]")
    except ValueError:
        return []
    return value if isinstance(value, list) else []


def object_at(parsed: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object under this key; {} if there is none."""
    value = parsed.get(name)
    return value if isinstance(value, Mapping) else {}

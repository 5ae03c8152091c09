"""Searches in columns with JSON, which `canonical` wrote: keys sorted, no spaces.

Quotes inside JSON strings are escaped, so a search finds only a key, and never a text of a user.
"""

import json
from typing import Any

from sqlalchemy import ColumnElement

from ragbandit.shared.types import Json


def has_key(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    return column.contains(f'"{name}":', autoescape=True)


def has_value(column: ColumnElement[Any], name: str, value: Json) -> ColumnElement[bool]:
    """value: a number, a boolean or null; of a text, all texts that begin with it and a quote are found."""
    return column.contains(f'"{name}":{json.dumps(value)}', autoescape=True)


def has_object(column: ColumnElement[Any], name: str, *, first: str, last: str) -> ColumnElement[bool]:
    """Whether the object under `name` begins and ends with these entries, such as `"asked":true`."""
    return column.like(f'%"{name}":{{{first},%{last}}}%')


def key_pattern(name: str) -> str:
    """The LIKE pattern of `has_key`, for SQL text."""
    return f'%"{name}":%'


def object_pattern(name: str, *, first: str) -> str:
    """The LIKE pattern of an object under `name` that begins with this entry, for SQL text."""
    return f'%"{name}":{{{first},%'

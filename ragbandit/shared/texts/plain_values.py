"""Converts values of data frames and arrays to Python's types, without importing numpy or pandas."""

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

_PYTHON: Final = frozenset({str, int, float, bool, type(None), dict, list, tuple})


def plain(value: Any) -> Any:
    """Convert scalars to Python values, Decimal to float, arrays to lists, NA and NaT to None. Other values stay."""
    kind = type(value)
    if kind in _PYTHON:
        return value
    if kind.__name__ in ("NAType", "NaTType"):
        return None
    if kind.__name__ == "datetime64":  # for a time in nanoseconds `item` returns a number without a unit
        value = value.astype("datetime64[us]")
    for method in ("as_py", "tolist", "item"):
        convert = getattr(value, method, None)
        if callable(convert):
            return plain(convert())
    return float(value) if isinstance(value, Decimal) else value


def whole_number(value: object) -> object:
    """Convert 1.0, which some clients write, to 1. Other values are returned unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def for_json(value: Any) -> Any:
    """Convert a value for json.dumps (argument `default`). Raises TypeError if there is no conversion."""
    converted = plain(value)
    if converted is value:
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return converted


def is_missing(value: Any) -> bool:
    """Whether the value is None, NaN, NA or NaT."""
    if type(value) not in _PYTHON and not getattr(value, "shape", ()):
        value = plain(value)
    return value is None or (isinstance(value, float) and value != value)


def plain_tree(value: Any) -> Any:
    """Convert nested values for JSON: times to ISO 8601, durations to seconds, bytes and UUIDs to text.

    NaN, NA and NaT are left out of mappings, and become None in lists. Infinite numbers become None.
    """
    value = plain(value)
    if isinstance(value, dict):
        return {str(key): plain_tree(item) for key, item in value.items() if item is None or not is_missing(item)}
    if isinstance(value, list | tuple):
        return [plain_tree(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, UUID) else value

"""Values of data frames and arrays as Python's own, by their methods: numpy, pandas and Arrow are not imported."""

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

_OWN: Final = frozenset({str, int, float, bool, type(None), dict, list, tuple})
#: types of pandas for a value that is missing
_MISSING: Final = frozenset({"NAType", "NaTType"})


def plain(value: Any) -> Any:
    """A scalar as a value of Python, an array as a list, NA and NaT as None; any other value as it is."""
    kind = type(value)
    if kind in _OWN:
        return value
    if kind.__name__ in _MISSING:
        return None
    if kind.__name__ == "datetime64":  # in nanoseconds `item` gives a number, which says no unit
        value = value.astype("datetime64[us]")
    for method in ("as_py", "tolist", "item"):
        if callable(convert := getattr(value, method, None)):
            return plain(convert())
    return float(value) if isinstance(value, Decimal) else value


def for_json(value: Any) -> Any:
    """The `default` of json.dumps. Raises TypeError for what has no value of Python."""
    own = plain(value)
    if own is value:
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return own


def is_missing(value: Any) -> bool:
    """Whether data frames write this where there is no value: None, NaN, NA, NaT."""
    if type(value) not in _OWN and not getattr(value, "shape", ()):
        value = plain(value)
    return value is None or (isinstance(value, float) and value != value)


def plain_tree(value: Any) -> Any:
    """A value for JSON: times as ISO 8601, durations in seconds, bytes and ids as text; no members without a value."""
    value = plain(value)
    if isinstance(value, dict):
        return {str(key): plain_tree(each) for key, each in value.items() if each is None or not is_missing(each)}
    if isinstance(value, list | tuple):
        return [plain_tree(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, UUID) else value

"""Conversion of values for logs: JSON Lines, data frames, numpy, and columns of Parquet that Arrow does not convert.

    number    a number, true or false (1 or 0), a decimal, a number as text (see `written_number`)
    time      seconds since 1970; a date or time, also as text in ISO 8601; without a time zone, UTC
    text      text, a whole number, a UUID
    flag      true or false, 1 or 0, also as text
    list      a list or array, its JSON as text, or texts with commas, semicolons or bars between them
    mapping   an object, a list of pairs, or JSON as text

None, NaN, NaT and NA count as missing. The fields of a row and their conversions are in `jsonl`. A
conversion raises ValueError with a remedy as its text.
"""

import ast
import base64
import contextlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, Final
from uuid import UUID

import numpy as np

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import each_key_once
from ragbandit.shared.texts.formats import seconds_of
from ragbandit.shared.texts.plain_values import is_missing, plain, plain_tree
from ragbandit.shared.types import Features

#: the year 2100, seconds since 1970; a larger number must be a time in another unit
LATEST: Final = 4_102_444_800.0
_UNITS: Final = {2.6e11: "times after 2099", 1e14: "milliseconds", 1e17: "microseconds", math.inf: "nanoseconds"}
_FLAGS: Final = {
    **dict.fromkeys(("true", "yes", "t", "y", "1"), True),
    **dict.fromkeys(("false", "no", "f", "n", "0"), False),
}


def cell_number(value: Any, *, most: float = sys.float_info.max) -> float:
    if type(value) is float and abs(value) <= most:  # the fast path for most values
        return value
    value = plain(value)
    if isinstance(value, str):
        value = _FLAGS.get(value.strip().lower(), value)
    try:
        amount = written_number(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        amount = math.nan
    if not abs(amount) <= most:
        comma = ", with a decimal point instead of a comma" if isinstance(value, str) and "," in value else ""
        raise ValueError(f"Give a finite number, at most {most:g}{comma}")
    return amount


#: word for an outcome -> its quality; the words of `_FLAGS` are outcomes, too
_OUTCOMES: Final = {
    **dict.fromkeys(("correct", "right", "pass", "passed", "success", "solved", "resolved", "ok"), 1.0),
    **dict.fromkeys(("incorrect", "wrong", "fail", "failed", "failure", "unsolved", "unresolved"), 0.0),
}


def outcome(value: Any) -> float:
    """A quality as a number; also words such as "passed" and "wrong"."""
    known = _OUTCOMES.get(value.strip().lower()) if isinstance(value, str) else None
    return cell_number(value) if known is None else known


def written_number(text: str) -> float:
    """Parse a number as spreadsheets write it: "0,5", "1.234,5", "50%", "$0.5". Raises ValueError, also for "1,234"."""
    amount = text.strip().removeprefix("$")
    digits = amount.removesuffix("%").rstrip()
    if re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+\.\d*", digits):
        digits = digits.replace(",", "")
    elif re.fullmatch(r"[-+]?(?![1-9]\d{0,2},\d{3}$)(\d{1,3}(\.\d{3})+|\d+),\d+", digits):
        digits = digits.replace(".", "").replace(",", ".")
    return float(digits) / (100.0 if amount.endswith("%") else 1.0)


def seconds(value: Any) -> float:
    value = plain(value)
    if isinstance(value, date):  # datetime is a subclass
        value = value.isoformat()
    is_date = isinstance(value, str) and re.fullmatch(r"\s*\d{8}\s*", value)  # 20260101
    try:
        amount = math.nan if isinstance(value, bool) else _written_time(value) if is_date else float(value)
    except (TypeError, ValueError, OverflowError):
        amount = _written_time(value)
    if not abs(amount) < LATEST:
        unit = next((name for most, name in _UNITS.items() if abs(amount) < most), None)
        reason = "" if unit is None else f": these look like {unit}"
        raise ValueError(f"Give seconds since 1970, or a time in ISO 8601{reason}")
    return amount


def _written_time(value: Any) -> float:
    try:
        return seconds_of(value.replace(" UTC", "+00:00"))
    except (AttributeError, TypeError, ValueError, OverflowError):
        return math.nan


def flag(value: Any) -> bool:
    value = plain(value)
    if isinstance(value, str):
        value = _FLAGS.get(value.strip().lower())
    if value not in (0, 1):
        raise ValueError("Give true or false")
    return bool(value)


def whole(value: Any) -> int:
    value = plain(value)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    # the comparison is False for NaN, infinity, and numbers from 1e300 on
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300 or value % 1:
        raise ValueError("Give a whole number")
    return int(value)


def text(value: Any) -> str:
    if type(value) is str:
        return value
    value = plain(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8")  # UnicodeDecodeError is a ValueError
    if isinstance(value, float) and math.isfinite(value):
        value = int(value) if value.is_integer() else repr(value)
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        raise ValueError("Give a text")
    return value if type(value) is str else str(value)


def texts(value: Any) -> list[str]:
    if isinstance(value, str) and "[" not in value and re.search("[|;,]", value):
        value = [part.strip() for part in re.split("[|;,]", value)]  # a list in a cell of CSV
    return [text(item) for item in _items(value)]


def numbers(value: Any) -> list[float]:
    return [cell_number(item) for item in _items(value)]


def _items(value: Any) -> Sequence[Any]:
    value = from_text(plain(value))
    if not isinstance(value, list | tuple):
        raise ValueError("Give a list, or its JSON as text")
    return value


def mapping(value: Any) -> dict[str, Any]:
    value = parsed_cell(value)
    if not isinstance(value, dict):
        raise ValueError("Give an object, or its JSON as text")
    members: dict[str, Any] = plain_tree(value)
    return members


def is_empty(value: Any) -> bool:
    """Whether a cell has no value: it is missing, or an empty text, as CSV writes a missing value."""
    return is_missing(value) or (isinstance(value, str) and not value)


def members(value: Any) -> dict[str, Any]:
    return {name: part for name, part in mapping(value).items() if not is_missing(part)}


def gold(value: Any) -> Any:
    """Right answers as a list, also from its JSON: numbers become text, blanks are left out. Other values stay."""
    value = from_text(value) if isinstance(value, str) and value.lstrip().startswith(('["', "['")) else value
    answers = [value] if isinstance(value, str | int | float) else value
    if not isinstance(answers, list):
        return value
    return [
        text(one) if type(one) in (int, float) else one for one in answers if not is_missing(one) and str(one).strip()
    ]


def from_text(value: Any) -> Any:
    """The value of JSON in a text, or of a list or an object as pandas writes it. Returns other values unchanged."""
    if not isinstance(value, str):
        return value
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(value, object_pairs_hook=each_key_once)
    with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        if value[:1] in ("[", "{", "(") and len(value) <= 10_000:  # as pandas writes lists and objects into CSV
            return ast.literal_eval(value)
    return value


def parsed_cell(value: Any) -> Any:
    """Parse JSON in text, or a list of pairs (a map of Arrow), into an object. Other values are returned unchanged."""
    value = from_text(plain(value))
    if not isinstance(value, list | tuple) or (value and type(value[0]) in (float, int, str)):
        return value
    items = [tuple(pair.values()) if isinstance(pair, Mapping) else pair for pair in value]
    if not all(isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str) for item in items):
        return value
    return each_key_once(items)


def probabilities(value: Any) -> list[float] | dict[str, float]:
    value = parsed_cell(value)
    if isinstance(value, dict):
        return {str(arm): cell_number(share) for arm, share in value.items() if not is_missing(share)}
    return numbers(value)


def reward(value: Any) -> dict[str, Any]:
    value = parsed_cell(value)
    if isinstance(value, dict):
        return {name: part for name, part in value.items() if not is_missing(part)}
    return {"value": value}


def align_pmf(pmf: Any, *, arms: Sequence[str], field: str) -> Any:
    """Probabilities in the order of these arms, 0 for an arm that is not named. Raises InvalidInput for other arms."""
    if pmf is None:
        return None
    by_arm = isinstance(pmf, Mapping)
    if not (set(pmf) <= set(arms) if by_arm else len(pmf) == len(arms)):
        remedy = "log one probability per arm: a list aligned with arms, or an object from arm to probability"
        raise InvalidInput(f"the pmf does not fit the arms {', '.join(arms)}", field=field, remedy=remedy)
    return [pmf.get(arm, 0.0) for arm in arms] if by_arm else pmf


def features(value: object) -> Features:
    """float32, shape (d,), from an array, a list of numbers, or base64 of little-endian float32."""
    try:
        if isinstance(value, str):
            row = np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4").astype(np.float32)
        else:
            with np.errstate(over="ignore"):  # a number that is too large becomes infinite, and is refused below
                row = np.asarray(value, dtype=np.float32)
    except (ValueError, TypeError, OverflowError):
        row = np.empty(0, dtype=np.float32)
    if row.ndim != 1 or not row.size or not np.isfinite(row).all():
        raise ValueError("Give a list of finite numbers, or base64 of float32")
    return row


def convert_value(kind: Callable[[Any], Any], value: Any, *, field: str) -> Any:
    """Convert the value of a field with the function `kind`. Raises InvalidInput with field and remedy."""
    try:
        return kind(value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"{value!r:.40} cannot be used", field=field, remedy=str(error)) from error

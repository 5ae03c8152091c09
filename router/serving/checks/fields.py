"""Checks of single fields: text, ids, numbers and types, refused with the field and the remedy."""

import math
import re
from types import UnionType

import uuid_utils

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import MAX_TEXT, DecisionId

#: what an id may look like; also what RQ accepts for a job
ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: largest cap or count that makes sense
MAX_CAP = 1e9


def new_id() -> DecisionId:
    """A UUIDv7: unique, ordered by time."""
    return DecisionId(str(uuid_utils.uuid7()))


def checked_type(value: object, kind: type | UnionType, *, field: str, wanted: str) -> None:
    """Raises InvalidInput for a value that is not of this kind. wanted: the kind in words."""
    if not isinstance(value, kind):
        raise InvalidInput(
            f'"{field}" must be {wanted}, not {type(value).__name__}', field=field, remedy=f"pass {wanted}"
        )


def checked_text(text: object, *, field: str, most: int = MAX_TEXT, advice: str = "") -> str:
    """Text that can be stored, encoded and read: not blank, not too long, valid Unicode.

    most: characters. advice: added to the remedy of a text that is too long.
    """
    if not isinstance(text, str):
        raise InvalidInput(f'"{field}" must be text, not {type(text).__name__}', field=field, remedy="send a string")
    if not text.strip():
        remedy = "send at least one character that is not a space"
        raise InvalidInput(f'"{field}" is empty', field=field, remedy=remedy)
    if len(text) > most:
        remedy = f"send at most {most}{advice}"
        raise InvalidInput(f'"{field}" has {len(text)} characters', field=field, remedy=remedy)
    if "\x00" in text:
        raise InvalidInput(f'"{field}" holds a NUL character', field=field, remedy="remove it")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f'"{field}" is not valid Unicode (a lone surrogate)'
        raise InvalidInput(message, field=field, remedy="send UTF-8") from error
    return text


def checked_id(value: object, *, field: str) -> str:
    """An id of at most 64 letters, digits, dashes and underscores."""
    if not isinstance(value, str) or not ID_PATTERN.fullmatch(value):
        raise InvalidInput(
            f"{value!r:.80} is not an id", field=field, remedy="use 1 to 64 letters, digits, dashes or underscores"
        )
    return value


def checked_number(value: object, *, field: str, low: float = 0, high: float = MAX_CAP, hint: str = "") -> float:
    """A finite number in [low, high]. hint: added to the remedy of a number that is out of range."""
    # An int may be too large for a float: isfinite would overflow, the range below refuses it.
    real = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not real:
        raise InvalidInput(
            f"{value!r:.80} is not a finite number", field=field, remedy=f"send a number in [{low}, {high}]"
        )
    if not low <= value <= high:
        raise InvalidInput(
            f"{value!r:.80} is out of range", field=field, remedy=f"send a number in [{low}, {high}]{hint}"
        )
    return float(value)

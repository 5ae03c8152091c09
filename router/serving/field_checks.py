"""Checks of single fields: text, ids and types, refused with the field and the remedy."""

import re
from types import UnionType

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import MAX_TEXT

__all__ = ["ID_PATTERN", "checked_id", "checked_text", "checked_type"]

#: what an id may look like; also what RQ accepts for a job
ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")


def checked_type(value: object, kind: type | UnionType, *, field: str, wanted: str) -> None:
    """Raises InvalidInput for a value that is not of this kind. wanted: the kind in words."""
    if not isinstance(value, kind):
        raise InvalidInput(
            f'"{field}" must be {wanted}, not {type(value).__name__}', field=field, remedy=f"pass {wanted}"
        )


def checked_text(text: object, *, field: str) -> str:
    """Text that can be stored, encoded and read: not blank, not too long, valid Unicode."""
    if not isinstance(text, str):
        raise InvalidInput(f'"{field}" must be text, not {type(text).__name__}', field=field, remedy="send a string")
    if not text.strip():
        remedy = "send at least one character that is not a space"
        raise InvalidInput(f'"{field}" is empty', field=field, remedy=remedy)
    if len(text) > MAX_TEXT:
        raise InvalidInput(f'"{field}" has {len(text)} characters', field=field, remedy=f"send at most {MAX_TEXT}")
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

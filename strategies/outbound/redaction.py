"""Secrets kept out of what is kept.

Some servers repeat the key, or another header, that they were sent, and transports name a header that they cannot send.
Outcomes and logs are kept, so nothing that is or looks like a secret is.
"""

import re
from collections.abc import Iterable
from typing import Final

from ragbandit.router.errors import ConfigError

__all__ = ["check_header_value", "without_keys"]

#: what stands where a key stood
_HIDDEN: Final = "[key]"
#: a shorter key may be a piece of any word, and is hidden where it stands alone
_LONG_KEY: Final = 8
#: between the pieces of a header's value, as in "session=...; other=...": a server may repeat one of them alone
_BETWEEN: Final = re.compile(r"[\s;=,]+")
#: keys of OpenAI and of those who took over its habit, also with stars in the middle
_ANY_KEY: Final = re.compile(r"(?<![A-Za-z])sk-[\w*-]{8,}")


def check_header_value(value: str, *, what: str, field: str, remedy: str) -> None:
    """Raises ConfigError, which does not show it, for a value that no header can carry. what: holds it, for a message.

    Else the error of every call would be that of a header, with the value in it.
    """
    if value != value.strip() or not (value.isascii() and value.isprintable()):
        raise ConfigError(
            f"{what} holds a line break, a space at an end, or what is not ASCII", field=field, remedy=remedy
        )


def without_keys(text: str, *, secrets: Iterable[str]) -> str:
    """The text with "[key]" for each of these secrets, and for whatever looks like a key of OpenAI's.

    secrets: keys, and values of headers; hidden are also their pieces of 8 characters or more, and the last word.
    """
    hidden = {piece for secret in secrets for piece in _pieces(secret)}
    if hidden:
        longest_first = sorted(hidden, key=lambda piece: (-len(piece), piece))
        text = re.sub("|".join(map(_pattern, longest_first)), _HIDDEN, text)
    return _ANY_KEY.sub(_HIDDEN, text)


def _pieces(secret: str) -> set[str]:
    words = secret.split()
    parts = {part.strip("\"'") for part in _BETWEEN.split(secret)}
    # Of "Bearer ..." the token, however short.
    return {" ".join(words), *words[-1:], *(part for part in parts if len(part) >= _LONG_KEY)} - {""}


def _pattern(piece: str) -> str:
    """A regular expression for it as it is, and as JSON, repr and their like escape it."""
    found = piece[0] if piece[0].isalnum() else _escaped(piece[0], most=0)
    found += "".join(each if each.isalnum() else _escaped(each, most=3) for each in piece[1:])
    return found if len(piece) >= _LONG_KEY else rf"(?<![A-Za-z0-9]){found}(?![A-Za-z0-9])"


def _escaped(sign: str, *, most: int) -> str:
    """most: backslashes before it; three are those of a quotation mark in JSON within JSON."""
    plain = r"\s+" if sign == " " else rf"\\{{0,{most}}}{re.escape(sign)}"
    return rf"(?:{plain}|\\{{1,2}}u(?i:{ord(sign):04x}))"

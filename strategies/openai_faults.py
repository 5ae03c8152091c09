"""What the failure of an OpenAI-compatible server says: whether it may pass, when to come back, and in which words.

Some servers repeat the key, or another header, that they were sent. Outcomes and logs are kept, so nothing that is or
looks like a secret is.
"""

import email.utils
import re
import time
from collections.abc import Iterable
from typing import Final

from router.errors import ConfigError
from strategies.openai_wire import BrokenReply

__all__ = [
    "cause_of",
    "check_header_value",
    "is_passing",
    "is_too_long",
    "is_unreachable",
    "retry_after",
    "without_keys",
]

#: answers below 500 that another attempt may change
_PASSING: Final = frozenset({408, 409, 425, 429})
#: longest piece of a server's message that is passed on, in characters
_MESSAGE: Final = 200
#: what stands where a key stood
_HIDDEN: Final = "[key]"
#: a shorter key may be a piece of any word, and is hidden where it stands alone
_LONG_KEY: Final = 8
#: between the pieces of a header's value, as in "session=...; other=...": a server may repeat one of them alone
_BETWEEN: Final = re.compile(r"[\s;=,]+")
#: keys of OpenAI and of those who took over its habit, also with stars in the middle
_ANY_KEY: Final = re.compile(r"(?<![A-Za-z])sk-[\w*-]{8,}")
#: OpenAI's code, and llama.cpp's type, of a prompt beyond the model's context; others have words alone
_TOO_LONG: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_TOO_LONG_WORDS: Final = re.compile(r"context (length|size|window)", re.IGNORECASE)


def is_passing(error: Exception) -> bool:
    """Whether another attempt may go better."""
    status = getattr(error, "status_code", None)
    if status is None:
        return True
    # A quota that is used up has the status of a limit that passes.
    return getattr(error, "code", None) != "insufficient_quota" and (status in _PASSING or status >= 500)


def is_too_long(error: Exception) -> bool:
    """Whether the server says that the prompt and its answer are more than the model takes."""
    if getattr(error, "status_code", None) != 400:
        return False
    named = (getattr(error, name, None) for name in ("code", "type"))
    return any(str(name) in _TOO_LONG for name in named) or _TOO_LONG_WORDS.search(str(error)) is not None


def is_unreachable(error: Exception) -> bool:
    """Whether no connection stood, or none that lasted."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        return type(error.__cause__).__name__ == "ConnectTimeout"  # of httpx, which goes by two names
    return isinstance(error, openai.APIConnectionError)


def retry_after(error: Exception) -> float:
    """Seconds that the server asks for: a number or a date; 0 if it asks for none."""
    response = getattr(error, "response", None)
    said = None if response is None else response.headers.get("retry-after")
    if said is None:
        return 0.0
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(said).timestamp() - time.time()
        except ValueError:
            return 0.0
    return seconds if seconds > 0 else 0.0


def check_header_value(value: str, *, what: str, field: str, remedy: str) -> None:
    """Raises ConfigError, which does not show it, for a value that no header can carry. what: holds it, for a message.

    Else the error of every call would be that of a header, with the value in it.
    """
    if value != value.strip() or not (value.isascii() and value.isprintable()):
        raise ConfigError(
            f"{what} holds a line break, a space at an end, or what is not ASCII", field=field, remedy=remedy
        )


def cause_of(error: Exception, *, address: str, secrets: Iterable[str]) -> str:
    """The error in words, without the server's whole page, and without secrets.

    address: of the server, for a message. secrets: see without_keys.
    """
    import openai

    if isinstance(error, openai.APIStatusError):
        status = f"status {error.status_code}"
        said = error.message.removeprefix(f"Error code: {error.status_code}").removeprefix(" - ")
        return f"{status}: {_clipped(said, secrets=secrets)}" if said else status
    if is_unreachable(error):
        return f"{address} cannot be reached, or hung up: {_clipped(str(error.__cause__ or error), secrets=secrets)}"
    if isinstance(error, openai.APITimeoutError | TimeoutError):
        return "it was silent or slow for longer than allowed"
    if isinstance(error, BrokenReply):
        return _clipped(str(error), secrets=secrets)
    return f"the reply cannot be read: {type(error).__name__}: {_clipped(str(error), secrets=secrets)}"


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


def _clipped(text: str, *, secrets: Iterable[str]) -> str:
    """Without secrets first: the half of one that a cut would leave could not be found any more."""
    return without_keys(text, secrets=secrets)[:_MESSAGE]

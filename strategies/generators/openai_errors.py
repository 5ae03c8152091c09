"""Errors of OpenAI-compatible servers: whether a retry may help, the pause asked for, and the message."""

import re
from collections.abc import Iterable
from typing import Final

from ragbandit.router.redaction import without_keys
from ragbandit.router.retries import is_retryable, retry_after_s
from ragbandit.strategies.generators.openai_protocol import BrokenReply

__all__ = [
    "cause_of",
    "is_passing",
    "is_too_long",
    "is_unreachable",
    "pause_asked",
]

#: longest piece of a server's message that is passed on, in characters
_MESSAGE: Final = 200
#: OpenAI's code, and llama.cpp's type, of a prompt beyond the model's context; others have words alone
_TOO_LONG: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_TOO_LONG_WORDS: Final = re.compile(r"context (length|size|window)", re.IGNORECASE)


def is_passing(error: Exception) -> bool:
    """True if another attempt may succeed."""
    status = getattr(error, "status_code", None)
    if status is None:
        return not (isinstance(error, BrokenReply) and error.permanent)
    return is_retryable(status, code=getattr(error, "code", None))


def is_too_long(error: Exception) -> bool:
    """True if the server says that the prompt and its answer are more than the model takes."""
    if getattr(error, "status_code", None) != 400:
        return False
    named = (getattr(error, name, None) for name in ("code", "type"))
    return any(str(name) in _TOO_LONG for name in named) or _TOO_LONG_WORDS.search(str(error)) is not None


def is_unreachable(error: Exception) -> bool:
    """True if there was no connection, or it broke."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        return type(error.__cause__).__name__ == "ConnectTimeout"  # of httpx, which goes by two names
    return isinstance(error, openai.APIConnectionError)


def pause_asked(error: Exception) -> float:
    """Seconds that the server asks for; 0 if it asks for none."""
    response = getattr(error, "response", None)
    return retry_after_s(None if response is None else response.headers.get("retry-after"))


def cause_of(error: Exception, *, address: str, secrets: Iterable[str]) -> str:
    """The error in words, without the server's whole page, and without secrets.

    address: of the server, for a message. secrets: see without_keys.
    """
    import openai

    if isinstance(error, openai.APIStatusError):
        status = f"status {error.status_code}"
        message = error.message.removeprefix(f"Error code: {error.status_code}").removeprefix(" - ")
        return f"{status}: {_clipped(message, secrets=secrets)}" if message else status
    if is_unreachable(error):
        return f"{address} cannot be reached, or hung up: {_clipped(str(error.__cause__ or error), secrets=secrets)}"
    if isinstance(error, openai.APITimeoutError | TimeoutError):
        return "it was silent or slow for longer than allowed"
    if isinstance(error, BrokenReply):
        return _clipped(str(error), secrets=secrets)
    return f"the reply cannot be read: {type(error).__name__}: {_clipped(str(error), secrets=secrets)}"


def _clipped(text: str, *, secrets: Iterable[str]) -> str:
    """Without secrets first: the half of one that a cut would leave could not be found any more."""
    return without_keys(text, secrets=secrets)[:_MESSAGE]

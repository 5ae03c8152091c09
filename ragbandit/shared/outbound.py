"""Calls to others: addresses and header values that may be used, and pauses before another attempt."""

import email.utils
import math
import random
import time
from base64 import b64encode
from contextlib import suppress
from urllib.parse import unquote, unquote_plus, urlsplit

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.redaction import is_secret_in_query


def check_address(url: str, *, field: str, remedy: str, query: bool = False) -> None:
    """Raises ConfigError unless it is an http(s) URL with a host and, if it names one, a port from 1 to 65535.

    query: it may have one. Whether anybody answers there is not asked.
    """
    fault = _fault(url) or ("it has a query, and paths are added to it" if "?" in url and not query else None)
    if fault is not None:
        raise ConfigError(f"{shown_address(url)!r} is not a url: {fault}", field=field, remedy=remedy)


def check_header_value(value: str, *, what: str, field: str, remedy: str) -> None:
    """Raises ConfigError without the value if no header can carry it. what: its source, for the message."""
    if value != value.strip() or not (value.isascii() and value.isprintable()):
        message = f"{what} holds a line break, a space at an end, or a character that is not ASCII"
        raise ConfigError(message, field=field, remedy=remedy)


def shown_address(url: str) -> str:
    """The URL for a message: without user, password, query and fragment, where secrets may stand."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        scheme, rest = "", url
    # The last @ of all: in a URL that is wrong a password may hold any character.
    address = rest.rpartition("@")[2].partition("?")[0].partition("#")[0]
    return f"{scheme}{slashes}{address}"


def credentials_of(url: str) -> tuple[str, ...]:
    """The secrets in a URL that `check_address` has passed, in every form in which a server may repeat them.

    They are the password, or the user if there is no password, both as Basic authentication encodes them, and the
    values of secret fields of the query.
    """
    parts = urlsplit(url)
    user, password = parts.username or "", parts.password or ""
    secrets = [password or user, unquote(password or user)]
    if secrets[0]:
        secrets.append(b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode())
    for field in parts.query.split("&"):
        name, _, value = field.partition("=")
        if is_secret_in_query(unquote(name)):
            secrets += [unquote_plus(value), value]
    return tuple(dict.fromkeys(filter(None, secrets)))


def _fault(url: str) -> str | None:
    """The fault of the URL in a few words that repeat nothing of it; None if there is none."""
    if not url.isprintable() or " " in url:  # urlsplit drops line breaks and tabs without a word
        return "it holds a space or a control character"
    if not url.lower().startswith(("http://", "https://")):
        return "it does not begin with http:// or https://"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("idna")
    except ValueError:  # brackets that do not close, a part of a name that is empty or above 63 bytes
        return "its host cannot be read"
    if not host:
        return "it names no host"
    if "#" in url:
        return "it has a fragment (#), which is never sent"
    with suppress(ValueError):
        if parts.port != 0:
            return None
    return "its port is not a number from 1 to 65535"


def retry_after_s(header: str | None) -> float:
    """Seconds that a Retry-After header asks for, written as a number or a date; 0 for none that can be read."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return seconds if 0.0 < seconds < math.inf else 0.0


def back_off(attempts: int, *, base_s: float, longest_s: float) -> float:
    """Longest pause after this number of failed attempts, at least 1: base_s, doubled with every further attempt."""
    return min(longest_s, base_s * 2.0 ** min(attempts - 1, 1000))  # 2.0 ** 1024 overflows


def pause_before_retry(
    attempts: int, *, base_s: float, longest_s: float, asked_s: float = 0.0, left_s: float | None = None
) -> float | None:
    """Seconds to wait before the next attempt; None if asked_s is above longest_s, or the pause reaches left_s.

    attempts: attempts so far, at least 1. asked_s: the server's Retry-After, to which a random time up to `back_off` is
    added, so that callers that failed together return apart (M. Brooker 2015, "Exponential Backoff and Jitter").
    left_s: seconds left; None without a limit.
    """
    if asked_s > longest_s:
        return None
    most = back_off(attempts, base_s=base_s, longest_s=longest_s)
    pause = asked_s + random.uniform(0.0, most)  # noqa: S311 - no secret
    return pause if left_s is None or pause < left_s else None

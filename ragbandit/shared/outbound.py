"""Calls to others: addresses and header values that may be used, and pauses before another attempt."""

import email.utils
import math
import random
import time
from base64 import b64encode
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.redaction import is_secret_in_query


def check_address(url: str, *, field: str, remedy: str, query: bool = False) -> None:
    """Raises ConfigError unless it is an http(s) URL with a host and, if it names one, a port from 1 to 65535.

    query: it may have one. Whether anybody answers there is not asked.
    """
    fault = _fault(url) or ("it has a query, and paths are added to it" if "?" in url and not query else None)
    if fault is not None:
        raise ConfigError(f"{shown_address(url)!r} is no url: {fault}", field=field, remedy=remedy)


def check_header_value(value: str, *, what: str, field: str, remedy: str) -> None:
    """Raises ConfigError, which does not show it, for a value that no header can carry. what: holds it, for a message.

    Else the error of every call would be that of a header, with the value in it.
    """
    if value != value.strip() or not (value.isascii() and value.isprintable()):
        raise ConfigError(
            f"{what} holds a line break, a space at an end, or what is not ASCII", field=field, remedy=remedy
        )


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

    They are the password, the user where there is no password, both as Basic authentication has them, and the values of
    fields in the query whose names speak of a secret.
    """
    parts = urlsplit(url)
    user, password = parts.username or "", parts.password or ""
    basic = f"{unquote(user)}:{unquote(password)}"
    fields = [value for name, value in parse_qsl(parts.query) if is_secret_in_query(name)]
    fields += [
        raw.partition("=")[2] for raw in parts.query.split("&") if is_secret_in_query(unquote(raw.partition("=")[0]))
    ]
    secret = password or user
    secrets = (secret, unquote(secret), b64encode(basic.encode()).decode() if secret else "", *fields)
    return tuple(dict.fromkeys(each for each in secrets if each))


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
    try:
        good = parts.port != 0
    except ValueError:
        good = False
    return None if good else "its port is no number from 1 to 65535"


#: statuses below 500 that another attempt may change: timeout, conflict of locks, too early, too many requests
_RETRYABLE: Final = frozenset({408, 409, 425, 429})


def is_retryable(status: int) -> bool:
    """True if another attempt at an HTTP call that ended with this status may go better."""
    return status in _RETRYABLE or status >= 500


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
    """Seconds to wait after so many failed attempts, at least one: base_s, doubled with every further attempt."""
    return min(longest_s, base_s * 2.0 ** min(attempts - 1, 1000))  # 2.0 ** 1024 overflows


def pause_before_retry(
    attempts: int, *, base_s: float, longest_s: float, asked_s: float = 0.0, left_s: float | None = None
) -> float | None:
    """Seconds to wait before the next attempt; None if there is to be none.

    attempts: made so far, at least 1. The pause is random between 0 and `back_off`, added to asked_s, the server's
    Retry-After. There is no next attempt where the server asks for more than longest_s, or where the pause does not
    fit into left_s, the time left (None: no limit).
    Source: M. Brooker 2015, "Exponential Backoff and Jitter" (full jitter): callers that failed together come back
    apart.
    """
    if asked_s > longest_s:
        return None
    most = back_off(attempts, base_s=base_s, longest_s=longest_s)
    pause = asked_s + random.uniform(0.0, most)  # noqa: S311 - no secret
    return pause if left_s is None or pause < left_s else None

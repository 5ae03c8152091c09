"""Requests to other servers: checks of addresses and header values, and pauses before retries."""

import random
import zlib
from base64 import b64encode
from contextlib import suppress
from urllib.parse import unquote, unquote_plus, urljoin, urlsplit

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.texts.redaction import is_secret_in_query


def check_address(url: str, *, field: str, remedy: str, query: bool = False) -> None:
    """Raises ConfigError unless this is a valid http(s) URL. Sends no request. query: whether a query is allowed."""
    fault = _fault(url)
    if fault is None and "?" in url and not query:
        fault = "it has a query, but paths are appended to it"
    if fault is not None:
        raise ConfigError(f"{shown_address(url)!r} is not a url: {fault}", field=field, remedy=remedy)


def check_header_value(value: str, *, source: str, field: str, remedy: str) -> None:
    """Raises ConfigError, without the value, if no header can contain the value. source: the value's source."""
    if value != value.strip() or not (value.isascii() and value.isprintable()):
        message = f"{source} contains a line break, a space at an end, or a character that is not ASCII"
        raise ConfigError(message, field=field, remedy=remedy)


def shown_address(url: str) -> str:
    """The URL without user, password, query and fragment, for messages."""
    scheme, slashes, address = url.partition("://")
    if not slashes:
        scheme, address = "", url
    # Split at the last @, since the password in an invalid URL may contain any character.
    address = address.rpartition("@")[2].partition("?")[0].partition("#")[0]
    return f"{scheme}{slashes}{address}"


def decompressed(body: bytes, *, encoding: str, most: int) -> bytes:
    """Decode a body in gzip or deflate. Raises ValueError for other encodings, and beyond `most` decoded bytes."""
    if encoding.lower() in ("", "identity"):
        return body
    try:
        decoder = zlib.decompressobj(47)  # 47: gzip or deflate
        whole = decoder.decompress(body, most)
    except zlib.error as error:
        raise ValueError(f"its encoding {encoding!r:.40} cannot be read: {error}") from error
    if not decoder.eof:
        raise ValueError(f"it has more than {most} bytes, or is cut")
    return whole


def redirect_message(location: str | None, *, url: str) -> str:
    """The message for a redirect, with the new address. location: header Location. url: address that was asked."""
    with suppress(ValueError):
        location = urljoin(url, location or "")
    return f"it redirects to {shown_address(location or '')[:200]}; redirects are not followed"


def credentials_of(url: str) -> tuple[str, ...]:
    """The secrets in a valid URL, in every form in which a server may repeat them.

    These are the password (without one, the user), the header of Basic authentication, and secret fields of the query.
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
    """The fault of a URL, without any part of the URL; None if the URL is valid."""
    if not url.isprintable() or " " in url:  # urlsplit would remove line breaks and tabs
        return "it contains a space or a control character"
    if not url.lower().startswith(("http://", "https://")):
        return "it does not begin with http:// or https://"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("idna")
    except ValueError:  # an open bracket, or a part of the host name that is empty or longer than 63 bytes
        return "its host cannot be read"
    if not host:
        return "it has no host"
    if "#" in url:
        return "it has a fragment (#), which is never sent"
    with suppress(ValueError):
        if parts.port != 0:
            return None
    return "its port is not a number from 1 to 65535"


def back_off(attempts: int, *, base_s: float, longest_s: float) -> float:
    """Longest pause after `attempts` failed attempts: `base_s`, doubled with every further attempt."""
    return min(longest_s, base_s * 2.0 ** min(attempts - 1, 1000))  # 2.0 ** 1024 overflows


def retry_pause(
    attempts: int, *, base_s: float, longest_s: float, asked_s: float = 0.0, left_s: float | None = None
) -> float | None:
    """Seconds to wait before the next attempt; None if `asked_s` exceeds `longest_s`, or the pause reaches `left_s`.

    The pause is `asked_s` plus a random time up to `back_off`, so that callers that failed together retry at different
    times (M. Brooker 2015, "Exponential Backoff and Jitter").

    attempts: number of attempts so far, at least 1
    asked_s: the server's Retry-After; 0 without one
    left_s: time left for the call; None without a limit
    """
    if asked_s > longest_s:
        return None
    most_s = back_off(attempts, base_s=base_s, longest_s=longest_s)
    pause = asked_s + random.uniform(0.0, most_s)  # noqa: S311 - no secret
    return pause if left_s is None or pause < left_s else None

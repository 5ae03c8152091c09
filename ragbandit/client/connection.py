"""Connection settings of a client: where the service is, with which key, how long to wait, how often to try."""

import math
import os
from dataclasses import dataclass, field
from typing import Final

import httpx

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.redaction import without_secrets

#: where a service listens unless it is told otherwise
DEFAULT_URL: Final = "http://127.0.0.1:8100"


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """Where and how to call. The key is never shown."""

    url: str
    api_key: str | None = field(repr=False)
    #: longest a call may take from its first byte to its last, retries and waits included, seconds
    timeout_s: float
    #: longest wait for a connection, and for a place in the pool, seconds
    connect_timeout_s: float
    #: longest silence of the service within a call, seconds; None: as long as the call may take
    read_timeout_s: float | None
    #: further attempts after the first
    retries: int
    #: longest Retry-After that is obeyed, seconds; a longer one ends the call with the service's error
    retry_after_most_s: float
    #: connections at most; further calls wait for one
    connections: int

    @property
    def shown_url(self) -> str:
        """The URL without a password."""
        return without_secrets(self.url)

    def headers(self) -> dict[str, str]:
        """Of every request."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def limits(self) -> httpx.Limits:
        """Of the connection pool."""
        return httpx.Limits(max_connections=self.connections, max_keepalive_connections=min(20, self.connections))


def connection(
    *,
    url: str | None,
    api_key: str | None,
    timeout_s: float,
    connect_timeout_s: float,
    read_timeout_s: float | None,
    retries: int,
    retry_after_most_s: float,
    connections: int,
) -> Connection:
    """The settings, checked; url and api_key from RAGBANDIT_URL and RAGBANDIT_API_KEY where they are None.

    Raises InvalidInput naming the argument; a key is not repeated.
    """
    key = (os.environ.get("RAGBANDIT_API_KEY", "").strip() or None) if api_key is None else api_key
    for name, value, least in (
        ("timeout_s", timeout_s, 0.0),
        ("connect_timeout_s", connect_timeout_s, 0.0),
        ("read_timeout_s", math.inf if read_timeout_s is None else read_timeout_s, 0.0),
        ("retries", retries, -1),
        ("retry_after_most_s", retry_after_most_s, -1),
        ("connections", connections, 0),
    ):
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > least:
            remedy = "pass a number above 0" if least == 0 else "pass a number, 0 or more"
            raise InvalidInput(f'"{name}" is out of range: {value!r:.80}', field=name, remedy=remedy)
    return Connection(
        url=_checked_url(os.environ.get("RAGBANDIT_URL") or DEFAULT_URL if url is None else url),
        api_key=None if key is None else _checked_key(key),
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        read_timeout_s=read_timeout_s,
        retries=int(retries),
        retry_after_most_s=retry_after_most_s,
        connections=int(connections),
    )


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (TypeError, httpx.InvalidURL):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        shown = without_secrets(url) if isinstance(url, str) else type(url).__name__
        message = f"{shown!r:.200} is no URL of a service"
        raise InvalidInput(message, field="url", remedy=f"write it as {DEFAULT_URL}")
    return url


def _checked_key(key: str) -> str:
    # A header cannot hold other characters, and the transport's error would repeat the key.
    if not isinstance(key, str) or not key or not key.isascii() or any(c.isspace() or not c.isprintable() for c in key):
        message = "the API key is empty, or has characters that no key has"
        raise InvalidInput(message, field="api_key", remedy="pass it as `ragbandit keys create` printed it")
    return key

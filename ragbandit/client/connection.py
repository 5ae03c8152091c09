"""Connection settings of a client: where the service is, with which key, how long to wait, how often to try."""

import math
import os
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.redaction import without_secrets

#: where a service listens unless it is told otherwise
DEFAULT_URL: Final = "http://127.0.0.1:8100"


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """Where and how to call; url and api_key are those of RAGBANDIT_URL and RAGBANDIT_API_KEY where they are None.

    The key is never shown. Raises InvalidInput naming the field.
    """

    url: str | None
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

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = math.inf if name == "read_timeout_s" and self.read_timeout_s is None else getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > least:
                remedy = "pass a number above 0" if least == 0 else "pass a number, 0 or more"
                raise InvalidInput(f'"{name}" is out of range: {value!r:.80}', field=name, remedy=remedy)
        url = os.environ.get("RAGBANDIT_URL") or DEFAULT_URL if self.url is None else self.url
        key = (os.environ.get("RAGBANDIT_API_KEY", "").strip() or None) if self.api_key is None else self.api_key
        object.__setattr__(self, "url", _checked_url(url))
        object.__setattr__(self, "api_key", None if key is None else _checked_key(key))

    @property
    def shown_url(self) -> str:
        """The URL without a password."""
        return without_secrets(self.url or "")

    def pool(self) -> dict[str, Any]:
        """Arguments of a client of httpx."""
        most = self.connections
        return {
            "base_url": self.url,
            "headers": {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"},
            "limits": httpx.Limits(max_connections=most, max_keepalive_connections=min(20, most)),
            "follow_redirects": False,
        }


#: what each number must be above
_LEAST: Final = {"timeout_s": 0, "connect_timeout_s": 0, "read_timeout_s": 0, "connections": 0} | {
    "retries": -1,
    "retry_after_most_s": -1,
}


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

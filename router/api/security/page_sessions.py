"""Sessions of pages: who has logged in with an API key, as a signed cookie; and whose page sends a request.

    ragbandit_session = PUBLIC_ID.EXPIRES.HMAC

The cookie names the key and does not hold it: a key that is revoked ends its sessions within a second, as it ends its
requests. A form is taken where the browser says that a page of this service sends it.
"""

import asyncio
import hmac
import re
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import cookie_parser

from ragbandit.router.api.dependencies import is_page
from ragbandit.router.storage.access.spending import shared_secret
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import Forbidden

#: name of the cookie
SESSION: Final = "ragbandit_session"
#: longest time that a login lasts, seconds
SESSION_S: Final = 12 * 3600.0
#: longest value of the header Cookie that is looked at
_MOST: Final = 8192
_SESSION: Final = re.compile(r"([0-9A-Za-z]{1,16})\.([0-9]{1,12})\.([0-9a-f]{64})")

Headers = Iterable[tuple[bytes, bytes]]


def needs_session(path: str, headers: Headers) -> bool:
    """Whether a request shows its key by a cookie: pages do, unless a program sends the key as everywhere else."""
    return is_page(path) and not any(name == b"authorization" for name, _ in headers)


class PageSessions:
    """Makes and reads the cookies of one store; every process of it takes those of the others."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._secret: bytes | None = None
        self._reading = asyncio.Lock()

    async def read(self, headers: Headers) -> str | None:
        """The public id of the key that a request is logged in with; None: it is not, or no more, or at another store.

        Raises StoreError.
        """
        parts = _SESSION.fullmatch(cookies_of(headers).get(SESSION, ""))
        if parts is None:
            return None
        key, until = parts[1], int(parts[2])
        ours = hmac.compare_digest(await self._mac(f"session {key} {until}"), parts[3])
        return key if ours and until > self._clock() else None

    async def cookie(self, key: str, *, expires_at: float | None) -> tuple[str, int]:
        """The cookie of a new session and the seconds that it lasts. expires_at: of the key."""
        now = self._clock()
        until = int(min(now + SESSION_S, now + SESSION_S if expires_at is None else expires_at))
        return f"{key}.{until}.{await self._mac(f'session {key} {until}')}", max(0, int(until - now))

    async def _mac(self, text: str) -> str:
        if self._secret is None:
            async with self._reading:  # one thread, however many come
                if self._secret is None:
                    now = self._clock()
                    self._secret = await asyncio.to_thread(shared_secret, self._database, name="dashboard", now=now)
        return hmac.new(self._secret, text.encode(), "sha256").hexdigest()


def cookies_of(headers: Headers) -> dict[str, str]:
    """The cookies of a request; none where the header is too long."""
    text = "; ".join(value.decode("latin-1") for name, value in headers if name == b"cookie")
    return {} if len(text) > _MOST else cookie_parser(text)


#: names of this machine
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
#: methods that change nothing
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: what a browser tells of where a request comes from
_TOLD: Final = frozenset({b"sec-fetch-site", b"origin", b"host"})
#: a name or an address in brackets, and a port
_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:]*)(?::[0-9]+)?")


def check_host(headers: Headers, *, allowed: Collection[str]) -> None:
    """Refuse a request that names another host than this machine and `allowed`. Raises Forbidden."""
    hosts = [value.decode("latin-1").strip().lower() for key, value in headers if key == b"host"]
    parts = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    name = "" if parts is None else parts[1]
    if name in _LOCAL or name in allowed:
        return
    raise Forbidden(
        f"an open service is not called {name!r:.80}" if name else "an open service needs one Host header",
        field="Host",
        remedy="call it localhost or 127.0.0.1, add the name to server.allowed_hosts, or use API keys: "
        "docs/security.md",
    )


def check_site(headers: Headers, *, method: str) -> None:
    """Refuse a request that may change something and comes from a page of another site. Raises Forbidden."""
    if method in _SAFE:
        return
    sent = [(key, value.decode("latin-1").strip()) for key, value in headers if key in _TOLD]
    sites = [value for key, value in sent if key == b"sec-fetch-site"]
    origins = [value for key, value in sent if key == b"origin"]
    if any(site not in ("same-origin", "none") for site in sites):
        raise _foreign(f"from a page of another site (Sec-Fetch-Site: {sites[0]:.40})", field="Sec-Fetch-Site")
    # A browser tells no origin of a form on a page without referrers; that it is ours it says all the same.
    if not origins or (origins == ["null"] and sites == ["same-origin"]):
        return
    hosts = [value for key, value in sent if key == b"host"]
    if len(origins) > 1 or len(hosts) != 1 or _address(origins[0]) != hosts[0].lower():
        raise _foreign(f"from a page of another site ({origins[0]!r:.80})", field="Origin")


def check_form(path: str, headers: Headers) -> None:
    """Refuse a form that a page of another site may have sent. Raises Forbidden.

    Every browser says where a form comes from; a key in a header is sent by no browser on its own.
    """
    check_site(headers, method="POST")
    if needs_session(path, headers) and not any(name in (b"origin", b"sec-fetch-site") for name, _ in headers):
        remedy = "send it from that page, or send the key in the header Authorization"
        raise Forbidden("nothing says that a page of this service sends this form", field="Origin", remedy=remedy)


def _foreign(message: str, *, field: str) -> Forbidden:
    return Forbidden(
        f"an open service takes no request that comes {message}",
        field=field,
        remedy="send it from a program of yours, or use API keys: docs/security.md",
    )


def _address(origin: str) -> str:
    """Host and port of an Origin; of "null" and what is no URL the empty text."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""

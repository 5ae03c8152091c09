"""Requests of web sites to an open service: those that a page of another site sends through its reader's browser.

A service without keys trusts every program on this machine. A browser is such a program, and runs what any site sends
it. Two things keep sites out: the name that the service was called by (a site may point a name of its own at
127.0.0.1), and the browser's word about which site a request comes from.
"""

import re
from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import urlsplit

from ragbandit.shared.errors import Forbidden

Headers = Iterable[tuple[bytes, bytes]]

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

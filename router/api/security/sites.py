"""Checks of the host and the web site from which a browser sends a request."""

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from ragbandit.router.api.security.rules import is_page
from ragbandit.shared.errors import Forbidden

#: a Host header: a name, or an IPv6 address in brackets, and perhaps a port
_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:]*)(?::[0-9]+)?")


def comes_from_browser(path: str, headers: Headers) -> bool:
    """Whether a browser sends the request, so that a person signs in: True for pages without a key as Bearer."""
    return is_page(path) and not headers.get("authorization", "").lower().startswith("bearer ")


def check_host(headers: Headers, *, allowed: Collection[str]) -> None:
    """Raises Forbidden if the Host header names neither this machine nor an allowed name."""
    hosts = [host.strip().lower() for host in headers.getlist("host")]
    parts = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    name = "" if parts is None else parts[1]
    if name in ("localhost", "127.0.0.1", "[::1]") or name in allowed:
        return
    message = f"an open service is not called {name!r:.80}" if name else "an open service needs one Host header"
    remedy = "call it localhost or 127.0.0.1, add the name to server.allowed_hosts, or use API keys: docs/security.md"
    raise Forbidden(message, field="Host", remedy=remedy)


def check_site(headers: Headers, *, method: str, allowed: Collection[str] = ()) -> None:
    """Raises Forbidden if a request that may change something comes from a page of another site. allowed: origins whose
    pages may send such requests; "*" allows all.
    """
    if method in ("GET", "HEAD", "OPTIONS") or "*" in allowed or headers.get("origin") in allowed:
        return
    sites, origins = headers.getlist("sec-fetch-site"), headers.getlist("origin")
    if not (sites or origins):
        return
    hosts = headers.getlist("host")
    if any(site not in ("same-origin", "none") for site in sites):
        raise _foreign_site("Sec-Fetch-Site", sites[0])
    # Browsers compare the addresses themselves. Here they may differ: a page may forbid browsers to reveal its address
    # (Origin: null), and many proxies send the service its own address as Host.
    if not origins or sites == ["same-origin"]:
        return
    if len(origins) > 1 or len(hosts) != 1 or _host_of(origins[0]) != hosts[0].lower():
        raise _foreign_site("Origin", origins[0])


def check_form(path: str, headers: Headers) -> None:
    """Raises Forbidden if a page of another site may have sent the form. Browsers send the origin of every form."""
    check_site(headers, method="POST")
    if comes_from_browser(path, headers) and "origin" not in headers and "sec-fetch-site" not in headers:
        remedy = "send it from that page, or send the key in the header Authorization"
        raise Forbidden("the form did not come from a page of this service", field="Origin", remedy=remedy)


def _foreign_site(header: str, value: str) -> Forbidden:
    message = f"a page of another site sent this request ({header}: {value!r:.80})"
    remedy = "send it from a page of this service, or from a program: docs/security.md"
    return Forbidden(message, field=header, remedy=remedy)


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""

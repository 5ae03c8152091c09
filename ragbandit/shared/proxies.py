"""The proxy and the certificates of outgoing HTTP calls, by the variables that operators set. All clients ask here.

HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, also in small letters, name a proxy. NO_PROXY lists hosts without a proxy:
names (with all below them), addresses, networks, each with or without a port, patterns such as 10.1.*, and * for
everything. Addresses of this machine are never asked through a proxy.
"""

import functools
import ipaddress
import logging
import os
import re
import socket
import ssl
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies

from ragbandit.shared.errors import ConfigError

log = logging.getLogger("ragbandit.proxies")

#: variables of requests and curl with a file or a folder of certificates
_BUNDLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: names of loopback in the file of hosts of Linux
_LOOPBACK: Final = ("localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback")
#: scheme -> port of a URL that names no port
_PORTS: Final = {"http": 80, "https": 443}
#: what a file of variables may leave around a value: line breaks, and quotes that only a shell removes
_AROUND: Final = " \t\r\n\"'"


def proxy_of(url: str) -> str | None:
    """URL of the proxy for a URL; None for a direct call, as for SOCKS. Raises ConfigError for an invalid proxy."""
    proxies = getproxies()
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # the client for this address reports the fault
        return None
    kind = parts.scheme if proxies.get(parts.scheme) else "all"
    proxy = proxies.get(kind, "").strip(_AROUND)
    if not proxy or _is_direct(parts.hostname or "", port=port, listed=proxies.get("no")):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if proxy.lower().startswith("socks"):
        _warn_of(proxy.partition(":")[0])
        return None
    with suppress(ValueError):  # the port is no number, or a bracket is missing
        given = urlsplit(proxy)
        # A path, a query or a fragment may be a part of an unescaped password; then the host is wrong.
        is_whole = not (given.path.strip("/") or given.query or given.fragment)
        if given.scheme in _PORTS and given.hostname and given.port != 0 and is_whole:
            return proxy
    name = f"{kind.upper()}_PROXY"
    remedy = "for example http://proxy.example.org:3128; in a password write / as %2F, # as %23 and ? as %3F"
    raise ConfigError(f"{name} is not the URL of a proxy", field=name, remedy=remedy)


def proxy_in_words(url: str) -> str:
    """The proxy of calls of this URL, for messages: " through the proxy http://HOST:PORT", or "" without one."""
    proxy = urlsplit(proxy_of(url) or "")
    return f" through the proxy {proxy.scheme}://{proxy.netloc.rpartition('@')[2]}" if proxy.scheme else ""


@functools.cache
def _warn_of(scheme: str) -> None:
    """Logs each kind once per process, because calls that an operator wants to go through a proxy go directly."""
    log.warning("a proxy of the kind %s cannot be used: calls go directly; name an HTTP proxy", scheme[:20])


def httpx_options(url: str) -> dict[str, Any]:
    """Arguments of a client of httpx that asks this URL, or others on its host.

    httpx itself fails for IPv6 networks in NO_PROXY, ignores others, and asks this machine through the proxy.
    """
    proxy = proxy_of(url)
    is_secure = any(each.lower().startswith("https:") for each in (url, proxy or ""))
    # Without TLS, a context without authorities suffices: it is made quickly, and would trust no server.
    verify = certificates() if is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if proxy is not None and proxy.lower().startswith("https:"):
        import httpx

        return {"proxy": httpx.Proxy(proxy, ssl_context=verify), "verify": verify, "trust_env": False}
    return {"proxy": proxy, "verify": verify, "trust_env": False}


@functools.lru_cache(maxsize=4)
def _context(file: str | None, folder: str | None) -> ssl.SSLContext:
    import certifi

    return ssl.create_default_context(cafile=file or (None if folder else certifi.where()), capath=folder)


def certificate_paths() -> tuple[str | None, str | None, str | None]:
    """(file or None, folder or None, variable that names them first): $SSL_CERT_FILE and $SSL_CERT_DIR, else a file or
    a folder in $REQUESTS_CA_BUNDLE or $CURL_CA_BUNDLE.
    """
    file, folder = os.environ.get("SSL_CERT_FILE") or None, os.environ.get("SSL_CERT_DIR") or None
    name = "SSL_CERT_FILE" if file else "SSL_CERT_DIR" if folder else next(filter(os.environ.get, _BUNDLES), None)
    if name in _BUNDLES:
        bundle = os.environ[name]
        file, folder = (None, bundle) if os.path.isdir(bundle) else (bundle, None)
    return file, folder, name


def certificates() -> ssl.SSLContext:
    """Certificate authorities of `certificate_paths`, else of certifi: many images have none. Raises ConfigError."""
    file, folder, name = certificate_paths()
    try:
        if folder and not file and not any(map(os.path.isdir, folder.split(os.pathsep))):  # OpenSSL would trust nobody
            raise NotADirectoryError("this is not a folder")
        return _context(file, folder)
    except OSError as error:
        message = f"the certificates in {file or folder} ({name}) cannot be read: {error.strerror or error}"
        raise ConfigError(message, field=name, remedy="let it name certificates in PEM form") from error


def _is_direct(host: str, *, port: int | None, listed: str | None) -> bool:
    host = host.lower().rstrip(".")
    address = _address(host)
    entries = re.split(r"[\s,;\"']+", listed or "")
    return _is_here(host, address) or any(_matches(entry, host=host, address=address, port=port) for entry in entries)


def _is_here(host: str, address: _Address | None) -> bool:
    """Whether a host is this machine. No name is looked up."""
    if address is None:
        return host in _LOOPBACK or host.endswith(".localhost") or host == socket.gethostname().lower()
    if address.is_loopback or address.is_unspecified:
        return True
    try:
        with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as route:
            route.connect((str(address), 9))  # sends nothing; packets to this machine leave from the address itself
            return bool(route.getsockname()[0] == str(address))
    except OSError:
        return False


def _matches(entry: str, *, host: str, address: _Address | None, port: int | None) -> bool:
    """Whether an entry of NO_PROXY covers a host and its port."""
    entry = entry.lower().removeprefix("http://").removeprefix("https://")
    if not entry:
        return False
    network, listed_port = _with_port(entry)
    if "/" in network and address is not None and listed_port in (None, port):
        with suppress(ValueError):
            return address in ipaddress.ip_network(network.replace("[", "").replace("]", ""), strict=False)
    entry, listed_port = _with_port(entry.partition("/")[0])
    if listed_port is not None and listed_port != port:
        return False
    listed = _address(entry)
    if listed is not None or address is not None:
        return listed == address if listed is not None else "*" in entry and fnmatchcase(host, entry)
    name = entry.removeprefix("*.").strip(".")
    is_below = host == name or host.endswith(f".{name}")
    return is_below if name and "*" not in name else fnmatchcase(host, entry)


def _with_port(entry: str) -> tuple[str, int | None]:
    """(host, port) of "host:80", "[::1]:80", "::1" or "host"."""
    host, mark, port = entry.rpartition(":")
    if not mark or not port.isdecimal() or (":" in host and not host.endswith("]")) or len(port) > 5:
        return entry.strip("[]"), None
    return host.strip("[]"), int(port)


def _address(host: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped

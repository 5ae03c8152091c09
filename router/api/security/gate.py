"""Gate: finds the caller of a request by an API key, and checks the role and the sending web site.

Programs send a key as `Authorization: Bearer`, as `x-api-key`, or in a header of their interface (`Door.key_headers`).
Browsers ask for it, and send it to pages as the password of HTTP Basic.
"""

import base64
import ipaddress
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from ragbandit.router.api.request_state import request_state
from ragbandit.router.api.security.key_ring import KeyRing
from ragbandit.router.api.security.rules import AccessRule, is_page
from ragbandit.router.api.security.sites import check_host, check_site, comes_from_browser
from ragbandit.router.config.server import ServerSettings
from ragbandit.router.serving.setup.bootstrap import is_loopback, is_open
from ragbandit.router.storage.access.api_keys import ApiKey, KeysInForce, are_known_scopes
from ragbandit.shared.errors import Forbidden, NotReady, Unauthorized
from ragbandit.shared.types import PERSON, Caller, Role

#: largest age of the keys for /metrics, seconds. Metrics must be readable while the database is down.
STALE_S: Final = 900.0
_HIGHEST_FIRST: Final[tuple[Role, ...]] = ("admin", "operator", "reader")
_USER: Final = re.compile(r"[^\x00-\x20\x7f]{1,100}")
_METRICS: Final = "/metrics"
_KEY_IN_QUERY: Final = re.compile(rb"rb(?:_|%5[Ff])[0-9A-Za-z]{10}(?:_|%5[Ff])")
_ANYBODY: Final = Caller()
_SEND_KEY: Final = (
    'send the header "Authorization: Bearer rb_..."; `ragbandit keys create --name NAME --role app` makes a key'
)


class Gate:
    """key_headers: headers with a plain key in addition to `x-api-key`, in lower case."""

    def __init__(self, ring: KeyRing, *, server: ServerSettings, key_headers: Iterable[str] = ()) -> None:
        self.ring = ring
        self._key_headers = ("x-api-key", *key_headers)
        self._server = server
        self._proxies = [ipaddress.ip_network(text) for text in server.trusted_proxies]
        self._loopback = is_loopback(server.host)
        self._hosts = frozenset(name.lower() for name in server.allowed_hosts)
        if self._loopback:
            self._hosts |= {server.host.lower(), f"[{server.host.lower()}]"}

    async def caller(self, scope: Scope, headers: Headers, *, rule: AccessRule, path: str) -> Caller:
        """The caller of a request. Raises Unauthorized, Forbidden, and NotReady if keys cannot be checked."""
        roles = rule.roles
        if roles is None:
            return _ANYBODY
        if scope["query_string"] and _KEY_IN_QUERY.search(scope["query_string"]):
            message = "an API key must not be in a URL, because URLs are logged"
            raise Unauthorized(
                message, field="Authorization", remedy=f"revoke that key, make a new key, and {_SEND_KEY}"
            )
        if path == _METRICS and self._server.open_metrics:
            return Caller(role="reader")
        keys = await self._keys(path)
        if is_open(self._server, keys=keys):
            if self._loopback or self._hosts:
                check_host(headers, allowed=self._hosts)
            allowed = self._server.cors_origins if rule.is_for_programs and not is_page(path) else ()
            check_site(headers, method=scope["method"], allowed=allowed)
            return _ANYBODY
        by_browser = comes_from_browser(path, headers)
        person = self._signed_in_person(request_state(scope).peer, headers) if by_browser else None
        caller = person or caller_of_key(self._key(headers, keys, by_browser=by_browser))
        if caller.role not in roles:
            message = f"a {_kind_in_words(caller)} of the role {caller.role} may not call {scope['method']} {path:.80}"
            remedy = f"use a key of the role {' or '.join(sorted(roles))}"
            raise Forbidden(message, field="role", remedy=remedy)
        if caller.tenant is not None and rule.all_tenants:
            message = (
                f"{scope['method']} {path} shows data of all tenants, and this {_kind_in_words(caller)} belongs to one"
            )
            raise Forbidden(message, field="tenant", remedy="use a key without a tenant")
        if caller.key is not None and not caller.is_person:
            self.ring.note_use(caller.key)
        return caller

    async def _keys(self, path: str) -> KeysInForce:
        try:
            return await self.ring.in_force()
        except NotReady:
            copy = self.ring.known
            if copy is None:
                raise
            is_fresh = path == _METRICS and time.monotonic() - copy.at <= STALE_S
            # An open service needs no keys. Endpoints that need the failed database fail by themselves.
            if is_fresh or is_open(self._server, keys=copy.keys):
                return copy.keys
            raise

    def _key(self, headers: Headers, keys: KeysInForce, *, by_browser: bool) -> ApiKey:
        sent = headers.getlist("authorization")
        if not sent and not by_browser:
            sent = [f"Bearer {key}" for name in self._key_headers for key in headers.getlist(name)]
        if not sent:
            raise _unauthorized("no API key was sent")
        if len(sent) > 1:
            raise _unauthorized("several Authorization headers were sent", remedy="send one")
        if len(sent[0]) > 512:
            raise _unauthorized(f"the header Authorization has {len(sent[0])} bytes; a key has 57 characters")
        scheme, _, text = sent[0].partition(" ")
        if by_browser and scheme.lower() == "basic":
            text = _password(text)
        elif scheme.lower() != "bearer":
            raise _unauthorized("the header Authorization does not have the scheme Bearer")
        return self._valid_key(text.strip(" "), keys)

    def is_proxy(self, peer: tuple[str, int] | None) -> bool:
        """Whether the connection comes from server.trusted_proxies."""
        if peer is None:
            return False
        address = ipaddress.ip_address(peer[0])
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._proxies)

    def _signed_in_person(self, peer: tuple[str, int] | None, headers: Headers) -> Caller | None:
        """The person whom a trusted proxy has signed in; None if there is no such person or proxy."""
        server = self._server
        if server.trusted_header is None or not self.is_proxy(peer):
            return None
        values = [value.strip() for value in _single_value(headers, server.trusted_header).split(",")]
        roles = {server.trusted_roles[value]: value for value in values if value in server.trusted_roles}
        role = next((role for role in _HIGHEST_FIRST if role in roles), None)
        if role is None:
            return None
        user = roles[role] if server.trusted_user_header is None else _single_value(headers, server.trusted_user_header)
        return Caller(key=PERSON + user, role=role) if _USER.fullmatch(user) else None

    def _valid_key(self, text: str, keys: KeysInForce) -> ApiKey:
        key = keys.find(text)
        if key is None:
            message = "this API key is not valid: it was revoked, has expired, or was never made here"
            raise _unauthorized(message, remedy="`ragbandit keys list` shows the keys of this service")
        if key.expires_at is not None and key.is_expired(time.time()):
            when = datetime.fromtimestamp(key.expires_at, tz=UTC).isoformat(timespec="seconds")
            raise _unauthorized(f"this API key expired at {when}", remedy="make a new key")
        return key


def _password(text: str) -> str:
    """The password in the credentials of HTTP Basic; "" if they cannot be read."""
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _single_value(headers: Headers, name: str) -> str:
    """The value of a header; "" unless it was sent once: if a client forges it, the proxy may add a second one."""
    values = headers.getlist(name)
    if len(values) != 1:
        return ""
    try:  # Starlette decodes headers as Latin-1
        return values[0].encode("latin-1").decode().strip()
    except UnicodeDecodeError:
        return values[0].strip()


def caller_of_key(key: ApiKey) -> Caller:
    """The caller with this key. Raises Forbidden if this release does not support a scope of the key."""
    if not are_known_scopes(key.scopes):
        remedy = "upgrade this service, or make a new key"
        raise Forbidden("a newer version made this key, with scopes that this version does not know", remedy=remedy)
    return Caller(key=key.public_id, role=key.role, tenant=key.tenant, scopes=key.scopes)


def _kind_in_words(caller: Caller) -> str:
    return "person" if caller.is_person else "key"


def _unauthorized(message: str, *, remedy: str = _SEND_KEY) -> Unauthorized:
    return Unauthorized(message, field="Authorization", remedy=remedy)

"""Sign-in by OpenID Connect: the authorization code flow with PKCE, state and nonce, and what an ID token must be.

A token that is forged, expired, of another issuer, for another client or of another sign-in lets nobody in; nor does
one whose person has no role here. Source: OpenID Connect Core 1.0, sections 3.1.2 and 3.1.3; RFC 7636; RFC 9700.
"""

import asyncio
import base64
import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

import httpx

from ragbandit.router.config.oidc import OidcSettings, PageRole, client_secret
from ragbandit.shared.errors import Forbidden, NotReady, Unauthorized, required_module

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

#: where the provider sends the browser back to
CALLBACK: Final = "/ui/login/oidc/callback"
#: the whole of one call of the provider, seconds, and of its reply, bytes
CALL_S: Final = 10.0
MAX_BYTES: Final = 1 << 20
#: how long what the provider says of itself is used, and the pause before its keys are read again, seconds
CACHE_S: Final = 3600.0
KEYS_S: Final = 60.0
#: clocks of provider and service may differ by that, seconds
LEEWAY_S: Final = 60
#: signatures by a key that the provider alone has
ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
_HIGHEST_FIRST: Final[tuple[PageRole, ...]] = ("admin", "operator", "reader")
_ACTOR: Final = re.compile(r"[^\x00-\x20\x7f]{1,100}")
_TENANT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_AGAIN: Final = "begin again on the login page"


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """Who has signed in."""

    actor: str
    role: PageRole
    #: None: of every tenant
    tenant: str | None


class OidcClient:
    """A client of one provider, on one event loop."""

    def __init__(self, settings: OidcSettings, *, public_url: str, clock: Callable[[], float] = time.time) -> None:
        """Raises ConfigError where the secret or the package is not there."""
        self.settings, self._clock = settings, clock
        self._redirect = public_url + CALLBACK
        self._secret = client_secret(settings)
        self._jwt = required_module("joserfc.jwt", extra="oidc", field="server.oidc")
        self._errors = required_module("joserfc.errors", extra="oidc", field="server.oidc")
        self._http = httpx.AsyncClient(timeout=CALL_S, follow_redirects=False)
        self._lock = asyncio.Lock()
        #: what was read, and when (time.monotonic)
        self._metadata: tuple[Mapping[str, Any], float] | None = None
        self._keys: tuple[KeySet, float] | None = None

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def begin(self) -> tuple[str, dict[str, str]]:
        """Where the browser goes, and the state, nonce and verifier of this sign-in. Raises NotReady."""
        metadata = await self._provider()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        parameters = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self._redirect,
            "scope": " ".join(self.settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        there = metadata["authorization_endpoint"]
        url = f"{there}{'&' if '?' in there else '?'}{urlencode(parameters)}"
        return url, {"state": state, "nonce": nonce, "verifier": verifier}

    async def finish(self, *, code: str, nonce: str, verifier: str) -> Person:
        """Who has signed in. Raises Unauthorized for what proves nobody, Forbidden for who has no role, NotReady."""
        metadata = await self._provider()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect,
            "code_verifier": verifier,
            "client_id": self.settings.client_id,
        }
        auth = None
        if self._secret is not None:
            if "client_secret_basic" in metadata.get("token_endpoint_auth_methods_supported", ["client_secret_basic"]):
                del form["client_id"]
                auth = httpx.BasicAuth(self.settings.client_id, self._secret)
            else:
                form["client_secret"] = self._secret
        reply = await self._call("POST", metadata["token_endpoint"], data=form, auth=auth)
        token = reply.get("id_token")
        if not isinstance(token, str):
            raise Unauthorized("the provider gave no ID token for this sign-in", remedy=_AGAIN)
        return self._person(await self._claims(token, nonce=nonce))

    async def _claims(self, token: str, *, nonce: str) -> Mapping[str, Any]:
        """The claims of an ID token that is signed by the provider, for this client and this sign-in, and valid now."""
        client = self.settings.client_id
        must = {"iss": self.settings.issuer, "aud": client, "nonce": nonce}
        registry = self._jwt.JWTClaimsRegistry(
            now=int(self._clock()),
            leeway=LEEWAY_S,
            **{name: {"essential": True, "value": value} for name, value in must.items()},
            **{name: {"essential": True} for name in ("exp", "iat", "sub")},
        )
        try:
            claims: Mapping[str, Any] = await self._decoded(token)
            registry.validate(claims)
        except (self._errors.JoseError, ValueError) as error:
            why = f"{type(error).__name__} {getattr(error, 'claim', '') or ''}".strip()
            raise Unauthorized(f"the provider's ID token is not valid ({why})", remedy=_AGAIN) from error
        for_others = not isinstance(claims["aud"], str) and len(claims["aud"]) > 1
        if claims.get("azp", None if for_others else client) != client:
            raise Unauthorized("the provider's ID token was made for another client", field="azp", remedy=_AGAIN)
        return claims

    async def _decoded(self, token: str) -> Mapping[str, Any]:
        keys = await self._key_set(at_most_s=CACHE_S)
        try:
            return dict(self._jwt.decode(token, keys, algorithms=ALGORITHMS).claims)
        except self._errors.InvalidKeyIdError:  # the provider may have a new key
            keys = await self._key_set(at_most_s=KEYS_S)
            return dict(self._jwt.decode(token, keys, algorithms=ALGORITHMS).claims)

    def _person(self, claims: Mapping[str, Any]) -> Person:
        settings = self.settings
        groups = _claim(claims, settings.groups_claim)
        named = {groups} if isinstance(groups, str) else set(map(str, groups)) if isinstance(groups, list) else set()
        role = next((role for role in _HIGHEST_FIRST if named & set(settings.roles.get(role, ()))), None)
        if role is None:
            has = f"says {', '.join(sorted(named))[:200]}" if named else "is missing"
            raise Forbidden(
                f"you are signed in, and have no role here: the claim {settings.groups_claim} of your account {has}",
                field=settings.groups_claim,
                remedy="ask whoever runs this service to add your group to server.oidc.roles, or the provider's "
                "administrator to put the claim into the ID token",
            )
        actor = _wanted(claims, settings.actor_claim, _ACTOR)
        tenant = None if settings.tenant_claim is None else _wanted(claims, settings.tenant_claim, _TENANT)
        return Person(actor=actor, role=role, tenant=tenant)

    async def _provider(self) -> Mapping[str, Any]:
        """What the provider says of itself."""
        async with self._lock:
            if self._metadata is None or time.monotonic() - self._metadata[1] > CACHE_S:
                url = f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"
                metadata = await self._call("GET", url)
                if metadata.get("issuer") != self.settings.issuer:
                    raise _failing("says that its issuer is another one: correct server.oidc.issuer")
                for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                    there = metadata.get(name)
                    if not isinstance(there, str) or urlsplit(there).scheme not in ("https", self._scheme):
                        raise _failing(f"names no {name}, or one without https")
                self._metadata = metadata, time.monotonic()
            return self._metadata[0]

    async def _key_set(self, *, at_most_s: float) -> "KeySet":
        metadata = await self._provider()
        async with self._lock:
            if self._keys is None or time.monotonic() - self._keys[1] > at_most_s:
                read = await self._call("GET", metadata["jwks_uri"])
                make = required_module("joserfc.jwk", extra="oidc", field="server.oidc").KeySet.import_key_set
                try:
                    self._keys = make(read), time.monotonic()
                except (self._errors.JoseError, ValueError, KeyError, TypeError) as error:
                    raise _failing("gives keys that cannot be read") from error
            return self._keys[0]

    @property
    def _scheme(self) -> str:
        return urlsplit(self.settings.issuer).scheme

    async def _call(self, method: str, url: str, **sent: Any) -> Mapping[str, Any]:
        """The JSON object of a reply. Raises Unauthorized for a code that is refused, NotReady for all else."""
        body = b""
        try:
            async with asyncio.timeout(CALL_S):
                async with self._http.stream(method, url, headers={"accept": "application/json"}, **sent) as reply:
                    async for part in reply.aiter_bytes():
                        body += part
                        if len(body) > MAX_BYTES:
                            raise _failing("gives a reply that is too long")
                value = json.loads(body)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError, RecursionError) as error:
            raise _failing(f"cannot be reached, or replies with no JSON ({type(error).__name__})") from error
        if not isinstance(value, dict):
            raise _failing("replies with no JSON object")
        if reply.status_code == 200:
            return value
        code = value.get("error")
        if code == "invalid_grant":
            raise Unauthorized(
                "the provider does not take this sign-in: its code was used, or is too old", remedy=_AGAIN
            )
        raise _failing(f"replies {reply.status_code}{f' {code:.40}' if isinstance(code, str) else ''}")


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """A claim by its name, or by a path with dots where no claim has the whole name."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _wanted(claims: Mapping[str, Any], path: str, form: re.Pattern[str]) -> str:
    value = _claim(claims, path)
    if isinstance(value, str) and form.fullmatch(value):
        return value
    fault = "is missing" if value is None else "cannot be used"
    raise Forbidden(
        f"you are signed in, and the claim {path} of your account {fault}",
        field=path,
        remedy="ask the provider's administrator to put it into the ID token",
    )


def _failing(what: str) -> NotReady:
    return NotReady(
        f"the sign-in provider {what}", field="server.oidc.issuer", remedy="try again; an API key works meanwhile"
    )

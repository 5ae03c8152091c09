"""Settings of sign-in by OpenID Connect: the provider, and who of its people may do what."""

import os
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from ragbandit.router.config.importers import Variable
from ragbandit.router.config.sections import Section, plain_address
from ragbandit.shared.errors import ConfigError


def _issuer(url: str) -> str:
    """As it is written: a slash at its end counts."""
    plain_address(url)
    if re.match(r"https://|http://(localhost|127\.0\.0\.1|\[::1\])[:/]", url + "/") is None:
        raise ValueError("issuer: it must begin with https://, unless the provider runs on this machine")
    return url


#: roles that have pages
PageRole = Literal["reader", "operator", "admin"]
Names = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=200)]


class OidcSettings(Section):
    """People sign in to /ui at a provider of OpenID Connect. See docs/security.md."""

    #: address of the provider, as its tokens have it in `iss`; it has /.well-known/openid-configuration
    issuer: Annotated[str, AfterValidator(_issuer)]
    #: what the provider knows this service by
    client_id: Annotated[str, Field(min_length=1)]
    #: environment variable that holds the client's secret; null: a public client, which PKCE alone protects
    client_secret_env: Variable | None = None
    #: what the button says: Sign in with ...
    label: Annotated[str, Field(min_length=1, max_length=60)] = "single sign-on"
    #: what is asked for; some providers tell groups only where a further scope is named
    scopes: Names = Field(default_factory=lambda: ["openid", "profile", "email"])
    #: claim of the ID token that names a person's groups, a list or one text; dots lead into objects, as in
    #: realm_access.roles
    groups_claim: Annotated[str, Field(min_length=1)] = "groups"
    #: role here -> the groups whose people have it; of several the highest counts. Who has none is not let in
    roles: Annotated[dict[PageRole, Names], Field(min_length=1)]
    #: claim that names the one tenant whose decisions a person sees; null: people see all tenants
    tenant_claim: Annotated[str, Field(min_length=1)] | None = None
    #: claim that names the person in the audit log, behind "oidc:"; `email` may change hands, `sub` may not
    actor_claim: Annotated[str, Field(min_length=1)] = "sub"
    #: how long a sign-in lasts, seconds, up to 12 hours; only then the provider is asked again
    session_s: Annotated[float, Field(ge=60, le=12 * 3600)] = 8 * 3600.0

    @field_validator("scopes")
    @classmethod
    def _open_id(cls, scopes: list[str]) -> list[str]:
        if "openid" not in scopes:
            raise ValueError("scopes: openid must be among them")
        return scopes


def client_secret(settings: OidcSettings) -> str | None:
    """The secret of a confidential client, from the environment. Raises ConfigError."""
    if settings.client_secret_env is None:
        return None
    value = os.environ.get(settings.client_secret_env, "").strip()
    if not value:
        raise ConfigError(
            f"the environment variable {settings.client_secret_env} is not set",
            field="server.oidc.client_secret_env",
            remedy="put the client's secret there, or leave client_secret_env out for a public client",
        )
    return value

"""Sign-in at a provider of OpenID Connect: to it, and back with a session."""

import hmac
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from ragbandit.router.api.security.oidc import CALLBACK, OidcClient, Person
from ragbandit.router.api.security.page_sessions import SESSION, PageSessions, cookies_of
from ragbandit.router.api.ui.login import ENTRY, login_page, next_of
from ragbandit.router.api.ui.rendering import page, set_cookie
from ragbandit.shared.errors import Forbidden, NotFound, NotReady, RagBanditError, Unauthorized

#: cookie of a sign-in that has begun, what it is sealed as, and how long that may take, seconds
SIGN_IN: Final = "ragbandit_sign_in"
_KIND: Final = "sign-in"
SIGN_IN_S: Final = 600
_AGAIN: Final = "begin again here"

pages = APIRouter(include_in_schema=False)


@pages.get("/ui/login/oidc")
async def begin(request: Request) -> Response:
    """Send the browser to the provider."""
    client, onward = _client(request), next_of(request)
    try:
        url, values = await client.begin()
    except NotReady as error:
        return await login_page(request, onward=onward, fault=error)
    sessions: PageSessions = request.app.state.page_sessions
    reply = RedirectResponse(url, status_code=303)
    # The provider's page sends the browser back: a cookie that is "strict" would not come along.
    sealed = await sessions.seal(_KIND, values | {"next": onward}, seconds=SIGN_IN_S)
    set_cookie(request, reply, name=SIGN_IN, value=sealed, seconds=SIGN_IN_S, samesite="lax")
    return reply


@pages.get(CALLBACK)
async def finish(request: Request) -> Response:
    """Begin a session for whom the provider names."""
    client = _client(request)
    sessions: PageSessions = request.app.state.page_sessions
    begun = await sessions.unseal(_KIND, cookies_of(request.scope["headers"]).get(SIGN_IN, ""))
    try:
        person, onward = await _person(request, client, begun)
    except RagBanditError as error:
        reply: Response = await login_page(request, onward="", fault=error)
    else:
        # No redirect: a browser would count it as the provider's, and leave the session's cookie out.
        reply = await page(request, "signed_in.html", title="Signed in", next=onward, actor=person.actor)
        reply.headers["refresh"] = f"0; url={request.scope.get('root_path', '')}{onward}"
        seconds = int(client.settings.session_s)
        sealed = await sessions.person_cookie(person, settings=client.settings, seconds=seconds)
        set_cookie(request, reply, name=SESSION, value=sealed, seconds=seconds)
    set_cookie(request, reply, name=SIGN_IN, value="", seconds=0, samesite="lax")  # one sign-in, one callback
    return reply


async def _person(request: Request, client: OidcClient, begun: dict[str, str] | None) -> tuple[Person, str]:
    """Who has signed in, and the page that is wanted. Raises Forbidden, Unauthorized, NotReady."""
    given = request.query_params
    if begun is None or not hmac.compare_digest(begun["state"].encode(), given.get("state", "").encode()):
        raise Forbidden("this sign-in did not begin in this browser, or was ended", field="state", remedy=_AGAIN)
    if given.get("iss", client.settings.issuer) != client.settings.issuer:
        raise Forbidden("another provider replied than was asked", field="iss", remedy=_AGAIN)
    if "error" in given or "code" not in given:
        raise Unauthorized(f"the provider signed nobody in ({given.get('error', 'no code')!r:.60})", remedy=_AGAIN)
    person = await client.finish(code=given["code"], nonce=begun["nonce"], verifier=begun["verifier"])
    return person, begun["next"] or ("/ui" if person.tenant is None else ENTRY)


def _client(request: Request) -> OidcClient:
    client: OidcClient | None = request.app.state.oidc
    if client is None:
        raise NotFound("nobody signs in here", field="path", remedy="log in with an API key, or set server.oidc")
    return client

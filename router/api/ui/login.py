import re
from typing import Final

from fastapi import Request
from starlette.responses import Response

from ragbandit.router.api.routes import Endpoints, RouteTable
from ragbandit.router.api.security.gate import SESSION, Gate, PageSessions, caller_with, needs_session
from ragbandit.router.api.security.rules import EVERYBODY, PERSON
from ragbandit.router.api.ui.rendering import PAGES, form_of, may_see, onward, page
from ragbandit.shared.errors import Forbidden, RagBanditError, Unauthorized
from ragbandit.shared.types import Caller

#: pages to which a login may lead
_PAGE: Final = re.compile(r"/ui(/[A-Za-z0-9._~%@:+=,-]+)*(\?[A-Za-z0-9._~%@:+=,&/-]*)?")

pages = Endpoints()


@pages.get("/ui/login", rule=EVERYBODY)
async def login_form(request: Request) -> Response:
    """The login form. A service without keys redirects to the dashboard."""
    gate: Gate = request.app.state.gate
    if await gate.is_open():
        return onward("/ui")
    return login_page(request, target=_checked(request.query_params.get("next", "")))


def login_page(request: Request, *, target: str, fault: RagBanditError | None = None) -> Response:
    """The login page. target: path of the page to show after the login, or "". fault: error of the last attempt."""
    values = {"next": target, "fault": fault}
    return page(request, "login.html", title="Log in", status=fault.status if fault else 200, **values)


@pages.post("/ui/login", rule=EVERYBODY)
async def login(request: Request) -> Response:
    form = await form_of(request, "key", "next")
    gate: Gate = request.app.state.gate
    try:
        key = await gate.key_of(form["key"])
        home = _home(caller_with(key), routes=request.app.state.routes)
    except (Unauthorized, Forbidden) as error:
        return login_page(request, target=_checked(form["next"]), fault=error)
    sessions: PageSessions = request.app.state.page_sessions
    value, seconds = await sessions.cookie(key.public_id, expires_at=key.expires_at)
    reply = onward(_checked(form["next"]) or home)
    _set_session(request, reply, value, seconds=seconds)
    gate.ring.note_use(key.public_id)
    return reply


@pages.post("/ui/logout", rule=PERSON)
async def logout(request: Request) -> Response:
    await form_of(request)
    reply = onward("/ui/login")
    if needs_session(request.scope["path"], request.headers):
        gate: Gate = request.app.state.gate
        gate.ring.note_end(await request.app.state.page_sessions.end(request.headers))
        _set_session(request, reply, "", seconds=0)
    return reply


def _set_session(request: Request, reply: Response, value: str, *, seconds: int) -> None:
    """Set a cookie that scripts cannot read and other sites cannot send."""
    secure = request.scope["scheme"] == "https"
    reply.set_cookie(SESSION, value, max_age=seconds, path="/ui", secure=secure, httponly=True, samesite="strict")


def _home(caller: Caller, *, routes: RouteTable) -> str:
    """The first page that the caller may see. Raises Forbidden if there is none."""
    for path in PAGES:
        if may_see(caller, path, routes=routes):
            return path
    remedy = f"use a key of the role {' or '.join(sorted(PERSON.roles or ()))}"
    raise Forbidden(f"a key of the role {caller.role} has no pages", field="key", remedy=remedy)


def _checked(path: str) -> str:
    """The path if it is a page of the dashboard, else "", because a login must not lead to another site."""
    return path if len(path) <= 1000 and _PAGE.fullmatch(path) else ""

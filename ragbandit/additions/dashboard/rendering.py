"""Rendering of pages: a Jinja environment that escapes everything, and elements that all pages share."""

import re
import time
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from fastapi import Request
from jinja2 import Environment
from markupsafe import Markup
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from ragbandit.client.replies.decisions import ErrorDetail
from ragbandit.router.api.dependencies import caller_of
from ragbandit.router.api.routes import RouteTable
from ragbandit.router.api.security.page_headers import HEADERS
from ragbandit.router.api.security.sites import check_form, comes_from_browser
from ragbandit.router.comparison import page as assessments
from ragbandit.router.comparison.words import COLOURS
from ragbandit.router.replies.values import json_ready
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import NOTHING, duration, iso_time, moment, money, printable
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import Caller

_LINK: Final = re.compile(r"""(\b(?:href|src|action)=")/""")
STATIC: Final = Path(__file__).parent / "static"
_DASH: Final = Markup(NOTHING)  # noqa: S704 - a constant
PAGES: Final = {
    "/ui": "Overview",
    "/ui/arms": "Arms",
    "/ui/decisions": "Decisions",
    "/ui/policies": "Policies",
    "/ui/feedback": "Feedback",
    "/ui/labels": "Labels",
    "/ui/queues": "Queues",
}


def time_element(value: float | None) -> Markup:
    exact = iso_time(value)
    if exact is None:
        return _DASH
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, moment(value))


def age(value: float | None) -> Markup:
    if value is None:
        return _DASH
    return Markup("{} <small>({} ago)</small>").format(time_element(value), duration(max(0.0, time.time() - value)))


def state_sign(state: str | None) -> Markup:
    if not state:
        return _DASH
    kind = _KINDS.get(state, "quiet")
    return Markup('<span class="state {}">{}</span>').format(kind, printable(state.replace("_", " ")))


_KINDS: Final = (
    dict.fromkeys(("answered", "ok", "champion", "healthy", "idle", "steady"), "good")
    | dict.fromkeys(("exhausted", "shadow"), "busy")
    | dict.fromkeys(("half_open", "busy", "learning", "held back", "drifting"), "busy")
    | dict.fromkeys(("quarantined", "failed", "open", "killed", "down"), "bad")
    | dict.fromkeys(("stuck", "starved"), "bad")
    | COLOURS
)


@cache
def environment() -> Environment:
    """The Jinja environment of all pages. An undefined name is an error, not an empty text."""
    jinja = assessments.page_environment("ragbandit.additions.dashboard")
    filters = (duration, age, money, state_sign, json_ready)
    jinja.filters |= {function.__name__: function for function in filters} | {"moment": time_element, "query": _query}
    jinja.tests["blank"] = is_blank
    return jinja


def _query(values: dict[str, Any]) -> str:
    return urlencode({name: value for name, value in values.items() if value not in (None, "")})


def page(request: Request, template: str, *, title: str, status: int = 200, **values: Any) -> HTMLResponse:
    caller, routes = caller_of(request), request.app.state.routes
    frame = {
        "title": title,
        "here": request.scope["path"],
        "links": [(path, title) for path, title in PAGES.items() if may_see(caller, path, routes=routes)],
        "caller": caller,
        "acts": caller.role in (None, "operator", "admin"),
    }
    return HTMLResponse(_rendered(template, frame | values, scope=request.scope), status_code=status)


def _rendered(template: str, values: Mapping[str, object], *, scope: Scope) -> str:
    """The page. Its links begin with the path under which a proxy serves the app.

    The pattern of a link cannot match in texts of users, since their quotes are escaped.
    """
    text, root = environment().get_template(template).render(values), scope.get("root_path")
    return _LINK.sub(rf"\1{root}/", text) if root else text


def redirect_to(path: str) -> Response:
    return RedirectResponse(path, status_code=303)


def may_see(caller: Caller, path: str, *, routes: RouteTable) -> bool:
    endpoint, _ = routes.find("GET", path)
    if endpoint is None or caller.role not in (None, *(endpoint.rule.roles or ())):
        return False
    return caller.tenant is None or not endpoint.rule.all_tenants


def page_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Headers of a page. By cache-control, browsers check static files for changes, and do not store pages."""
    cache_control = "no-cache" if scope["path"].startswith("/ui/static/") else "no-store"
    return [(name.encode(), value.encode()) for name, value in (HEADERS | {"cache-control": cache_control}).items()]


def page_error(scope: Scope, status: int, error: ErrorDetail, headers: Mapping[str, str] | None) -> Response:
    if status == 401 and comes_from_browser(scope["path"], Headers(scope=scope)):
        headers = {"WWW-Authenticate": 'Basic realm="RagBandit: the password is an API key", charset="UTF-8"'}
    links = tuple(PAGES.items()) if status == 403 else ()  # the caller may see some of the other pages
    frame = {"title": "Error", "here": "", "links": links, "caller": Caller()}
    message, remedy = (unicodedata.normalize("NFC", text) for text in (error["message"], error["remedy"] or ""))
    values = {"status": status, "code": error["code"], "message": message, "remedy": remedy}
    return HTMLResponse(_rendered("error.html", frame | values, scope=scope), status_code=status, headers=headers)


_TYPE: Final = "application/x-www-form-urlencoded"


async def form_fields(request: Request, *fields: str) -> dict[str, str]:
    """The fields of a form; "" for a field that was not sent.

    Raises Forbidden if another site may have sent the form, and InvalidInput if the body is not a form, is longer than
    16,384 bytes or has other fields.
    """
    check_form(request.scope["path"], request.headers)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise InvalidInput("the body must be a form", field="content-type", remedy=f"send {_TYPE}")
    body = await request.body()
    try:
        sent = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=20, errors="strict"))
    except ValueError as error:
        raise InvalidInput("the form cannot be read", field="body", remedy="load the page again") from error
    unknown = sorted(set(sent) - set(fields))
    if len(body) > 16_384 or unknown:
        message = f"the form has an unknown field {unknown[0]!r:.80}" if unknown else "the form is too long"
        raise InvalidInput(message, field="body", remedy=f"send {', '.join(fields) or 'no field'}")
    return {name: sent.get(name, "").strip() for name in fields}

"""Replies to pages: headers that keep a page to itself, and errors that a person can read.

The layers below refuse as they do everywhere, in JSON. Here a request without a session becomes a way to the login, and
any other error a page with the same words.
"""

import json
from typing import Any, Final
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from ragbandit.router.api.security.page_sessions import needs_session
from ragbandit.router.api.ui.rendering import error_page

#: of every reply under /ui
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_STATIC: Final = "/ui/static/"
#: longest error that is made a page of, bytes
_MOST: Final = 65_536


def shaping_page(scope: Scope, receive: Receive, send: Send) -> Send:
    """`send` for the reply to a page's request: with HEADERS, and an error as a person reads it."""
    held: Message | None = None
    body = b""

    async def shaped(message: Message) -> None:
        nonlocal held, body
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            _protect(headers, path=scope["path"])
            if message["status"] >= 400 and headers.get("content-type", "").startswith("application/json"):
                held = message
                return
        elif held is not None:
            body += message.get("body", b"")
            if not message.get("more_body", False) or len(body) > _MOST:
                start, held = held, None
                await _readable(scope, start, body)(scope, receive, send)
            return
        await send(message)

    return shaped


def _protect(headers: MutableHeaders, *, path: str) -> None:
    for name, value in HEADERS.items():
        headers[name] = value
    # A file of the package is asked for again and not sent again; what a page shows stays in no cache.
    headers["cache-control"] = "no-cache" if path.startswith(_STATIC) else "no-store"


def _readable(scope: Scope, start: Message, body: bytes) -> Response:
    """What a person gets in place of an error in JSON."""
    status: int = start["status"]
    root = scope.get("root_path", "")
    if status == 401 and needs_session(scope["path"], scope["headers"]) and not scope["path"].endswith("/login"):
        came = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        back = f"?next={quote(came.removeprefix(root), safe='/')}" if scope["method"] == "GET" else ""
        reply: Response = RedirectResponse(f"{root}/ui/login{back}", status_code=303)
    else:
        reply = HTMLResponse(error_page(_error(body), status=status, root=root), status_code=status)
    given = MutableHeaders(scope=start)
    for name in ("retry-after", "allow", "www-authenticate"):
        if name in given:
            reply.headers[name] = given[name]
    _protect(reply.headers, path=scope["path"])
    return reply


def _error(body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)["error"]
        return {name: error[name] for name in ("code", "message", "remedy")}
    except (ValueError, TypeError, KeyError):
        return {"code": "ERROR", "message": "the request failed", "remedy": "read the log of the service"}

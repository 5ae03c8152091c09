"""Replies to pages: headers that keep a page to itself, and errors that a person can read.

A request without a session becomes a way to the login, and any other error a page with the words that all read.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from ragbandit.client.replies.errors import ErrorDetail
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


def page_headers(path: str) -> list[tuple[bytes, bytes]]:
    """HEADERS, and who may keep the reply: a file of the package is asked for again, a page is kept by nobody."""
    keeping = "no-cache" if path.startswith(_STATIC) else "no-store"
    return [(name.encode(), value.encode()) for name, value in (HEADERS | {"cache-control": keeping}).items()]


def page_error(scope: Scope, status: int, error: ErrorDetail, headers: Mapping[str, str] | None) -> Response:
    """The reply of an error on a page: the words of it, or the way to the login."""
    root = scope.get("root_path", "")
    if status == 401 and needs_session(scope["path"], scope["headers"]) and not scope["path"].endswith("/login"):
        came = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
        back = f"?next={quote(came.removeprefix(root), safe='/')}" if scope["method"] == "GET" else ""
        return RedirectResponse(f"{root}/ui/login{back}", status_code=303)
    return HTMLResponse(error_page(error, status=status, root=root), status_code=status, headers=headers)

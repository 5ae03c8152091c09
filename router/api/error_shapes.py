"""Middleware: errors as those read them who asked, OpenAI's clients and people before a page; all others read ours."""

from starlette.datastructures import State
from starlette.types import ASGIApp, Receive, Scope, Send

from ragbandit.router.api.http_server.ports import has_path
from ragbandit.router.api.openai.errors import is_openai_path, shaping_errors
from ragbandit.router.api.security.page_sessions import is_page
from ragbandit.router.api.ui.errors import shaping_page


class ErrorMiddleware:
    """Around every layer that refuses."""

    def __init__(self, app: ASGIApp, *, state: State) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            if is_openai_path(scope["path"]):
                send = shaping_errors(scope, send)
            elif is_page(scope["path"]) and has_path(scope, state=self.state):
                send = shaping_page(scope, receive, send)
        await self.app(scope, receive, send)

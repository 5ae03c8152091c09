"""Middleware: bodies over the size limit are refused, and every reply is counted."""

from collections.abc import Callable

from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragbandit.router.api.responses import JsonReply, error_body

__all__ = ["BodyLimitMiddleware"]


class BodyLimitMiddleware:
    """Outermost layer. Refuses a body over `limit()` bytes, whether its length was announced or not; counts replies."""

    def __init__(self, app: ASGIApp, *, state: State, limit: Callable[[], int]) -> None:
        self.app = app
        self.state = state
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit, seen = self.limit(), 0

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise HTTPException(413)
            return message

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = getattr(scope.get("route"), "path", "unknown")
                self.state.metrics.requests.labels(path, message["status"]).inc()
            await send(message)

        announced = dict(scope["headers"]).get(b"content-length", b"")
        if announced.isdigit() and int(announced) > limit:
            refusal = error_body("BODY_TOO_LARGE", f"the body is larger than {limit} bytes", remedy="send less")
            await JsonReply(refusal, status_code=413)(scope, receive, counted)
            return
        await self.app(scope, bounded, counted)

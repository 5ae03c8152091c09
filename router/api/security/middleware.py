"""Middleware: no request comes past here but one whose caller may send it, and has not sent too many."""

from typing import Final

from starlette.datastructures import State
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragbandit.router.api.http_server.connections import OPERATOR_PATHS
from ragbandit.router.api.limiting.rate_limiter import RateLimited, RateLimiter
from ragbandit.router.api.schemas.responses import refusal
from ragbandit.router.api.security.gate import Gate
from ragbandit.shared.errors import RagBanditError

#: a service without rates tells of none
_NO_HEADERS: Final[list[tuple[bytes, bytes]]] = []


class AccessMiddleware:
    """Puts the Caller at `request.state.caller`, or refuses. Before everything that reads a body.

    Every reply to a caller who has a rate tells what is left of it.
    """

    def __init__(self, app: ASGIApp, *, state: State) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # the service has no websockets; what has no rule is refused
            await send({"type": "websocket.close", "code": 1008})
            return
        gate: Gate = self.state.gate
        limiter: RateLimiter = self.state.rate_limiter
        headers = _NO_HEADERS
        try:
            scope.setdefault("state", {})["caller"] = caller = await gate.caller(scope)
            if scope["path"] not in OPERATOR_PATHS and (allowance := await limiter.take(caller)) is not None:
                headers = allowance.headers()
        except RagBanditError as error:
            reply = refusal(error)
            if isinstance(error, RateLimited):
                reply.raw_headers.extend(error.allowance.headers())
            await reply(scope, receive, send)
            return
        if not headers:
            await self.app(scope, receive, send)
            return

        async def with_allowance(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self.app(scope, receive, with_allowance)

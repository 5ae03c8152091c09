"""Middleware: requests over the rate of their key are refused, and every reply tells what is left of it."""

from typing import Final

from starlette.datastructures import State
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragbandit.router.api.http_server.protocol import OPERATOR_PATHS
from ragbandit.router.api.limiting.rate_limiter import RateLimited, RateLimiter
from ragbandit.router.api.schemas.responses import refusal
from ragbandit.router.types import Caller

__all__ = ["RateMiddleware"]

_NOBODY: Final = Caller()


class RateMiddleware:
    """Inside the layer that finds out who calls; before everything that reads a body."""

    def __init__(self, app: ASGIApp, *, state: State) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] in OPERATOR_PATHS:
            await self.app(scope, receive, send)
            return
        limiter: RateLimiter | None = self.state.rate_limiter
        allowance = None
        try:
            if limiter is not None:
                allowance = await limiter.take(scope.get("state", {}).get("caller", _NOBODY))
        except RateLimited as error:
            reply = refusal(error)
            reply.raw_headers.extend(error.allowance.headers())
            await reply(scope, receive, send)
            return
        if allowance is None:
            await self.app(scope, receive, send)
            return
        headers = allowance.headers()

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self.app(scope, receive, told)

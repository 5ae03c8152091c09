"""Middleware: no request comes past here but one whose caller may send it."""

from starlette.datastructures import State
from starlette.types import ASGIApp, Receive, Scope, Send

from ragbandit.router.api.schemas.responses import refusal
from ragbandit.router.api.security.gate import Gate
from ragbandit.router.errors import RagBanditError

__all__ = ["AccessMiddleware"]


class AccessMiddleware:
    """Puts the Caller at `request.state.caller`, or refuses. Before everything that reads a body."""

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
        try:
            caller = await gate.caller(scope)
        except RagBanditError as error:
            await refusal(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self.app(scope, receive, send)

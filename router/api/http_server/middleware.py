"""Middleware: requests over a limit are refused before their body is read, and every reply is counted."""

import asyncio
import math
from collections.abc import Mapping
from typing import Final

from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragbandit.router.api.http_server.connections import CONNECTION
from ragbandit.router.api.http_server.ports import has_path
from ragbandit.router.api.schemas.responses import JsonReply, error_body, refusal
from ragbandit.router.config.settings import ServerSettings
from ragbandit.router.serving.router import Queue, Router
from ragbandit.shared.errors import NotReady, Overloaded

#: path of a POST -> the queue in which it would wait
_QUEUES: Final[Mapping[str, Queue]] = {
    "/v1/route": "questions",
    "/v1/route/batch": "questions",
    "/v1/answer": "questions",
    "/v1/chat/completions": "questions",
    "/v1/outcomes": "outcomes",
    "/v1/feedback": "feedback",
    "/v1/feedback/batch": "feedback",
}

_ENDING: Final = NotReady(
    "the service is shutting down, and this request was not finished", remedy="try again with the same id"
)


def _most_bytes(path: str, *, server: ServerSettings) -> int:
    if path.endswith("/batch"):
        return server.max_batch_bytes
    return server.max_chat_bytes if path.startswith("/v1/chat/") else server.max_body_bytes


class AdmissionMiddleware:
    """Refuses what would wait too long, what this port does not have, and bodies that are too large; counts replies.

    A refusal under overload must cost next to nothing, so it comes before the body is read.
    """

    def __init__(self, app: ASGIApp, *, state: State) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        router: Router = self.state.router
        limit = _most_bytes(scope["path"], server=router.settings.server)
        headers = dict(scope["headers"])
        offers = b"upgrade" in headers
        seen, started, overloaded = 0, False, ""

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise HTTPException(413)
            return message

        async def counted(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                path = getattr(scope.get("route"), "path", None) or overloaded or "unknown"
                self.state.metrics.requests.labels(path, message["status"]).inc()
                if offers:  # the parser takes what follows for the offered protocol
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        refused = self._refusal(scope, headers=headers, limit=limit)
        if refused is not None:
            overloaded = scope["path"] if refused.status_code == 503 else ""
            _hold_back(scope, refused)
            await refused(scope, receive, counted)
            return
        try:
            await self.app(scope, bounded, counted)
        except asyncio.CancelledError:  # by the server, which ends and has given its requests their time
            if started:
                raise
            await refusal(_ENDING)(scope, receive, counted)

    def _refusal(self, scope: Scope, *, headers: dict[bytes, bytes], limit: int) -> Response | None:
        """The reply to a request that is refused before its body is read; None for one that is taken in."""
        if not has_path(scope, state=self.state):
            body = error_body("NOT_FOUND", f"there is no endpoint {scope['path']}", remedy="/docs lists the endpoints")
            return JsonReply(body, status_code=404)
        queue = _QUEUES.get(scope["path"]) if scope["method"] == "POST" else None
        try:
            if queue is not None:
                self.state.router.check_admission(queue)
        except Overloaded as error:
            return refusal(error)
        announced = headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > limit:
            too_large = error_body("BODY_TOO_LARGE", f"the body is larger than {limit} bytes", remedy="send less")
            return JsonReply(too_large, status_code=413)
        if b"upgrade" in headers and (announced not in (b"", b"0") or b"transfer-encoding" in headers):
            remedy = "send no header Upgrade: speak HTTP/1.1 from the start, or come through a proxy"
            return JsonReply(error_body("UPGRADE", "only HTTP/1.1 is spoken here", remedy=remedy), status_code=400)
        return None


def _hold_back(scope: Scope, refused: Response) -> None:
    """After 503: read nothing more from this client for a while; Retry-After says at least that."""
    connection = scope.get("state", {}).get(CONNECTION)  # none where the app is called without a server
    if refused.status_code == 503 and connection is not None:
        after_s = max(int(refused.headers["retry-after"]), math.ceil(connection.pause_reading()))
        refused.headers["retry-after"] = str(after_s)

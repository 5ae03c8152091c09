"""The endpoint of MCP: POST /mcp, streamable HTTP without sessions. A tool is a request to the app by the same key."""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from ragbandit.client.bodies import quoted
from ragbandit.client.exchange import ReceivedReply, encoded, refused, value_of
from ragbandit.client.streams import EventReader
from ragbandit.router.api.mcp.errors import PATH
from ragbandit.router.api.rules import PART
from ragbandit.router.telemetry.carriers import SCOPE_ID
from ragbandit.shared.errors import ConfigError, NotFound, required_module

if TYPE_CHECKING:
    from ragbandit.router.api.mcp.tools import Context

#: arguments that belong to the call, not to what its id identifies
_QUERY: Final = frozenset({"wait_s"})
#: headers of a request that its parts have too: who calls, and in which trace
_KEPT: Final = frozenset({b"authorization", b"traceparent", b"tracestate"})


class _Endpoint:
    """Hands a request on to the SDK, which the first request loads."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = ROUTE  # by which the request is counted
        server = await _server_of(scope["app"])
        # The body is read here: one that is too large is refused in our words. The SDK's own checks of hosts and of
        # origins stay off: the gate has made ours.
        bodies = [{"type": "http.request", "body": await Request(scope, receive).body(), "more_body": False}]

        async def whole() -> Message:
            return bodies.pop() if bodies else await receive()

        manager = required_module("mcp.server.streamable_http_manager", extra="mcp").StreamableHTTPSessionManager
        largest = scope["app"].state.router.settings.server.max_body_bytes
        exchange = manager(server, stateless=True, max_request_body_size=largest)
        async with exchange.run():  # of one request: nothing is kept between two
            await exchange.handle_request(scope, whole, send)


#: of the app
ROUTE: Final = Route(PATH, _Endpoint(), methods=["POST"])


async def _server_of(app: Any) -> Any:
    """The app's MCP server. Raises NotFound where the SDK is not installed."""
    if getattr(app.state, "mcp", None) is None:
        try:
            await asyncio.to_thread(required_module, "mcp", extra="mcp")
        except ConfigError as error:
            raise NotFound("this service speaks no MCP: its host lacks a package", remedy=error.remedy) from error
        from ragbandit.router.api.mcp.tools import make_server

        logging.getLogger("mcp").setLevel(logging.WARNING)  # else two lines for every request
        app.state.mcp = make_server(await asyncio.to_thread(app.openapi), call=_called)
    return app.state.mcp


async def _called(context: "Context", endpoint: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What an endpoint of the app replies to whoever called the tool. Raises what the app refuses."""
    method, path = endpoint.split(" ")
    if "{decision_id}" in path:
        path = path.format(decision_id=quoted(arguments.get("decision_id")))
    query = {name: value for name, value in arguments.items() if name in _QUERY and value is not None}
    if wants_progress := path == "/v1/answer" and "progress_token" in (context.meta or {}):
        query["stream"] = "true"
    body = {name: value for name, value in arguments.items() if name not in _QUERY}
    reply, outer = _Reply(context, is_stream=wants_progress), context.request
    assert outer is not None  # the SDK hands every request over HTTP on
    scope, receive = _part(outer.scope, method, path=path, query=query, body=encoded(body))
    await scope["app"](scope, receive, reply.take)
    return reply.value(path)


def _part(outer: Scope, method: str, *, path: str, query: Mapping[str, Any], body: bytes) -> tuple[Scope, Receive]:
    """A request to the app as a part of another, from the same caller; it goes through all that the edge checks."""
    headers = [(name, value) for name, value in outer["headers"] if name in _KEPT]
    headers += [(b"host", b"localhost"), (b"content-type", b"application/json")]
    headers.append((b"x-request-id", outer[SCOPE_ID].encode("latin-1")))
    scope = {key: outer[key] for key in ("type", "asgi", "http_version", "scheme", "client", "server", "app")}
    scope |= {"method": method, "path": path, "raw_path": path.encode(), "root_path": "", "headers": headers}
    scope |= {"query_string": urlencode(query).encode(), PART: "mcp"}
    bodies = [{"type": "http.request", "body": body if method == "POST" else b"", "more_body": False}]

    async def receive() -> Message:
        while not bodies:  # a caller that goes away cancels the tool, and this with it
            await asyncio.sleep(3600)
        return bodies.pop()

    return scope, receive


class _Reply:
    """What the app replies; while it streams, what the arm does is told to the caller as progress."""

    def __init__(self, context: "Context", *, is_stream: bool) -> None:
        self._context = context
        self._events = EventReader() if is_stream else None
        self._told, self._status, self._body = 0, 0, bytearray()
        self._outcome: dict[str, Any] | None = None

    async def take(self, message: Message) -> None:
        """The next part of it. Raises what an event `error` says."""
        self._status = message.get("status", self._status)
        body = message.get("body", b"")
        if self._events is None or self._status >= 300:
            self._body += body
            return
        for event in self._events.read(body):
            if event.event == "outcome":
                self._outcome = dict(event.data)
            elif event.event in ("decision", "status"):
                self._told += 1
                text = event.data.get("text") or f"the arm {event.data.get('arm')} was chosen"
                await self._context.session.report_progress(float(self._told), message=text)

    def value(self, path: str) -> dict[str, Any]:
        """Its JSON. Raises what a refusal says."""
        received = ReceivedReply(status=self._status, headers={}, body=bytes(self._body))
        if self._status >= 300:
            raise refused(received, path=path)
        value: dict[str, Any] = value_of(received, path=path) if self._outcome is None else self._outcome
        return value

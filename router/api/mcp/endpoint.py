"""The endpoint of MCP: POST /mcp, streamable HTTP without sessions. A tool is a request to the app by the same key."""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import httpx
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from ragbandit.client.bodies import quoted
from ragbandit.client.exchange import ReceivedReply, encoded, refused, value_of
from ragbandit.client.streams import EventReader
from ragbandit.router.api.rules import MCP, PART
from ragbandit.router.telemetry.carriers import SCOPE_ID
from ragbandit.shared.errors import ConfigError, NotFound, required_module

if TYPE_CHECKING:
    from ragbandit.router.api.mcp.tools import Context

#: headers that a part has from the whole: who calls, and in which trace
_KEPT: Final = ("authorization", "traceparent", "tracestate")


class _Endpoint:
    """Hands a request on to the SDK, which the first request loads."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = ROUTE  # by which the request is counted
        server = await _server_of(scope["app"])
        # Read here: a body that is too large is refused in our words. The SDK's own checks of hosts and origins stay
        # off: the gate has made ours.
        bodies = [{"type": "http.request", "body": await Request(scope, receive).body(), "more_body": False}]

        async def whole() -> Message:
            return bodies.pop() if bodies else await receive()

        manager = required_module("mcp.server.streamable_http_manager", extra="mcp").StreamableHTTPSessionManager
        largest = scope["app"].state.router.settings.server.max_body_bytes
        exchange = manager(server, stateless=True, max_request_body_size=largest)
        async with exchange.run():  # of one request: nothing is kept between two
            await exchange.handle_request(scope, whole, send)


#: of the app
ROUTE: Final = Route(MCP, _Endpoint(), methods=["POST"])


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
    """What an endpoint of the app replies to whoever called the tool, told as progress while it streams.

    It is a request of its own, in this process, which goes through all that the edge checks. Raises what is refused.
    """
    assert context.request is not None  # the SDK hands every request over HTTP on
    outer, (method, path), steps = context.request.scope, endpoint.split(" "), list[str]()
    events, outcome = EventReader(), dict[str, Any]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def told(message: Message) -> None:
            for event in events.read(message.get("body", b"")) if streams else ():
                if event.event == "outcome":
                    outcome.update(event.data)
                elif event.event in ("decision", "status"):
                    steps.append(event.data.get("text") or f"the arm {event.data.get('arm')} was chosen")
                    await context.session.report_progress(float(len(steps)), message=steps[-1])
            await send(message)

        await outer["app"]({**scope, PART: "mcp"}, receive, told)

    streams = path == "/v1/answer" and "progress_token" in (context.meta or {})
    wait_s = arguments.get("wait_s")  # it belongs to the call, not to what its id identifies
    params = {**({"stream": "true"} if streams else {}), **({} if wait_s is None else {"wait_s": wait_s})}
    if "{decision_id}" in path:
        path = path.format(decision_id=quoted(arguments.get("decision_id")))
    body = encoded({name: value for name, value in arguments.items() if name != "wait_s"})
    headers = {name: value for name, value in context.request.headers.items() if name in _KEPT}
    headers |= {"content-type": "application/json", "x-request-id": outer[SCOPE_ID]}
    content = body if method == "POST" else b""
    request = httpx.Request(method, f"http://localhost{path}", params=params, headers=headers, content=content)
    response = await httpx.ASGITransport(app).handle_async_request(request)
    received = ReceivedReply(status=response.status_code, headers=response.headers, body=await response.aread())
    if received.status >= 300:
        raise refused(received, path=path)
    value: dict[str, Any] = outcome or value_of(received, path=path)
    return value

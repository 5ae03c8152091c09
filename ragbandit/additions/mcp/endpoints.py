"""MCP: the endpoints of the service as tools for agents, made with the official SDK."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import httpx
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragbandit.additions.mcp.errors import MCP_PATH, mcp_error, speaks_mcp
from ragbandit.client.exchange import ReceivedReply, encode_json, error_of_reply, parse_object, quote_id
from ragbandit.client.transport import AnswerReader
from ragbandit.router.api.dependencies import router_of
from ragbandit.router.api.door import Door
from ragbandit.router.api.request_state import STATE, RequestState, request_state
from ragbandit.router.api.routes import Endpoints, check_json
from ragbandit.router.api.security.rules import ANY_ROLE
from ragbandit.shared.errors import ConfigError, NotFound, required_module

if TYPE_CHECKING:
    from ragbandit.additions.mcp.tools import Context


#: headers of the agent's request that are not copied to a tool's request: headers of the connection and of the body,
#: and the id of the request, which the edge has read already
_DROPPED_HEADERS: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade", b"expect", b"accept", b"accept-encoding"),
        *(b"content-length", b"content-type", b"content-encoding", b"x-request-id"),
    }
)
#: entries of the agent's ASGI scope that are copied to a tool's request
_SHARED_SCOPE: Final = ("client", "scheme")


endpoints = Endpoints()


@endpoints.post(MCP_PATH, rule=replace(ANY_ROLE, asks=True))
async def call(request: Request) -> ASGIApp:
    check_json(request)
    server, largest = await _server_of(request.app), router_of(request).settings.server.max_body_bytes
    # Read the body here, so that a body that is too large gets RagBandit's error. The SDK does not check hosts and
    # origins, because the gate has checked them.
    bodies = [{"type": "http.request", "body": await request.body(), "more_body": False}]

    async def reply(scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_body() -> Message:
            return bodies.pop() if bodies else await receive()

        manager = required_module("mcp.server.streamable_http_manager", extra="mcp").StreamableHTTPSessionManager
        exchange = manager(server, stateless=True, max_request_body_size=largest)
        async with exchange.run():  # a session for this request only
            await exchange.handle_request(scope, receive_body, send)

    return reply


async def _server_of(app: Any) -> Any:
    """The app's MCP server, made by the first call. Raises NotFound if the SDK is not installed."""
    if getattr(app.state, "mcp", None) is None:
        try:
            await asyncio.to_thread(required_module, "mcp", extra="mcp")
        except ConfigError as error:
            raise NotFound("this service has no MCP: a package is not installed", remedy=error.remedy) from error
        from ragbandit.additions.mcp.tools import make_mcp_server

        logging.getLogger("mcp").setLevel(logging.WARNING)  # the SDK logs two lines for every request
        app.state.mcp = make_mcp_server(app.openapi, call=_call_endpoint)
    return app.state.mcp


async def _call_endpoint(context: "Context", endpoint: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Send an endpoint a request inside this process, with the agent's key. Returns the reply, or raises the error."""
    assert context.request is not None  # the SDK sets `request` for every call over HTTP
    outer, progress = context.request.scope, _Progress(context)
    known = request_state(outer)
    streams = endpoint == "POST /v1/answer" and "progress_token" in (context.meta or {})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_and_report(message: Message) -> None:
            if streams:
                await progress.report(message.get("body", b""))
            await send(message)

        state = RequestState(part="mcp", peer=known.peer)
        await outer["app"](
            {**scope, STATE: state, **{name: outer.get(name) for name in _SHARED_SCOPE}}, receive, send_and_report
        )

    headers = [(name, value) for name, value in outer["headers"] if name not in _DROPPED_HEADERS]
    headers.append((b"x-request-id", known.request_id.encode("latin-1")))
    request = _request(endpoint, arguments, streams=streams, headers=headers)
    response = await httpx.ASGITransport(app).handle_async_request(request)
    received = ReceivedReply(status=response.status_code, headers=response.headers, body=await response.aread())
    if received.status >= 300:
        raise error_of_reply(received, path=endpoint)
    return progress.outcome or parse_object(received, path=endpoint)


def _request(
    endpoint: str, arguments: Mapping[str, Any], *, streams: bool, headers: Sequence[tuple[bytes, bytes]]
) -> httpx.Request:
    method, path = endpoint.split(" ")
    if "{decision_id}" in path:
        path = path.format(decision_id=quote_id(arguments.get("decision_id")))
    wait_s = arguments.get("wait_s")  # a query parameter; all other arguments are fields of the body
    params = {"stream": "true"} if streams else {}
    if wait_s is not None:
        params["wait_s"] = wait_s
    body = encode_json({name: value for name, value in arguments.items() if name != "wait_s"})
    headers = [*headers, (b"content-type", b"application/json")]
    content = body if method == "POST" else b""
    return httpx.Request(method, f"http://localhost{path}", params=params, headers=headers, content=content)


class _Progress:
    def __init__(self, context: "Context") -> None:
        self._context, self._events = context, AnswerReader()
        self._count = 0
        #: data of the event `outcome`; {} before this event
        self.outcome: dict[str, Any] = {}

    async def report(self, body: bytes) -> None:
        """Read more bytes of the streamed answer, and report its events to the agent. Raises the error of an event."""
        for event in self._events.read(body):
            if event.event == "outcome":
                self.outcome = dict(event.data)
            elif event.event in ("decision", "status"):
                self._count += 1
                text = event.data.get("text") or f"the arm {event.data.get('arm')} was chosen"
                await self._context.session.report_progress(float(self._count), message=text)


DOOR: Final = Door(place=90, endpoints=(endpoints,), speaks=speaks_mcp, error=mcp_error)

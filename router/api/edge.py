"""Edge: the one layer between the server and the endpoints.

In this order: the request gets its id and its span; what this port does not have, what would wait too long and what is
too large is refused before its body is read; then who sends it, by the key; then how often this key may. Every error,
wherever it was raised, becomes a reply here, in the words of who asked; and every reply is counted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.datastructures import Headers, State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragbandit.router.api.dependencies import PART, CallerGone
from ragbandit.router.api.openai.replies import is_openai_path, openai_error
from ragbandit.router.api.schemas.requests import complaint
from ragbandit.router.api.schemas.responses import SHAPE, error_body, error_reply, mcp_error, refusal
from ragbandit.router.api.security.gate import Gate
from ragbandit.router.api.security.rate_limiter import RateLimited, RateLimiter
from ragbandit.router.api.security.rules import MCP_PATH, OPERATOR_PATHS, Rule, has_path, is_page, rule_of
from ragbandit.router.api.ui.rendering import page_error, page_headers
from ragbandit.router.serving.router import Router
from ragbandit.router.telemetry import conventions as names
from ragbandit.router.telemetry.logs import bound
from ragbandit.router.telemetry.tracing import OFF, SCOPE_ID, Span, Tracing, request_id_of, trace_id_of
from ragbandit.shared.errors import InvalidInput, NotReady, RagBanditError

log = logging.getLogger("ragbandit.api")

#: fast path for simple requests; returns None to hand the request to FastAPI, which also reports what is wrong with it
Direct = Callable[[Request], Awaitable[Response | None]]

#: paths that are asked all the time and are no traffic
_UNTRACED: Final = ("/health", "/ready", "/metrics", "/docs", "/openapi.json", "/ui")
#: status of a request whose caller closed the connection before the reply, as nginx counts it
_CLIENT_CLOSED: Final = 499
_ENDING: Final = NotReady(
    "the service is shutting down, and this request was not finished", remedy="try again with the same id"
)


class Malformed(InvalidInput):
    """The head of the request is not one of HTTP/1.1 as it is spoken here."""

    code = "BAD_REQUEST"
    status = 400


class NoUpgrade(InvalidInput):
    """Only HTTP/1.1 is spoken here."""

    code = "UPGRADE"
    status = 400


class Edge:
    """ASGI middleware around the FastAPI app. direct: "METHOD /path" -> fast path that is tried first."""

    def __init__(self, app: ASGIApp, *, state: State, direct: Mapping[str, Direct]) -> None:
        self.app = app
        self.state = state
        self._direct = direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # the service has no websockets; what has no rule is refused
            await send({"type": "websocket.close", "code": 1008})
            return
        scope[SCOPE_ID] = request_id = request_id_of(scope["headers"])
        exchange = _Exchange(scope, receive, send, state=self.state)
        tracing: Tracing = OFF if exchange.path.startswith(_UNTRACED) else getattr(self.state, "tracing", OFF)
        with bound(request=request_id):
            # No path: it may hold an id of a person's session. The route is added at the end.
            facts = {
                names.HTTP_METHOD: scope["method"],
                names.URL_SCHEME: scope["scheme"],
                names.REQUEST_ID: request_id,
            }
            with tracing.span(scope["method"], kind="server", attributes=facts, parent=_sent_trace(scope)) as span:
                with bound(trace=trace_id_of(span.carrier)):
                    await self._answer(exchange)
                _end(span, exchange)

    async def _answer(self, exchange: "_Exchange") -> None:
        scope = exchange.scope
        try:
            _check(exchange, state=self.state)
            await self._admit(exchange)
            handler = self._direct.get(f"{scope['method']} {exchange.path}")
            if handler is not None:
                request = Request(scope, exchange.receive)
                reply = await handler(request)
                if reply is not None:
                    await reply(scope, exchange.receive, exchange.send)
                    return
                exchange.read_again(await request.body())
            await self.app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:  # by the server, which ends and has given its requests their time
            if exchange.status:
                raise
            await refusal(_ENDING, scope=scope)(scope, exchange.receive, exchange.send)
        except Exception as error:
            if exchange.status:
                raise
            await reply_to(error, scope=scope)(scope, exchange.receive, exchange.send)

    async def _admit(self, exchange: "_Exchange") -> None:
        """Put the caller at `request.state.caller`. Raises what Gate and RateLimiter raise."""
        gate: Gate = self.state.gate
        caller = await gate.caller(exchange.scope, rule=exchange.rule, path=exchange.path)
        exchange.scope.setdefault("state", {})["caller"] = caller
        limiter: RateLimiter = self.state.rate_limiter
        if exchange.path in OPERATOR_PATHS or PART in exchange.scope:
            return
        try:
            allowance = await limiter.take(caller)
        except RateLimited as error:
            exchange.headers += error.allowance.headers()
            raise
        if allowance is not None:
            exchange.headers += allowance.headers()


class _Exchange:
    """A request and its reply: no more of the body is read than its rule takes; the reply is counted as it begins."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, state: State) -> None:
        self.scope, self._receive, self._send, self._state = scope, receive, send, state
        self.path = path = scope["path"]
        self.rule: Rule = rule_of(scope["method"], path)
        self.limit: int = getattr(state.router.settings.server, self.rule.size_limit)
        self._seen = 0
        self._read: list[bytes] = []
        #: status of the reply; 0 until it begins
        self.status = 0
        #: headers added to the reply
        self.headers: list[tuple[bytes, bytes]] = [(b"x-request-id", scope[SCOPE_ID].encode("latin-1"))]
        #: path of the route, if it is known before the app has matched it; else None
        self.route: str | None = None
        if is_openai_path(path):
            scope[SHAPE] = openai_error
        elif path == MCP_PATH:
            scope[SHAPE] = mcp_error
        elif is_page(path) and has_path(path, state=state):
            scope[SHAPE] = page_error
            self.headers += page_headers(path)

    async def receive(self) -> Message:
        """The next part of the request. Raises HTTPException where it is too large."""
        if self._read:
            return {"type": "http.request", "body": self._read.pop(), "more_body": False}
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > self.limit:
            raise HTTPException(413)
        return message

    def read_again(self, body: bytes) -> None:
        """Give out the whole body once more, which was read already."""
        self._read = [body]

    async def send(self, message: Message) -> None:
        """The next part of the reply."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.route = getattr(self.scope.get("route"), "path", self.route)
            self._state.metrics.requests.labels(self.route or "unknown", self.status).inc()
            message["headers"] = [*message.get("headers", ()), *self.headers]
        await self._send(message)


def _check(exchange: _Exchange, *, state: State) -> None:
    """Raise what is wrong with a request before its body is read: under overload that must cost next to nothing."""
    if not has_path(exchange.path, state=state):
        raise HTTPException(404)
    _check_head(exchange.scope)
    router: Router = state.router
    if exchange.rule.queue is not None:
        exchange.route = exchange.path  # a rule with a queue has no pattern
        router.batchers[exchange.rule.queue].check_admission()
    headers = Headers(scope=exchange.scope)
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > exchange.limit:
        raise HTTPException(413)
    if "upgrade" in headers:  # the parser takes what follows for the offered protocol
        exchange.headers.append((b"connection", b"close"))
        if announced not in ("", "0") or "transfer-encoding" in headers:
            raise NoUpgrade(remedy="send no header Upgrade: speak HTTP/1.1 from the start, or come through a proxy")


def _check_head(scope: Scope) -> None:
    """Refuse a head that a proxy may read otherwise."""
    hosts = 0
    for name, value in scope["headers"]:
        hosts += name == b"host"
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise Malformed("a body comes plain or chunked", field="Transfer-Encoding", remedy="send it plain")
        if name == b"content-encoding" and value.strip().lower() != b"identity":
            raise Malformed("a body is not unpacked here", field="Content-Encoding", remedy="send it plain")
    if hosts > 1 or (hosts == 0 and scope["http_version"] == "1.1"):
        raise Malformed(f"{hosts} Host headers were sent", field="Host", remedy="send one")


def reply_to(error: Exception, *, scope: Scope) -> Response:
    """The reply to a request that ended with this exception."""
    if isinstance(error, HTTPException) and isinstance(error.__cause__, RagBanditError | ClientDisconnect):
        error = error.__cause__  # FastAPI had it for a body that cannot be read
    if isinstance(error, CallerGone | ClientDisconnect):
        return Response(status_code=_CLIENT_CLOSED)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            error = HTTPException(400)
        else:
            error = complaint(first, skip=1, content_type=Headers(scope=scope).get("content-type"))
    if isinstance(error, HTTPException):
        return _http_reply(error, scope=scope)
    if not isinstance(error, RagBanditError):
        log.error("unexpected error in a request", extra={"action": "error", "path": scope["path"]}, exc_info=error)
        remedy = "try again; if it stays, read the log of the service"
        error = RagBanditError("the service failed; its log has the traceback", remedy=remedy)
    return refusal(error, scope=scope)


def _http_reply(error: HTTPException, *, scope: Scope) -> Response:
    """The reply to an error of the framework."""
    method, path, headers = scope["method"], scope["path"], error.headers  # with Allow, at 405
    allowed = (headers or {}).get("Allow") or "a method that /docs lists"
    less = f"send less, or raise server.{rule_of(method, path).size_limit}"
    faults = {
        400: ("INVALID_JSON", "the body is not JSON", "send a JSON object in UTF-8"),
        404: ("NOT_FOUND", f"there is no endpoint {path}", "/docs lists the endpoints"),
        405: ("METHOD_NOT_ALLOWED", f"{path} does not take {method}", f"send {allowed}"),
        413: ("BODY_TOO_LARGE", "the body is larger than the service takes", less),
    }
    code, message, remedy = faults.get(error.status_code, ("HTTP_ERROR", str(error.detail), "see /docs"))
    return error_reply(scope, error.status_code, error_body(code, message, remedy=remedy), headers=headers)


def _sent_trace(scope: Scope) -> Mapping[str, str]:
    """The caller's W3C headers; a repeated header is ignored."""
    sent = {name: Headers(scope=scope).getlist(name) for name in ("traceparent", "tracestate")}
    return {name: values[0] for name, values in sent.items() if len(values) == 1}


def _end(span: Span, exchange: _Exchange) -> None:
    if exchange.route is not None:
        span.rename(f"{exchange.scope['method']} {exchange.route}")
    span.set({names.HTTP_ROUTE: exchange.route, names.HTTP_STATUS: exchange.status or None})
    if exchange.status >= 500:
        span.fail(str(exchange.status))

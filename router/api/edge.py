"""Edge: the layer between the server and the endpoints.

1. A request gets an id and a span, and its endpoint is found. It is refused before its body is read if the queue is
   too long, or if it announces too large a body.
2. The gate finds the caller by the key, and checks the role. The rate limiter counts the request for this key.
3. The endpoint reads the request and replies. Every exception becomes an error reply in the format of the path
   (RagBandit's or a door's), and every reply is counted.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response
from starlette.datastructures import URL, Headers, State
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ragbandit.router.api.dependencies import CallerGone, stop_reading
from ragbandit.router.api.doors import door_of, instead_of
from ragbandit.router.api.openai.errors import openai_error
from ragbandit.router.api.packed_bodies import codings_of, unpack_body
from ragbandit.router.api.request_state import request_state
from ragbandit.router.api.routes import Endpoint, RouteTable
from ragbandit.router.api.schemas.question_headers import PREVIEW, asks_preview, read_headers
from ragbandit.router.api.schemas.requests import Malformed
from ragbandit.router.api.schemas.responses import error_body, error_reply, refusal_reply
from ragbandit.router.api.security.gate import Gate
from ragbandit.router.api.security.rate_limiter import RateLimited, RateLimiter
from ragbandit.router.api.security.rules import ANY_ROLE, PAGES, AccessRule
from ragbandit.router.serving.deciding.steps.rules import Rules
from ragbandit.router.serving.router import Router
from ragbandit.router.telemetry import conventions as names
from ragbandit.router.telemetry.logs import log_fields
from ragbandit.router.telemetry.tracing import OFF, TRACEPARENT, Span, Tracing, request_id_of, trace_id_of
from ragbandit.shared.errors import NotReady, RagBanditError

log = logging.getLogger("ragbandit.api")

#: a refused body is read and dropped until it has this many bytes in all, for at most this time, seconds. If a
#: connection closes before a proxy has sent the body, the reply is lost and the proxy replies 502
DRAINED_BYTES: Final = 64 * 1024 * 1024
DRAIN_S: Final = 5.0
_UNTRACED: Final = ("/health", "/ready", "/metrics", "/docs", "/openapi.json", PAGES)


class NoUpgrade(Malformed, code="UPGRADE"):
    """The request asks to change the protocol; the service speaks only HTTP/1.1."""


class Edge:
    """ASGI app that answers all HTTP requests. state: the objects of the app that starts and stops it."""

    def __init__(self, *, state: State) -> None:
        self.state = state

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":  # the service has no websockets
            return send({"type": "websocket.close", "code": 1008})
        if scope["method"] == "HEAD":  # a GET whose body is not sent
            scope, send = {**scope, "method": "GET"}, partial(_send_head, send)
        request_state(scope).request_id = request_id_of(scope["headers"])
        return self._answer(_Exchange(scope, receive, send, state=self.state))

    async def _answer(self, exchange: "_Exchange") -> None:
        scope, request_id = exchange.scope, exchange.request_state.request_id
        tracing: Tracing = OFF if exchange.path.startswith(_UNTRACED) else getattr(self.state, "tracing", OFF)
        # The span has no path, because a path may contain a session id. `_finish_span` adds the route without such ids.
        attributes = {
            names.HTTP_METHOD: scope["method"],
            names.URL_SCHEME: scope["scheme"],
            names.REQUEST_ID: request_id,
        }
        parent = _trace_headers(exchange.headers) if tracing.enabled else None
        with (
            tracing.span(scope["method"], kind="server", attributes=attributes, parent=parent) as span,
            log_fields(
                request=request_id, trace=trace_id_of(span.carrier.get(TRACEPARENT)) if tracing.enabled else None
            ),
        ):
            try:
                _refuse_without_body(exchange, router=self.state.router)
                await self._admit(exchange)
                endpoint = exchange.endpoint
                self._read_headers(exchange)
                reply = await endpoint.reply(exchange)
                await reply(scope, exchange.receive, exchange.send)
            except (asyncio.CancelledError, Exception) as error:
                if not exchange.status:
                    await reply_to(error, scope=scope)(scope, exchange.receive, exchange.send_refusal)
                elif not isinstance(error, asyncio.CancelledError):
                    raise
                # The server cancels requests only when it shuts down: it closes the connection, so a reply is useless.
            finally:
                stop_reading(scope)
            if tracing.enabled:
                _finish_span(span, exchange)

    def _read_headers(self, exchange: "_Exchange") -> None:
        """Read the headers of a request's questions. Raises InvalidInput, and Malformed if the request asks an endpoint
        without previews for a preview.
        """
        if exchange.rule.asks:
            router, gate = self.state.router, self.state.gate
            schema, ruled = router.settings.context, router.service.step(Rules).book.keys
            by_proxy = bool(schema) and gate.is_proxy(exchange.request_state.peer)
            read_headers(exchange, schema=schema, rule_keys=ruled, by_proxy=by_proxy)
        elif exchange.scope["method"] != "GET" and asks_preview(exchange.headers):
            message = f"{exchange.scope['method']} {exchange.path:.200} has no preview, so nothing was done"
            raise Malformed(message, field=PREVIEW, remedy=f"leave out the header {PREVIEW}")

    async def _admit(self, exchange: "_Exchange") -> None:
        gate: Gate = self.state.gate
        caller = await gate.caller(exchange.scope, exchange.headers, rule=exchange.rule, path=exchange.path)
        exchange.request_state.caller = caller
        limiter: RateLimiter = self.state.rate_limiter
        if exchange.rule.is_probe or exchange.request_state.part is not None or not (limiter.rates or caller.scopes):
            return
        try:
            allowance = await limiter.take(caller)
        except RateLimited as error:
            exchange.reply_headers += error.allowance.headers()
            raise
        if allowance is not None:
            exchange.reply_headers += allowance.headers()


async def _send_head(send: Send, message: Message) -> None:
    await send({**message, "body": b""} if "body" in message else message)


#: the path that ends a task; the id of the session may have any characters, also slashes
_SESSION_END: Final = re.compile("/+v1/+sessions/(.+)/end/*", re.DOTALL)


def plain_paths(app: ASGIApp) -> ASGIApp:
    """ASGI middleware that removes doubled and last slashes of a path, since clients add slashes to a base URL. Slashes
    of a session's id stay.
    """

    def serve(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        session = _SESSION_END.fullmatch(scope["path"])
        plain = "/" + "/".join(filter(None, scope["path"].split("/")))
        if session is not None:
            plain = f"/v1/sessions/{session[1]}/end"
        return app(scope if plain == scope["path"] else {**scope, "path": plain}, receive, send)

    return serve


def cors(app: ASGIApp, *, state: State) -> ASGIApp:
    """ASGI middleware that lets pages of the origins in `server.cors_origins` call the endpoints for programs."""

    @lru_cache(maxsize=1)
    def cors_app(origins: tuple[str, ...]) -> ASGIApp:
        every = ["*"]
        return CORSMiddleware(
            app, allow_origins=origins, allow_methods=every, allow_headers=every, expose_headers=every
        )

    def serve(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        origins = state.router.settings.server.cors_origins if scope["type"] == "http" else ()
        is_open = bool(origins) and state.routes.is_for_programs(scope["path"])
        return (cors_app(tuple(origins)) if is_open else app)(scope, receive, send)

    return serve


class _Headers(Headers):
    """The headers of a request, decoded once: Starlette decodes all of them for every access."""

    def __init__(self, scope: Scope) -> None:
        self._list = scope["headers"]
        self._values: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            self._values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.lower() in self._values

    def __getitem__(self, key: str) -> str:
        return self._values[key.lower()][0]

    def get(self, key: str, default: Any = None) -> Any:
        values = self._values.get(key.lower())
        return default if values is None else values[0]

    def getlist(self, key: str) -> list[str]:
        return self._values.get(key.lower(), [])


@lru_cache(maxsize=64)
def _base_url(scheme: str, server: tuple[str, int | None] | None, host: str | None, root: str) -> URL:
    headers = [] if host is None else [(b"host", host.encode("latin-1"))]
    scope = {"type": "http", "scheme": scheme, "server": server, "headers": headers, "root_path": root, "path": "/"}
    return Request(scope).base_url


class _Exchange(Request):
    """A request and its reply. Unpacks the body, refuses a body too large for its path, and counts the reply."""

    headers: Headers = Headers()  # an attribute, because the property of Request is slower

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, state: State) -> None:
        super().__init__(scope, receive, send)
        self._app, self.headers = state, _Headers(scope)
        self.path = path = scope["path"]
        routes: RouteTable = state.routes
        found, scope["path_params"] = routes.find(scope["method"], path)
        scope["route"] = self._endpoint = found
        #: an unknown path is refused after the gate, so that only callers with a key learn which paths exist
        self.rule: AccessRule = ANY_ROLE if found is None else found.rule
        self.limit: int = getattr(state.router.settings.server, self.rule.size_limit)
        self._received_bytes = 0
        #: whether the whole body has been received
        self._is_read = False
        #: the whole body, unpacked; None until it is read
        self._whole: bytes | None = None
        #: codings of the body, in the order in which they were applied
        self.codings: list[str] = []
        #: HTTP status; 0 until the reply begins
        self.status = 0
        self.request_state = shared = request_state(scope)
        self.reply_headers: list[tuple[bytes, bytes]] = [(b"x-request-id", shared.request_id.encode("latin-1"))]
        #: path as the endpoint declares it, as /v1/decisions/{decision_id}; None without an endpoint
        self.route: str | None = None if found is None else found.path
        door = door_of(scope)
        if door is not None:
            shared.error, shared.models = door.error, door.models
            self.reply_headers += door.headers(scope)
        elif found is None and instead_of(path):
            shared.error = openai_error

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the request. Raises HTTPException(404), or 405 if the path takes other methods."""
        if self._endpoint is not None:
            return self._endpoint
        methods = self._app.routes.methods(self.path, without_names=instead_of(self.path) is not None)
        raise HTTPException(405, headers={"Allow": ", ".join(methods)}) if methods else HTTPException(404)

    @property
    def base_url(self) -> URL:
        scope, server = self.scope, self.scope.get("server")
        server = None if server is None else tuple(server)
        return _base_url(scope["scheme"], server, self.headers.get("host"), scope.get("root_path", ""))

    async def body(self) -> bytes:
        """The whole body, unpacked. Raises HTTPException(413), ClientDisconnect, and Malformed."""
        if self._whole is None:
            parts, message = list[bytes](), dict[str, Any](more_body=True)
            while message.get("more_body", False):
                message = dict(await self._next())
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                parts.append(message.get("body", b""))
            self._whole = b"".join(parts)
            if self.codings:
                packed, codings = self._whole, self.codings
                self._whole = None
                self._whole = await asyncio.to_thread(unpack_body, packed, codings=codings, most=self.limit)
        return self._whole

    async def stream(self) -> AsyncGenerator[bytes, None]:
        yield await self.body()
        yield b""

    async def receive(self) -> Message:  # replaces a property of Request that returns a function
        """The next message of the connection; a body with codings comes as one message."""
        if self.codings and self._whole is None:
            return {"type": "http.request", "body": await self.body(), "more_body": False}
        return await self._next()

    async def send_refusal(self, message: Message) -> None:
        """Send a reply to an unfinished request: the rest of the body is read and dropped before the reply ends."""
        is_last = message["type"] == "http.response.body" and not self._is_read and self._sends_body
        await self.send({**message, "more_body": True} if is_last else message)
        if is_last:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    while not self._is_read and self._received_bytes <= DRAINED_BYTES:
                        self._count_body(await self._receive())
            await self.send({"type": "http.response.body"})

    @property
    def _sends_body(self) -> bool:
        """Whether the client sends its body: False for an upgrade, or while it waits for permission (Expect)."""
        return "upgrade" not in self.headers and (self._received_bytes > 0 or "expect" not in self.headers)

    async def _next(self) -> Message:
        message = await self._receive()
        self._count_body(message)
        if self._received_bytes > self.limit:
            raise HTTPException(413)
        return message

    def _count_body(self, message: Message) -> None:
        self._is_read = not message.get("more_body", False)
        self._received_bytes += len(message.get("body", b""))

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._app.metrics.count_reply(self.route or "unknown", self.status)
            message["headers"] = [*message.get("headers", ()), *self.reply_headers]
            if self.scope.get("root_path"):
                message["headers"] = _with_prefix(self.scope["root_path"], message["headers"])
        await self._send(message)


def _with_prefix(root_path: str, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Add the proxy's prefix to a redirect to a path of this service."""
    root = root_path.encode()
    is_ours = (name == b"location" and value.startswith(b"/") for name, value in headers)
    return [(name, root + value if ours else value) for (name, value), ours in zip(headers, is_ours, strict=True)]


def _refuse_without_body(exchange: _Exchange, *, router: Router) -> None:
    """Raises an error if the request can be refused without its body. Must be fast: every request is checked.

    Notes the codings of the body in the exchange. Raises Malformed for headers that a proxy may understand differently,
    UnknownCoding, HTTPException(413), and Overloaded if the queue is too long.
    """
    hosts, scope = 0, exchange.scope
    for name, value in scope["headers"]:
        hosts += name == b"host"
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise Malformed("a body must be sent plain or chunked", field="Transfer-Encoding", remedy="use chunked")
        if name == b"content-encoding":
            exchange.codings += codings_of(value.decode("latin-1"))
    if hosts > 1 or (hosts == 0 and scope["http_version"] == "1.1"):
        raise Malformed(f"{hosts} Host headers were sent", field="Host", remedy="send one Host header")
    if exchange.rule.queue is not None:
        router.process.check_admission(exchange.rule.queue)
    headers = exchange.headers
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > exchange.limit:
        raise HTTPException(413)
    if "upgrade" in headers:  # uvicorn takes the body's bytes for the new protocol, so the body cannot be read
        exchange.reply_headers.append((b"connection", b"close"))
        if announced not in ("", "0") or "transfer-encoding" in headers:
            raise NoUpgrade(remedy="leave out the header Upgrade")


def reply_to(error: BaseException, *, scope: Scope) -> Response:
    if isinstance(error, asyncio.CancelledError):  # the server is shutting down, and has waited server.shutdown_s
        message = "the service is shutting down, and this request was not finished"
        error = NotReady(message, remedy="try again with the same id")
    if isinstance(error, CallerGone | ClientDisconnect):
        return Response(status_code=499)  # the caller has gone; metrics count this status, as nginx does
    if isinstance(error, HTTPException):
        return _http_reply(error, scope=scope)
    if not isinstance(error, RagBanditError):
        log.error("unexpected error in a request", extra={"action": "error", "path": scope["path"]}, exc_info=error)
        remedy = "try again; if it fails again, read the log of the service"
        error = RagBanditError("the service failed; its log has the traceback", remedy=remedy)
    return refusal_reply(error, scope=scope)


def _http_reply(error: HTTPException, *, scope: Scope) -> Response:
    method, path = scope["method"], scope["path"]
    allowed = (error.headers or {}).get("Allow") or "a method that /docs lists"  # only a 405 has Allow
    not_found, unserved = "/docs lists the endpoints", instead_of(path)
    if unserved is not None:
        not_found = f"it is not served here: {unserved}"
    elif (door := door_of(scope)) is not None and door.base is not None:
        base = str(Request(scope).base_url).rstrip("/")
        not_found = f"the base URL of clients is {base}{door.base}; {not_found}"
    rule: AccessRule = getattr(scope.get("route"), "rule", ANY_ROLE)
    smaller = f"send less, or raise server.{rule.size_limit}"
    faults = {
        400: ("INVALID_JSON", "the body is not JSON", "send a JSON object in UTF-8"),
        404: ("NOT_FOUND", f"there is no endpoint {path:.200}", not_found),
        405: ("METHOD_NOT_ALLOWED", f"{path} does not take {method}", f"send {allowed}"),
        413: ("BODY_TOO_LARGE", "the body is larger than the service takes", smaller),
    }
    code, message, remedy = faults.get(error.status_code, ("HTTP_ERROR", str(error.detail), "see /docs"))
    return error_reply(scope, error.status_code, error_body(code, message, remedy=remedy), headers=error.headers)


def _trace_headers(headers: Headers) -> Mapping[str, str]:
    """The caller's W3C trace headers, without a header that was sent more than once."""
    sent = {name: headers.getlist(name) for name in ("traceparent", "tracestate")}
    return {name: values[0] for name, values in sent.items() if len(values) == 1}


def _finish_span(span: Span, exchange: _Exchange) -> None:
    if exchange.route is not None:
        span.rename(f"{exchange.scope['method']} {exchange.route}")
    span.set({names.HTTP_ROUTE: exchange.route, names.HTTP_STATUS: exchange.status or None})
    if exchange.status >= 500:
        span.fail(str(exchange.status))

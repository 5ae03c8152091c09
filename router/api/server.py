"""The HTTP server: uvicorn that also keeps the connection's address, serves HTTP/1.0 clients, and has an admin port."""

import asyncio
import logging
import os
import re
import socket
import threading
from collections.abc import Awaitable
from functools import partial
from operator import itemgetter
from typing import Final
from urllib.parse import unquote

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ragbandit.router.api.app import Service, operators_app
from ragbandit.router.api.request_state import STATE, RequestState
from ragbandit.router.config.server import ROOT_PATH, ServerSettings
from ragbandit.router.serving.setup.requirements import bind_socket

log = logging.getLogger("ragbandit.server")


_PREFIX: Final = b"x-forwarded-prefix"
#: headers of proxies; only requests with one of them need a check of the connection's address
_FORWARDED: Final = frozenset({b"x-forwarded-for", b"x-forwarded-proto", _PREFIX})
_name: Final = itemgetter(0)


def _with_peer(app: Service, *, root_path: str) -> ASGIApp:
    """Apply proxy headers, and root_path. The state keeps the address of the connection, which may be a proxy's."""
    behind = ProxyHeadersMiddleware(app, trusted_hosts=os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1"))  # type: ignore[arg-type] # another ASGI type

    def app_with_peer(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        scope[STATE] = RequestState(peer=scope.get("client"))
        if root_path and scope["type"] == "http":
            _set_prefix(root_path, scope, app=app)
        if _FORWARDED.isdisjoint(map(_name, scope.get("headers", ()))):
            return app.pass_to_edge(scope, receive, send)
        peer = scope["client"]
        if not root_path and peer and (peer[0] in behind.trusted_hosts or app.state.gate.is_proxy(peer)):
            scope["root_path"] = _sent_prefix(scope)
        return behind(scope, receive, send)  # type: ignore[arg-type]

    return app_with_peer


def _set_prefix(root_path: str, scope: Scope, *, app: Service) -> None:
    """Set the prefix, and remove it from a path in which a proxy left it, unless a path of ours begins with it."""
    scope["root_path"], path, prefix = root_path, scope["path"], unquote(root_path)
    if f"{path}/".startswith(f"{prefix}/") and app.state.routes.find(scope["method"], path)[0] is None:
        scope["path"] = path.removeprefix(prefix) or "/"


def _sent_prefix(scope: Scope) -> str:
    """The prefixes that proxies have sent, joined, the outermost first; "" if they are not a path."""
    sent = b",".join(value for name, value in scope["headers"] if name == _PREFIX).decode("latin-1")
    prefix = "".join(one.strip().rstrip("/") for one in sent.split(","))
    return prefix if len(prefix) <= 200 and re.fullmatch(ROOT_PATH, prefix) else ""


class _Connection(HttpToolsProtocol):
    """A connection. httptools sends streams in chunks, which HTTP/1.0 does not have, so h11 serves such clients."""

    def data_received(self, data: bytes) -> None:
        is_first = self.headers is None
        if not is_first or not data.partition(b"\n")[0].rstrip().endswith(b" HTTP/1.0"):
            super().data_received(data)
            return
        self.connections.discard(self)
        older = H11Protocol(self.config, self.server_state, self.app_state)
        older.connection_made(self.transport)
        self.transport.set_protocol(older)
        older.data_received(data)


class HttpServer(uvicorn.Server):
    """Server of an app. operators: server of server.admin_port, run on a thread; listener: socket of `operators`."""

    def __init__(
        self,
        app: Service,
        *,
        settings: ServerSettings,
        loop: str,
        operators: "HttpServer | None" = None,
        listener: socket.socket | None = None,
    ) -> None:
        config = uvicorn.Config(
            _with_peer(app, root_path=settings.root_path),
            interface="asgi3",
            host=settings.host,
            port=settings.port,
            limit_concurrency=None if app.state.port == "operators" else settings.max_connections,
            ws="none",
            lifespan="on",
            loop=loop,
            http=_Connection,
            log_level="info" if settings.access_log else "warning",
            access_log=settings.access_log,
            proxy_headers=False,  # `_with_peer` reads the headers of proxies
            server_header=False,
            timeout_graceful_shutdown=settings.shutdown_s,
            timeout_keep_alive=settings.keep_alive_s,
        )
        super().__init__(config)
        self._app = app
        self._operators, self._thread = operators, None
        if operators is not None and listener is not None:
            run = partial(operators.run, sockets=[listener])
            self._thread = threading.Thread(target=run, name="ragbandit-operators", daemon=True)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            label = "operators:" if self._app.state.port == "operators" else "listening on"
            log.info("%s http://%s:%d", label, host, port, extra={"action": "serve"})
        if self.started and self._thread is not None:
            self._thread.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop. Requests that wait for an answer get "pending" at once; other requests have `shutdown_s` seconds."""
        self._app.state.router.process.answers.end_waits()
        if self._operators is not None and self._thread is not None:
            self._operators.should_exit = True
            await asyncio.to_thread(self._thread.join)
        await super().shutdown(sockets)


def make_server(app: Service, *, settings: ServerSettings, loop: str = "auto") -> HttpServer:
    """Make the server of an app. loop: uvicorn's setting. Raises OSError if server.admin_port is in use."""
    operators, listener = None, None
    if settings.admin_port is not None:
        listener = bind_socket(settings.admin_host, settings.admin_port)
        listener.listen()  # clients may connect from now on; the thread of `operators` replies to them
        app.state.port, app.state.admin_port = "public", listener.getsockname()[1]
        operators = HttpServer(operators_app(app), settings=settings, loop=loop)
    return HttpServer(app, settings=settings, loop=loop, operators=operators, listener=listener)

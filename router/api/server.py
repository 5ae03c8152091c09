"""HTTP server: uvicorn, with a thread of its own for the operators' port, and an end in time."""

import asyncio
import logging
import os
import socket
import threading

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ragbandit.router.api.app import operators_app
from ragbandit.router.api.security.gate import PEER
from ragbandit.router.config.settings import ServerSettings

log = logging.getLogger("ragbandit.server")

#: seconds between two looks at whether the operators' server has started
_LOOK_S = 0.01


def _with_peer(app: FastAPI) -> ASGIApp:
    """The app, told who is connected before a header says of whom the request is, as uvicorn lets a proxy say."""
    behind = ProxyHeadersMiddleware(app, trusted_hosts=os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1"))  # type: ignore[arg-type] # of ASGI, too

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER] = scope.get("client")
        await behind(scope, receive, send)  # type: ignore[arg-type]

    return told


class HttpServer(uvicorn.Server):
    """uvicorn's server. operators: of server.admin_port, run as long as this one is."""

    def __init__(
        self, app: FastAPI, *, settings: ServerSettings, loop: str, operators: "_OperatorsThread | None" = None
    ) -> None:
        config = uvicorn.Config(
            _with_peer(app),
            host=settings.host,
            port=settings.port,
            limit_concurrency=None if app.state.port == "operators" else settings.max_connections,
            ws="none",
            lifespan="on",
            loop=loop,
            log_level="info" if settings.access_log else "warning",
            access_log=settings.access_log,
            proxy_headers=False,  # _with_peer reads them
            server_header=False,
            timeout_graceful_shutdown=settings.shutdown_s,
        )
        super().__init__(config)
        self._app = app
        self._operators = operators

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections; the address is logged."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            what = "operators:" if self._app.state.port == "operators" else "listening on"
            log.info("%s http://%s:%d", what, host, port, extra={"action": "serve"})
        if self.started and self._operators is not None:
            await self._operators.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: whoever waits for an answer is told that it is pending; what is being done is finished, in time."""
        self._app.state.router.answers.end_waits()
        if self._operators is not None:
            await self._operators.end()
        await super().shutdown(sockets)


class _OperatorsThread:
    """The server of server.admin_port, on a thread and an event loop of its own, whatever load the other one has."""

    def __init__(self, server: HttpServer, *, listener: socket.socket) -> None:
        self._server = server
        self._thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="ragbandit-operators", daemon=True
        )

    async def start(self) -> None:
        """Return once it accepts connections."""
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            await asyncio.sleep(_LOOK_S)

    async def end(self) -> None:
        """Finish its requests, and end its thread."""
        self._server.should_exit = True
        await asyncio.to_thread(self._thread.join)


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to this address. Raises OSError."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def make_server(app: FastAPI, *, settings: ServerSettings, loop: str = "auto") -> HttpServer:
    """The server of this app, not yet running. loop: of uvicorn, "auto", "asyncio" or "uvloop".

    Raises OSError where server.admin_port is taken.
    """
    operators = None
    if settings.admin_port is not None:
        listener = bound(settings.admin_host, settings.admin_port)
        listener.listen()  # who connects before the thread runs waits for it
        app.state.port, app.state.admin_port = "public", listener.getsockname()[1]
        of_operators = HttpServer(operators_app(app), settings=settings, loop=loop)
        operators = _OperatorsThread(of_operators, listener=listener)
    return HttpServer(app, settings=settings, loop=loop, operators=operators)

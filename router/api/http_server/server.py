"""HTTP server: uvicorn with limits on connections and times, which ends within a grace period."""

import logging
import socket

import uvicorn
from fastapi import FastAPI

from ragbandit.router.api.http_server.protocol import BoundedProtocol, Limits, most_connections
from ragbandit.router.config.settings import ServerSettings
from ragbandit.router.serving.processes.service_process import shared_port

__all__ = ["HttpServer", "make_server"]

log = logging.getLogger("ragbandit.server")

#: ticks of uvicorn's main loop in a second
_TICKS = 10


class HttpServer(uvicorn.Server):
    """It logs its address once it accepts connections, cuts off slow clients, and ends waits when it shuts down."""

    def __init__(
        self, config: uvicorn.Config, *, app: FastAPI, limits: Limits, admin: socket.socket | None = None
    ) -> None:
        super().__init__(config)
        self._app = app
        self._limits = limits
        self._admin = admin

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        if self._admin is not None:
            sockets = [*(sockets or [bound(self.config.host, self.config.port)]), self._admin]
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            log.info("listening on http://%s:%d", self.config.host, port, extra={"action": "serve"})
        if self.started and self._admin is not None:
            host, port = self._admin.getsockname()[:2]
            log.info("operators: http://%s:%d", f"[{host}]" if ":" in host else host, port, extra={"action": "serve"})

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % _TICKS == 0:
            self._look()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: whoever waits for an answer is told that it is pending; what is being done is finished, in time."""
        self._app.state.router.end_waits()
        await super().shutdown(sockets)

    def _look(self) -> None:
        now = self.servers[0].get_loop().time()
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedProtocol):
                connection.look(now)
        limits = self._limits
        limits.say("connections were refused: server.max_connections are open", count=limits.refused)
        limits.say("connections were cut off: nothing moved for server.request_timeout_s", count=limits.cut_off)


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to this address. Raises OSError."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except BaseException:
        found.close()
        raise
    return found


def make_server(app: FastAPI, *, settings: ServerSettings, loop: str = "auto", shared: bool = False) -> HttpServer:
    """The server of this app, not yet running. loop: of uvicorn, "auto", "asyncio" or "uvloop".

    shared: server.admin_port is shared with other processes of the service. Raises OSError where it is taken.
    """
    admin = None
    if settings.admin_port is not None:
        admin = (shared_port if shared else bound)(settings.admin_host, settings.admin_port)
    app.state.admin_port = None if admin is None else admin.getsockname()[1]
    limits = Limits(connections=most_connections(settings.max_connections), request_s=settings.request_timeout_s)
    if limits.connections < settings.max_connections:
        log.warning(
            "at most %d connections are served, not %d: raise `ulimit -n`",
            limits.connections,
            settings.max_connections,
            extra={"action": "limit"},
        )
    app.state.limits = limits
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        loop=loop,
        log_level="info" if settings.access_log else "warning",
        access_log=settings.access_log,
        timeout_graceful_shutdown=settings.shutdown_s,
    )
    return HttpServer(config, app=app, limits=limits, admin=admin)

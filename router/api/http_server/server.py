"""HTTP server: uvicorn with limits on connections and times, which ends within a grace period."""

import logging
import socket

import uvicorn
from fastapi import FastAPI

from ragbandit.router.api.http_server.protocol import BoundedProtocol, Limits, most_connections
from ragbandit.router.config.settings import ServerSettings

__all__ = ["HttpServer", "make_server"]

log = logging.getLogger("ragbandit.server")

#: ticks of uvicorn's main loop in a second
_TICKS = 10


class HttpServer(uvicorn.Server):
    """It logs its address once it accepts connections, cuts off slow clients, and ends waits when it shuts down."""

    def __init__(self, config: uvicorn.Config, *, app: FastAPI, limits: Limits) -> None:
        super().__init__(config)
        self._app = app
        self._limits = limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            log.info("listening on http://%s:%d", self.config.host, port, extra={"action": "serve"})

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


def make_server(app: FastAPI, *, settings: ServerSettings, loop: str = "auto") -> HttpServer:
    """The server of this app, not yet running. loop: of uvicorn, "auto", "asyncio" or "uvloop"."""
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
    return HttpServer(config, app=app, limits=limits)

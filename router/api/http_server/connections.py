"""Connections of one server: how many are open, how large a head may be, and for how long a client is waited for.

uvicorn closes a connection that is idle between two requests. It takes every connection, keeps every header, and waits
for ever for the rest of a request or for a reply to be taken. Here is an end to each of these; HTTP is uvicorn's.
"""

import asyncio
import json
import logging
import resource
import time
from typing import Any, Final

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ragbandit.router.api.rules import OPERATOR_PATHS
from ragbandit.router.api.schemas.responses import error_body, error_json, refusal
from ragbandit.router.telemetry.throttle import Throttle
from ragbandit.shared.errors import Overloaded

log = logging.getLogger("ragbandit.server")

#: bytes of a request before its body (path and headers), and how many headers it may have
MAX_HEAD_BYTES: Final = 65_536
MAX_HEADERS: Final = 1_000
#: open files that are left for the database, Redis and everything else
RESERVED_FILES: Final = 64
#: connections over the limit that may still ask what operators ask, so that a full service is not taken for a dead one
OPERATORS: Final = 16
#: they must ask within that long, seconds: slow clients must not fill these
OPERATOR_S: Final = 1.0
#: requests to be refused that are read in a second: clients that do not wait must not take the time of the others
REFUSALS_PER_S: Final = 1_000
#: seconds, at most, that a refused client is not read: uvicorn closes what is idle for 5
MAX_PAUSE_S: Final = 4.0
#: key of the connection in the state of its requests
CONNECTION: Final = "ragbandit.connection"
#: least time between two log lines about the same, seconds
QUIET_S: Final = 10.0

_FULL: Final = Overloaded("too many connections are open", remedy="try again in a second, and close idle connections")


def _reply(status: int, body: Any) -> bytes:
    """A whole reply that ends its connection."""
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} \r\nretry-after: 1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\nconnection: close\r\n\r\n".encode() + content


_FULL_REPLY: Final = _reply(503, error_json(_FULL))
_LATE_REPLY: Final = _reply(
    408, error_body("REQUEST_TIMEOUT", "the request did not arrive in time", remedy="send it faster, and whole")
)
LONG_HEAD: Final = f"path and headers are over {MAX_HEAD_BYTES} bytes, or over {MAX_HEADERS} headers"
_LONG_REPLY: Final = _reply(431, error_body("HEADERS_TOO_LARGE", LONG_HEAD, remedy="send less"))


class Connections:
    """The open connections of one server, and what was turned away since the start. On its event loop alone.

    most: open at a time, less where the process may not open as many files (`ulimit -n`). request_s: seconds within
    which a client must have sent a head, or a body, or taken some of a reply.
    """

    def __init__(self, *, most: int, request_s: float) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY:
            most = max(1, min(most, files - RESERVED_FILES - OPERATORS))
        self.most, self.request_s = most, request_s
        self.open: set[_LimitedConnection] = set()
        self.refused = self.cut_off = 0
        #: counts as they were logged last
        self._logged: dict[str, int] = {}
        self._throttle = Throttle(QUIET_S)

    def protocol(self, **arguments: Any) -> asyncio.Protocol:
        """A protocol for a new connection, as uvicorn makes one."""
        return _LimitedConnection(HttpToolsProtocol(**arguments), connections=self)

    def look(self) -> None:
        """Close what has been waited for too long, and log what was turned away. Called once a second."""
        now = time.monotonic()
        for connection in list(self.open):
            connection.look(now)
        self._log("connections were refused: server.max_connections are open", count=self.refused)
        self._log("connections were cut off: nothing moved for server.request_timeout_s", count=self.cut_off)

    def _log(self, message: str, *, count: int) -> None:
        before = self._logged.get(message, 0)
        if count > before and self._throttle.lets_pass(message):
            self._logged[message] = count
            log.warning(message, extra={"action": "limit", "times": count - before})


class _LimitedConnection(asyncio.Protocol):
    """One connection: hands everything on to uvicorn's protocol, unless a limit is reached."""

    def __init__(self, http: HttpToolsProtocol, *, connections: Connections) -> None:
        self._http, self._connections = http, connections
        self._over = False
        #: the request whose head came last, and the bytes of a next head since
        self._request: object = None
        self._head_bytes = 0
        #: what the client has to do next, and since when
        self._awaited: object = None
        self._since = 0.0
        self._pause: asyncio.TimerHandle | None = None
        # uvicorn gives each request a copy.
        http.app_state = {**http.app_state, CONNECTION: self}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Take the connection, or refuse it."""
        self._transport, connections = transport, self._connections
        self._awaited, self._since = self._next_step(), time.monotonic()
        over = len(connections.open) + 1 - connections.most
        if over > 0:
            connections.refused += 1
        if over > OPERATORS:
            transport.write(_FULL_REPLY)
            transport.close()
            return
        connections.open.add(self)
        self._http.connection_made(transport)
        if over > 0:
            self._over, self._http.app = True, _for_operators(self._http.app)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        http = self._http
        if self._transport.is_closing():
            return
        in_body = http.cycle is not None and http.cycle.more_body
        http.data_received(data)
        if http.cycle is not self._request:
            self._request, self._head_bytes = http.cycle, 0
        elif not in_body:
            self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES or len(http.headers or ()) > MAX_HEADERS:
            self._end(_LONG_REPLY)

    def eof_received(self) -> None:
        """The client sends no more: it is taken for gone."""
        self._http.eof_received()

    def pause_writing(self) -> None:
        """The client takes the reply slower than it is written."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """It has taken enough."""
        self._http.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed."""
        if self._pause is not None:
            self._pause.cancel()
        if self in self._connections.open:
            self._connections.open.remove(self)
            self._http.connection_lost(error)

    def pause_reading(self) -> float:
        """Read nothing more from this client for a while, since it was refused. Returns for how long, seconds.

        The more connections are open, the longer, so that refusals cost the same however many clients do not wait.
        """
        pause_s = min(len(self._connections.open) / REFUSALS_PER_S, MAX_PAUSE_S)
        if self._pause is None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._pause = asyncio.get_running_loop().call_later(pause_s, self._read_on)
        return pause_s

    def _read_on(self) -> None:
        self._pause = None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def look(self, now: float) -> None:
        """Cut the client off if it has not done in time what it has to do next."""
        step = self._next_step()
        if step is None or step != self._awaited:
            self._awaited, self._since = step, now
            return
        limit_s = self._connections.request_s
        if now > self._since + (min(OPERATOR_S, limit_s) if self._over else limit_s):
            self._connections.cut_off += 1
            self._end(_LATE_REPLY)

    def _next_step(self) -> object:
        """What the client has to do next: the same thing until it is done; None: it has to wait for us."""
        cycle, unsent = self._http.cycle, self._transport.get_write_buffer_size()
        if unsent:
            return "take the reply", unsent  # slow readers take little at a time, and are not cut off
        if self._pause is not None:
            return None
        if cycle is None or cycle.response_complete:
            return "send a head", id(cycle)
        return ("send the body", id(cycle)) if cycle.more_body else None

    def _end(self, reply: bytes) -> None:
        """Reply, unless another reply has begun, and close the connection."""
        cycle = self._http.cycle
        if self._transport.get_write_buffer_size():
            self._transport.abort()
            return
        if cycle is None or not cycle.response_started:
            self._transport.write(reply)
        self._transport.close()


def _for_operators(app: Any) -> Any:
    """The app of a connection over the limit: it answers operators, and refuses everybody else."""

    async def full(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in OPERATOR_PATHS:
            await app(scope, receive, send)
            return
        reply = refusal(_FULL, scope=scope)
        reply.headers["connection"] = "close"
        await reply(scope, receive, send)

    return full

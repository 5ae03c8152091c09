"""HTTP protocol: uvicorn's, with an end to every wait for a client, a limit on connections, and half-closed clients.

uvicorn closes a connection that is idle between two requests. It waits for ever for the rest of a request, takes every
connection, and hangs up on a client that has closed its sending side after a whole request.
"""

import json
import logging
import resource
import socket
from typing import TYPE_CHECKING, Any, Final

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ragbandit.router.api.http_server.read_delay import WAITED_S, waited_s
from ragbandit.router.api.schemas.responses import error_body, error_json, refusal
from ragbandit.router.errors import Overloaded
from ragbandit.router.telemetry.throttle import Throttle

if TYPE_CHECKING:
    import asyncio

__all__ = ["BoundedProtocol", "Limits", "most_connections"]

log = logging.getLogger("ragbandit.server")

#: bytes of a request before its body: path and headers
MAX_HEAD_BYTES: Final = 65_536
#: open files that are left for the database, Redis and everything else
RESERVED_FILES: Final = 64
#: connections over the limit that may still ask what operators ask, so that a full service is not taken for a dead one
OPERATORS: Final = 16
#: they must ask within that long, seconds: slow clients must not fill these places
OPERATOR_S: Final = 1.0
OPERATOR_PATHS: Final = frozenset({"/health", "/ready", "/metrics"})
#: a client that has closed its sending side is looked at so often, seconds, and so many times
LOOK_S, LOOKS = 0.1, 50
#: least time between two log lines about the same, seconds
QUIET_S: Final = 10.0

_LATE = error_body("REQUEST_TIMEOUT", "the request did not arrive in time", remedy="send it faster, and whole")
_LONG = error_body("HEADERS_TOO_LARGE", f"path and headers are over {MAX_HEAD_BYTES} bytes", remedy="send less")
_FULL = Overloaded("too many connections are open", remedy="try again in a second, and close idle connections")


def most_connections(wanted: int) -> int:
    """The limit in force: `wanted`, or less where the process may not open as many files (`ulimit -n`)."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, files - RESERVED_FILES - OPERATORS))


class Limits:
    """Limits of one server, and what they have turned away since the start."""

    def __init__(self, *, connections: int, request_s: float) -> None:
        self.connections = connections
        #: seconds within which a request must have arrived whole
        self.request_s = request_s
        self.refused = 0
        self.cut_off = 0
        #: counts as they were logged last
        self._logged: dict[str, int] = {}
        self._throttle = Throttle(QUIET_S)

    def say(self, message: str, *, count: int) -> None:
        """Log a count, unless the same was logged within QUIET_S."""
        before = self._logged.get(message, 0)
        if count > before and self._throttle.lets_pass(message):
            self._logged[message] = count
            log.warning(message, extra={"action": "limit", "times": count - before})


class BoundedProtocol(HttpToolsProtocol):
    """One connection. The server calls `look` once a second."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: "asyncio.AbstractEventLoop | None" = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limits: Limits = config.app.state.limits  # type: ignore[union-attr] # our app
        #: since when a request is awaited or on its way, by the loop's clock; None: it has arrived whole
        self._since: float | None = None
        self._head_bytes = 0
        self._in_head = True
        #: since when the client takes nothing of what it is sent, and how many bytes then waited for it
        self._stuck: float | None = None
        self._unsent = 0
        #: the client would rather speak another protocol
        self._offered = False
        #: the limit on connections was reached before it
        self._over = False

    def connection_made(self, transport: "asyncio.Transport") -> None:  # type: ignore[override]
        """Take the connection, or refuse it."""
        super().connection_made(transport)
        self._since = self.loop.time()
        over = len(self.connections) - self.limits.connections
        if over > 0:
            self.limits.refused += 1
            self.app = _for_operators(self.app)
            self._over = True
            if over > OPERATORS:
                self._refuse(503, error_json(_FULL))

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        if self._since is None and self._is_idle():
            self._since = self.loop.time()
        if self._in_head:
            self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        while data:  # again for every request among them that offers another protocol: clients may pipeline many
            try:
                self.parser.feed_data(data)
                data = b""
            except httptools.HttpParserUpgrade as offered:
                data = self._declined(data[offered.args[0] :]) if self._offered else b""
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                data = b""
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, _LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is there. Those behind a chunked body, of which there may be any number, are not kept."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The path and the headers are there."""
        self._in_head, self._head_bytes = False, 0
        # Clients of HTTP/2 offer to speak it with every request.
        self._offered = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._offered:
            return
        super().on_headers_complete()
        self.scope[WAITED_S] = waited_s(self.transport)  # type: ignore[typeddict-unknown-key] # a key of ours
        if self._over:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """The request is there."""
        self._in_head = True
        if self._offered:
            return
        self._since = None
        super().on_message_complete()

    def _declined(self, rest: bytes) -> bytes:
        """The same request in HTTP/1.1, for a new parser: the old one takes its body for the offered protocol's.

        rest: what came behind its headers.
        """
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/1.1"]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(token for token in value.split(b",") if token.strip().lower() != b"upgrade")
            if name != b"upgrade":
                lines.append(name + b": " + value)
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*lines, b"", rest])

    def on_response_complete(self) -> None:
        """The reply is written; the next request may have begun to arrive."""
        super().on_response_complete()
        if self._since is None and not self._is_idle() and self.cycle.more_body:
            self._since = self.loop.time()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends no more. What it has asked for as a whole it is given: True keeps our side open."""
        if self._is_idle() or self.cycle.more_body:
            return None
        self.cycle.keep_alive = False
        if self.cycle.scope["http_version"] == "1.1":
            self.loop.call_later(LOOK_S, self._is_it_there, LOOKS)
        return True

    def _is_it_there(self, looks: int) -> None:
        """Find out whether the client waits for its reply, or has gone: both begin with the end of what it sends.

        To an interim reply, which clients of HTTP/1.1 pass over, the system of one that has gone says so.
        """
        if self.transport.is_closing() or self._is_idle() or self.cycle.response_started or not looks:
            return
        if looks == LOOKS:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        found = self.transport.get_extra_info("socket")
        if found is not None and found.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        self.loop.call_later(LOOK_S, self._is_it_there, looks - 1)

    def look(self, now: float) -> None:
        """Cut off a client that has not sent its request, or not taken its reply, within the time for a request."""
        limit_s = min(OPERATOR_S, self.limits.request_s) if self._over else self.limits.request_s
        if self._since is not None and now > self._since + limit_s and not self.transport.is_closing():
            self.limits.cut_off += 1
            self._refuse(408, _LATE)
        unsent = self.transport.get_write_buffer_size()
        if not self.transport.is_closing() and not self.flow.write_paused:
            self._stuck = None
        elif self._stuck is None or unsent != self._unsent:  # slow readers take little at a time, and are not cut off
            self._stuck, self._unsent = now, unsent
        elif now > self._stuck + self.limits.request_s:
            self.limits.cut_off += 1
            self.transport.abort()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _refuse(self, status: int, body: Any) -> None:
        """Reply, unless a reply has begun, and close the connection."""
        if self._is_idle() or not self.cycle.response_started:
            content = json.dumps(body).encode()
            head = f"HTTP/1.1 {status} \r\nretry-after: 1\r\ncontent-type: application/json\r\n"
            head += f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
            self.transport.write(head.encode() + content)
        self.transport.close()


def _for_operators(app: Any) -> Any:
    """The app of a connection over the limit: it answers operators, and refuses everybody else."""

    async def full(scope: Scope, receive: Receive, send: Send) -> None:
        await (app if scope["path"] in OPERATOR_PATHS else refusal(_FULL))(scope, receive, send)

    return full

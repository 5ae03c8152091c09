"""HTTP over raw sockets: a request whose body has no end, and a reader who takes a long stream slowly."""

import contextlib
import select
import socket
import time

import pytest
from starlette.routing import Route

from ragbandit.router.api.http_server.connections import MAX_HEADERS
from ragbandit.router.api.streaming.event_stream import EventStream
from tests.support.servers.http_service import Service, routed

CHUNKED = (
    b"POST /v1/route HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)
EVENT = b"data: " + b"x" * 8_000 + b"\n\n"
EVENTS = 12


@pytest.fixture
def service(settings):
    """A service in which a client has half a second for its request."""
    running = Service(settings(server={"request_timeout_s": 0.5}), loop="uvloop")
    routed(running.http)  # the first request takes longer than others
    yield running
    running.close()


def address(service) -> tuple[str, int]:
    host, _, port = service.url.removeprefix("http://").partition(":")
    return host, int(port)


def connection_of(service, link):
    """The server's side of a link."""
    give_up = time.monotonic() + 5
    while time.monotonic() < give_up:
        for connection in list(service._server.server_state.connections):
            if connection.transport.get_extra_info("peername") == link.getsockname():
                return connection
        time.sleep(0.01)
    raise AssertionError("the connection was not taken")


def held(service) -> tuple[int, int]:
    """Bytes of bodies, and headers, that the connections keep."""
    found = list(service._server.server_state.connections)  # uvicorn's
    bodies = sum(len(connection.cycle.body) for connection in found if connection.cycle is not None)
    return bodies, sum(len(connection.headers or ()) for connection in found)


@pytest.mark.parametrize(
    ("first", "again", "status"),
    [
        (b"", b"ffff\r\n" + b" " * 65_535 + b"\r\n", b"413"),
        (b"", b"1\r\n \r\n", b"408"),  # too few bytes to be too many, in a thousand chunks
        (b"1;", b"a" * 1_000, b"408"),  # an extension of a chunk
        (b"2\r\n{}\r\n0\r\n", b"a: b\r\n" * 1_000, b"431"),  # headers behind the body
    ],
    ids=["chunks", "small chunks", "extension", "trailers"],
)
def test_a_chunked_body_without_end(service, first, again, status):
    """It is refused and cut off in time, next to nothing of it is held, and others are served."""
    bodies, headers, received = 0, 0, b""
    give_up = time.monotonic() + 20
    with socket.create_connection(address(service), 20) as link, contextlib.suppress(OSError):
        link.sendall(CHUNKED + first)
        while time.monotonic() < give_up:
            link.sendall(again)
            bodies, headers = max(bodies, held(service)[0]), max(headers, held(service)[1])
            if select.select([link], [], [], 0.002)[0]:
                received = received or link.recv(65_536)
    assert time.monotonic() < give_up, "the connection was not closed"
    # What is on its way to somebody who goes on sending may be lost with the connection.
    assert received[:12] in (b"", b"HTTP/1.1 " + status)
    assert bodies <= 2 * service.router.settings.server.max_body_bytes
    assert headers < 2 * MAX_HEADERS
    routed(service.http)


def test_a_slow_reader_of_a_long_stream(service):
    """Who takes a long stream slowly, but takes it, gets all of it; no more of it is made than can be sent."""
    made = []

    async def events():
        for number in range(EVENTS):
            made.append(number)
            yield EVENT

    async def long(_request):
        return EventStream(events(), headers={})

    service.app.router.routes.insert(0, Route("/long", long))
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    link.settimeout(20)
    link.connect(address(service))
    with link:
        connection = connection_of(service, link)
        taken = connection.transport.get_extra_info("socket")
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        link.sendall(b"GET /long HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        received = link.recv(1_000)
        time.sleep(0.2)
        assert len(made) < EVENTS
        while part := link.recv(1_000):
            received += part
            time.sleep(0.03)
    assert received.count(EVENT) == EVENTS

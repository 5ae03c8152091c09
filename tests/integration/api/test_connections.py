"""HTTP over raw sockets: endless, half-closed, too many, odd and leaving clients, on both event loops."""

import contextlib
import json
import socket
import threading
import time

import pytest
from starlette.routing import Route

from ragbandit.router.api.streaming import EventStream
from tests.support.cases import every_case
from tests.support.servers.http_service import QUESTION, Service, routed

BODY = json.dumps({"question": QUESTION}).encode()
EVENT = b"data: " + b"x" * 8_000 + b"\n\n"
EVENTS = 4_000


@pytest.fixture
def loop():
    """What a service runs on where uvloop is installed, as it is with uvicorn[standard]."""
    return "uvloop"


@pytest.fixture
def serve_on(loop, settings):
    """A factory of services on that event loop."""
    with contextlib.ExitStack() as stack:

        def start(**server) -> Service:
            service = Service(settings(server=server), loop=loop)
            stack.callback(service.close)
            service._server.config.timeout_keep_alive = 1
            return service

        yield start


def connected(service, data: bytes = b"") -> socket.socket:
    host, _, port = service.url.removeprefix("http://").partition(":")
    link = socket.create_connection((host, int(port)), 20)
    link.sendall(data)
    return link


def post(path: str = "/v1/route", *, body: bytes = BODY, headers: str = "", length: int | None = None) -> bytes:
    length = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"content-length: {length}\r\n{headers}"
    return head.encode() + b"\r\n" + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


def everything(link: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    received = b""
    with link, contextlib.suppress(ConnectionResetError):
        while piece := link.recv(65536):
            received += piece
    return received


def test_a_head_that_may_be_read_in_two_ways(serve_on):
    """One Host, and a body that is plain or chunked; what is no HTTP at all is 400."""
    service, posted = serve_on(), "POST /v1/route HTTP/1.1\r\nhost: localhost\r\n"
    with every_case() as case:
        for name, head, status in (
            ("no host", "GET /health HTTP/1.1\r\n", 400),
            ("two hosts", "GET /health HTTP/1.1\r\nhost: localhost\r\nhost: other\r\n", 400),
            ("1.0 without host", "GET /health HTTP/1.0\r\n", 200),
            (
                "gzip, chunked",
                "POST /v1/route HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip, chunked\r\n",
                400,
            ),
            ("packed", f"{posted}content-encoding: gzip\r\n", 400),
            ("no HTTP", "hello\r\n", 400),
        ):
            with case(name):
                link = connected(service, f"{head}connection: close\r\n\r\n".encode())
                reply = everything(link)
                assert reply.split()[1] == str(status).encode()
                assert b"server: " not in reply.lower()


@pytest.mark.parametrize("offered", ["websocket", "h2c"])
def test_an_upgrade_is_declined(serve_on, offered):
    """A request that offers another protocol is answered and its connection closed; one with a body is told why not."""
    service = serve_on()
    offer = f"connection: Upgrade, HTTP2-Settings\r\nupgrade: {offered}\r\n"
    reply = everything(connected(service, post(headers=offer) + get("/health")))
    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"HTTP/1.1 200" not in reply
    assert b'"UPGRADE"' in reply
    asked = f"GET /health HTTP/1.1\r\nhost: localhost\r\n{offer}\r\n".encode()
    reply = everything(connected(service, asked))
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in reply
    assert service.router.status().counters.decided == 0


def test_connect_is_refused(serve_on):
    """CONNECT, which asks for a tunnel, is refused."""
    service = serve_on()
    received = everything(connected(service, b"CONNECT x:443 HTTP/1.1\r\nhost: x:443\r\nconnection: close\r\n\r\n"))
    assert received.startswith((b"HTTP/1.1 40", b"HTTP/1.1 50"))


def test_a_half_closed_client(serve_on):
    """A client that closes its sending side is taken for gone: at once nothing is done for it any more."""
    service = serve_on()
    link = connected(service, post("/v1/answer?wait_s=600"))
    give_up = time.monotonic() + 10
    while not service.jobs.enqueued:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    link.shutdown(socket.SHUT_WR)
    assert everything(link) == b""
    (key,) = service.jobs.enqueued
    while service.router.answers.is_awaited(key):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_half_closed_half_request(serve_on):
    """A client that closes its sending side in the middle of a request is not waited for."""
    service = serve_on()
    link = connected(service, post(length=500))
    link.shutdown(socket.SHUT_WR)
    began = time.monotonic()
    everything(link)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_leaves_is_noticed(serve_on):
    """A client that closes its connection while it waits is noticed within a second."""
    service = serve_on()
    link = connected(service, post("/v1/answer?wait_s=600"))
    give_up = time.monotonic() + 10
    while not service.jobs.enqueued:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    (key,) = service.jobs.enqueued
    link.close()
    give_up = time.monotonic() + 1
    while service.router.answers.is_awaited(key):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_what_is_not_done_in_time_is_refused(serve_on):
    """A request that the service cannot finish before it ends is 503 with Retry-After, not a 500."""
    service = serve_on(shutdown_s=1)
    begun, held, encode = threading.Event(), threading.Event(), service.router.encoder.encode
    service.router.encoder.encode = lambda texts: begun.set() or (held.wait(20) and encode(texts))
    link = connected(service, post())
    assert begun.wait(10)
    service._server.should_exit = True
    reply = link.recv(65536)
    link.close()
    held.set()
    assert reply.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in reply.lower()
    assert b"try again with the same id" in reply


def test_too_many_connections(serve_on):
    """Beyond max_connections a request is 503; when connections have closed it is served again."""
    service = serve_on(max_connections=5)
    with contextlib.ExitStack() as open_links:
        for _ in range(5):
            open_links.enter_context(connected(service))
        assert everything(connected(service, post())).startswith(b"HTTP/1.1 503 ")
    give_up = time.monotonic() + 5
    while not everything(connected(service, post(headers="connection: close\r\n"))).startswith(b"HTTP/1.1 200 "):
        assert time.monotonic() < give_up


def test_a_chunked_body_without_end(serve_on):
    """It is refused with 413, next to nothing of it is held, and others are served."""
    service, held = serve_on(), 0
    head = b"POST /v1/route HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    link = connected(service, head + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n")
    with contextlib.suppress(OSError):
        for _ in range(1_000):
            link.sendall(b"ffff\r\n" + b" " * 65_535 + b"\r\n")
            cycles = [connection.cycle for connection in list(service._server.server_state.connections)]
            held = max(held, sum(len(cycle.body) for cycle in cycles if cycle is not None))
        raise AssertionError("the connection was not closed")
    # What is on its way to somebody who goes on sending may be lost with the connection.
    assert everything(link)[:12] in (b"", b"HTTP/1.1 413")
    assert held <= 2 * service.router.settings.server.max_body_bytes
    routed(service.http)


def test_a_slow_reader_of_a_long_stream(serve_on):
    """Who takes a long stream slowly, but takes it, gets all of it; no more of it is made than can be sent."""
    service, made = serve_on(), []

    async def events():
        for number in range(EVENTS):
            made.append(number)
            yield EVENT

    async def long(_request):
        return EventStream(events(), headers={})

    service.app.router.routes.insert(0, Route("/long", long))
    with connected(service) as link:
        link.sendall(b"GET /long HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        received = link.recv(65_536)
        time.sleep(0.2)
        assert len(made) < EVENTS
        while part := link.recv(65_536):
            received += part
    assert received.count(EVENT) == EVENTS

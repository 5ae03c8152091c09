"""HTTP over raw sockets: slow, half-closed, too many, odd and leaving clients, on both event loops."""

import contextlib
import json
import resource
import socket
import threading
import time

import pytest

from ragbandit.router.api.http_server import connections
from tests.support.cases import every_case
from tests.support.servers.http_service import QUESTION, Service, routed

BODY = json.dumps({"question": QUESTION}).encode()


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


def test_a_request_that_does_not_arrive(serve_on):
    """A client that sends a part of a request is cut off after request_timeout_s, with 408, and others are served."""
    service = serve_on(request_timeout_s=0.5)
    parts = (
        b"",
        b"POST /v1/ro",
        b"POST /v1/route HTTP/1.1\r\nhost: localhost\r\n",
        post(length=500),
        b"\r\n",
        get("/health") + b"GE",
    )
    began = time.monotonic()
    links = [connected(service, sent) for sent in parts]
    for sent, link in zip(parts, links, strict=True):
        received = everything(link)
        assert time.monotonic() - began < 5, sent
        assert sent.startswith(b"GET /health") or b" 408 " in received[:20], sent
    routed(service.http)


def test_a_request_that_drips(serve_on):
    """A client that sends a byte now and then is cut off too: the time is for the whole request."""
    service = serve_on(request_timeout_s=0.5)
    link = connected(service)
    began = time.monotonic()
    with link, contextlib.suppress(OSError):
        for byte in post(body=b"x" * 1000):
            link.sendall(bytes([byte]))
            time.sleep(0.05)
    assert time.monotonic() - began < 10


def test_half_sent_requests_do_not_stay(serve_on):
    """Hundreds of half-sent requests are all gone soon, and leave no connection behind."""
    service = serve_on(request_timeout_s=0.5)
    links = [connected(service, b"POST /v1/route HTTP/1.1\r\n") for _ in range(200)]
    assert all(b" 408 " in everything(link)[:20] for link in links)
    assert len(service._server.connections.open) <= 1
    assert service._server.connections.cut_off == 200


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_reply_that_is_not_taken(serve_on):
    """A client that asks and asks and reads nothing is cut off."""
    service = serve_on(request_timeout_s=0.5)
    link = connected(service)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.settimeout(0.5)
    with contextlib.suppress(OSError):
        for _ in range(2000):
            link.sendall(get("/openapi.json"))
    give_up = time.monotonic() + 8
    while service._server.connections.open:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    link.close()


def test_headers_without_end(serve_on):
    """Path and headers over 64 KiB are refused with 431."""
    service = serve_on()
    link = connected(service)
    with contextlib.suppress(OSError):
        link.sendall(b"GET /health HTTP/1.1\r\nx: " + b"a" * connections.MAX_HEAD_BYTES)
    assert everything(link).startswith(b"HTTP/1.1 431 ")
    routed(service.http)


def test_a_head_that_may_be_read_in_two_ways(serve_on):
    """One Host, a body that is plain or chunked, and no larger a head than is taken, also in one packet."""
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
            ("one packet", f"GET /health HTTP/1.1\r\nhost: localhost\r\nx-long: {'x' * 66_000}\r\n", 431),
        ):
            with case(name):
                link = connected(service, f"{head}connection: close\r\n\r\n".encode())
                reply = everything(link)
                assert reply.split()[1] == str(status).encode()
                assert b"server: " not in reply.lower()


def test_too_many_connections(serve_on, caplog):
    """Beyond max_connections a request is 503 with Retry-After and the log says so; operators are still answered."""
    service = serve_on(max_connections=5)
    with contextlib.ExitStack() as open_links:
        for _ in range(5):
            open_links.enter_context(connected(service))
        refusal = everything(connected(service, post()))
        assert refusal.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in refusal.lower()
        assert b'"OVERLOADED"' in refusal
        for path in sorted(connections.OPERATOR_PATHS):
            assert everything(connected(service, get(path))).startswith(b"HTTP/1.1 200 ")
        for _ in range(connections.OPERATORS):
            open_links.enter_context(connected(service))
        assert everything(connected(service)).startswith(b"HTTP/1.1 503 ")
        give_up = time.monotonic() + 5
        while "connections were refused" not in caplog.text:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        while not everything(connected(service, get("/health"))).startswith(b"HTTP/1.1 200 "):
            assert time.monotonic() < give_up, "slow clients keep the places of operators"
            time.sleep(0.05)
    give_up = time.monotonic() + 5
    while not everything(connected(service, post(headers="connection: close\r\n"))).startswith(b"HTTP/1.1 200 "):
        assert time.monotonic() < give_up


def test_open_files_bound_connections(monkeypatch):
    """Where the process may open few files, fewer connections are served than are configured."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    limited = [connections.Connections(most=most, request_s=1.0).most for most in (2000, 100)]
    assert limited == [256 - connections.RESERVED_FILES - connections.OPERATORS, 100]


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


def test_headers_in_great_number(serve_on):
    """More than a thousand headers, also behind a chunked body, are refused with 431, however slowly they come."""
    chunked = b"POST /v1/route HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    for sent in (b"GET /health HTTP/1.1\r\n", chunked):
        link = connected(serve_on(), sent)
        with contextlib.suppress(OSError):
            for _ in range(40):
                link.sendall(b"a: b\r\n" * 50)
                time.sleep(0.005)
        assert b"HTTP/1.1 431 " in everything(link)


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

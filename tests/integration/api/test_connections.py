"""HTTP over raw sockets: endless, half-closed, too many, odd and leaving clients, on both event loops."""

import asyncio
import contextlib
import http.client
import json
import os
import socket
import threading
from urllib.parse import urlsplit

import pytest

from ragbandit.router.api import edge
from ragbandit.router.api.edge import Edge
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.servers.http_service import QUESTION, Service, worker_answers
from tests.support.waiting import until

BODY = json.dumps({"question": QUESTION}).encode()


@pytest.fixture
def loop():
    """What a service runs on where uvloop is installed, as it is with uvicorn[standard]."""
    return "uvloop"


@pytest.fixture
def serve_on(loop, serve):
    """A factory of services on that event loop."""
    return lambda **server: serve(loop=loop, server={"keep_alive_s": 1} | server)


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


def everything(link: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    received = b""
    with link, contextlib.suppress(ConnectionResetError):
        while piece := link.recv(65536):
            received += piece
    return received


def test_an_idle_connection_outlives_a_proxys(serve_on, settings):
    """An idle connection is closed after the seconds of the setting, by default after more than a proxy's 60 s."""
    assert settings().server.keep_alive_s > 60
    reply = everything(connected(serve_on(), b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"))
    assert reply.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_leaves_is_noticed(serve_on):
    """A client that closes its connection while it waits is noticed, long before its wait ends."""
    service = serve_on()
    link = connected(service, post("/v1/answer?wait_s=600"))
    (key,) = until(lambda: service.jobs.enqueued, seconds=10)
    link.close()
    until(lambda: not service.router.process.answers.is_awaited(key))


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


def test_a_reply_that_is_cut_at_the_end_raises_nothing(serve_on, monkeypatch):
    """If the server cancels a reply that has begun, because its caller does not read it, no error is left to log."""
    scope = {"type": "http", "method": "GET", "path": "/health", "scheme": "http", "query_string": b"", "headers": []}

    async def run():
        begun = asyncio.Event()

        async def reply(scope, receive, send):
            await send({"type": "http.response.start", "status": 200})
            await asyncio.sleep(60)

        async def endpoint():
            return reply

        async def send(message):
            begun.set()

        state, headers = serve_on().app.state, [(b"host", b"localhost")]
        monkeypatch.setattr(state.routes.find("GET", "/health")[0], "endpoint", endpoint)
        request = asyncio.create_task(
            Edge(state=state)({**scope, "http_version": "1.1", "headers": headers}, None, send)
        )
        await begun.wait()
        request.cancel()
        await request

    asyncio.run(run())


def test_too_many_connections(serve_on):
    """Beyond max_connections a request is 503; when connections have closed it is served again."""
    service = serve_on(max_connections=5)
    with contextlib.ExitStack() as open_links:
        for _ in range(5):
            open_links.enter_context(connected(service))
        assert everything(connected(service, post())).startswith(b"HTTP/1.1 503 ")
    asked = post(headers="connection: close\r\n")
    until(lambda: everything(connected(service, asked)).startswith(b"HTTP/1.1 200 "), seconds=5)


def tcp_sockets():
    """Every connected TCP socket of this process."""
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as link:
            if link.family == socket.AF_INET and link.type == socket.SOCK_STREAM and link.getpeername():
                yield link


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_no_connection_waits_to_fill_its_packets(kind, settings):
    """Connections from clients and to a model's server send small pieces at once (TCP_NODELAY), on both event loops."""
    with ScriptedServer({"": Reply(text="Bram Stoker wrote it", part_s=0.5)}) as server:
        generator = {"name": "openai", "model": "m", "openai": {"base_url": server.url, "api_key_env": "NO_KEY"}}
        arms = {"first": {"class": "model"}, "second": {"class": "model"}}
        service = Service(settings(arms=arms, generator=generator), loop=kind, inline=True)
        ports = {"clients": urlsplit(service.url).port, "model": urlsplit(server.url).port}
        try:
            body = {"model": "auto", "stream": True, "messages": [{"role": "user", "content": QUESTION}]}
            with service.http.stream("POST", "/v1/chat/completions", json=body) as reply:
                pieces = reply.iter_bytes()
                assert next(pieces)
                delays = {
                    (side, link.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)
                    for link in tcp_sockets()
                    for side, address in (("clients", link.getsockname()), ("model", link.getpeername()))
                    if address[1] == ports[side]
                }
        finally:
            service.close()
        assert delays == {("clients", True), ("model", True)}


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
def test_a_proxy_that_sends_a_large_body_gets_its_refusal(serve_on, version):
    """A proxy that sends its whole body before it reads gets 413, though its connection closes after the reply."""
    body, service = b" " * 12_000_000, serve_on()
    for headers in ("connection: close\r\n", "connection: close\r\ntransfer-encoding: chunked\r\n"):
        sent = post("/v1/chat/completions", body=body, headers=headers).replace(b"HTTP/1.1", version)
        if "chunked" in headers:
            sent = sent.replace(b"content-length: 12000000\r\n", b"").replace(
                body, b"b71b00\r\n" + body + b"\r\n0\r\n\r\n"
            )
        reply = everything(connected(service, sent))
        assert reply.startswith(b"HTTP/1.1 413 ")
        assert b"server.max_chat_bytes" in reply


@pytest.mark.parametrize("headers", ["", "connection: close\r\n"], ids=["lasting", "closing"])
def test_a_body_above_the_limit_gets_its_whole_refusal(serve_on, headers):
    """A client that reads only after it has sent 4.3 MB gets every byte of its 413, and no reset."""
    link = connected(serve_on(), post("/v1/chat/completions", body=b" " * 4_300_000, headers=headers))
    with link, http.client.HTTPResponse(link) as reply:  # a reset would raise
        reply.begin()
        body = reply.read()
    assert (reply.status, len(body)) == (413, int(reply.headers["content-length"]))
    assert b"server.max_chat_bytes" in body


def test_a_refused_body_is_not_read_without_end(serve_on, monkeypatch):
    """At most DRAINED_BYTES of a refused body are read, and a body that does not come is awaited for DRAIN_S."""
    monkeypatch.setattr(edge, "DRAINED_BYTES", 100_000)
    monkeypatch.setattr(edge, "DRAIN_S", 0.1)
    service = serve_on()
    silent = everything(connected(service, post(length=10**9, headers="connection: close\r\n")))
    assert silent.startswith(b"HTTP/1.1 413 ")
    link = connected(service, post(length=10**9, headers="connection: close\r\n"))
    with link, pytest.raises(OSError, match=r"reset|[Bb]roken"):
        link.sendall(bytes(1_000_000_000))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_stream_to_http_1_0(serve_on):
    """A client of HTTP/1.0 gets a stream without chunks, which ends with the connection; other replies are as ever."""
    service = serve_on()
    link = connected(service, post("/v1/answer?stream=true").replace(b"HTTP/1.1", b"HTTP/1.0"))
    (key,) = until(lambda: service.jobs.enqueued, seconds=10)
    worker_answers(service, key, "Bram Stoker")
    reply = everything(link).lower()
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert body.startswith(b"event: decision\ndata: {")
    assert everything(connected(service, b"GET /health HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")


def test_head_is_get_without_a_body(serve_on):
    """HEAD has the status and the headers of GET on every path, also of an error, and no body."""
    service = serve_on()
    for path in ("/health", "/ready", "/metrics", "/v1/models", "/v1/policies", "/docs", "/v1/decisions/none", "/x"):
        shown, probed = service.http.get(path), service.http.head(path)
        assert (probed.status_code, probed.content) == (shown.status_code, b"")
        assert probed.headers["content-type"] == shown.headers["content-type"]
    assert service.http.head("/v1/route").status_code == 405

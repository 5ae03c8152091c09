"""Connections to OpenAI-compatible servers: breaks, encodings, redirects, credentials, and replies without an end."""

import asyncio
import gc
import gzip
import json
import socket
import struct
import threading
import time
from contextlib import aclosing, asynccontextmanager

import aiohttp
import pytest

from ragbandit.shared.model_servers.error_replies import failure_of_error
from ragbandit.shared.model_servers.event_reader import BrokenReply
from ragbandit.shared.model_servers.openai_client import (
    READ,
    UNREAD,
    RefusedRequest,
    ReplyReader,
    connect,
    reply_pieces,
)
from ragbandit.shared.proxies import certificates

PACES = pytest.mark.parametrize("pace", [None, READ, UNREAD], ids=["as it comes", "read", "unread"])
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def event(text):
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


@asynccontextmanager
async def connected(*replies, prefix=""):
    """Returns a ModelServer and the heads of its requests. replies: parts of raw replies; a number is a pause."""
    heads, left = [], list(replies)

    async def answer(reader, writer):
        try:
            while left:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
                heads.append(head)
                for part in left.pop(0):
                    if isinstance(part, bytes):
                        writer.write(part)
                        await writer.drain()
                    else:
                        await asyncio.sleep(part)
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://{prefix}127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    model = connect(base_url=url, key="k", headers={}, read_s=20.0)
    try:
        yield model, heads
    finally:
        await model.close()
        server.close()


class Values(ReplyReader):
    """Reads values. seen: the values that are returned; None for all. threads: gets the names of the threads."""

    def __init__(self, *, pace=None, seen=None, threads=None):
        super().__init__()
        self._pace, self._seen, self._threads = pace, seen, set() if threads is None else threads

    def read(self, value):
        self._threads.add(threading.current_thread().name)
        return [value] if self._seen is None or value in self._seen else []

    def pace(self):
        return self._pace


async def all_of(pieces):
    async with aclosing(pieces) as groups:
        return [value async for group in groups for value in group]


async def values_of(model, *, pause_s=0.0, values=None, pace=None):
    values = [] if values is None else values
    pieces = reply_pieces(model, {"model": "m"}, reply=Values(pace=pace))
    async with aclosing(pieces) as reply:
        async for pieces in reply:
            values += [value if isinstance(value, str) else value["choices"][0]["delta"]["content"] for value in pieces]
            await asyncio.sleep(pause_s)
    return values


@PACES
@pytest.mark.timeout(30)
def test_what_arrives_before_a_break_is_read_by_a_slow_reader(pace):
    """A connection breaks while the reader is busy: all pieces are read before the error is raised."""

    async def run():
        parts = [HEAD + b"Content-Length: 5000\r\n\r\n" + event("a"), 0.1, event("b") + event("c")]
        async with connected(parts) as (model, _):
            values = []
            with pytest.raises(aiohttp.ClientPayloadError):
                await values_of(model, pause_s=0.5, values=values, pace=pace)
            assert values == ["a", "b", "c"]

    asyncio.run(run())


async def timed_groups(model, *, pace):
    """The groups of values of a reply, each with the seconds since the request."""
    began = time.monotonic()
    async with aclosing(reply_pieces(model, {}, reply=Values(pace=pace))) as reply:
        return [(pieces, time.monotonic() - began) async for pieces in reply]


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("pace", "most"), [(READ, 150), (UNREAD, 60)], ids=["read", "unread"])
@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b""], ids=["done", "closed"])
def test_pieces_that_come_fast_are_read_together(pace, most, end):
    """The first of 200 pieces 2 ms apart is read at once, and the others in order and in few groups."""
    texts = [f"{number} " for number in range(200)]
    parts = [HEAD + b"\r\n", *(part for text in texts for part in (event(text), 0.002)), end]

    async def run():
        async with connected(parts) as (model, _):
            groups = await timed_groups(model, pace=pace)
        pieces = [value for values, _ in groups for value in values if value != "[DONE]"]
        assert [value["choices"][0]["delta"]["content"] for value in pieces] == texts
        assert len(groups[0][0]) < 50
        assert len(groups) <= most

    asyncio.run(run())


@PACES
@pytest.mark.timeout(30)
def test_a_connection_is_used_again_after_its_pauses(pace):
    """Three replies with fast pieces come over one connection, which is read again after each of them."""
    body = [b"%x\r\n%b\r\n" % (len(part), part) for part in [event("a")] * 30 + [b"data: [DONE]\n\n"]]
    parts = [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *(one for part in body for one in (part, 0.001))]
    reply, connections = [*parts, b"0\r\n\r\n"], set()

    async def run():
        async with connected(reply, reply, reply, []) as (model, _):
            for _ in range(3):
                assert await values_of(model, pace=pace) == ["a"] * 30 + ["[DONE]"]
                held = [protocol for places in model._session.connector._conns.values() for protocol, _ in places]
                connections.update(map(id, held))
                assert [protocol.transport.is_reading() for protocol in held] == [True]
        assert len(connections) == 1

    asyncio.run(run())


@PACES
@pytest.mark.timeout(30)
def test_pieces_that_come_slowly_are_read_as_they_come(pace):
    """Pieces further apart than a pause are read one by one; fast ones before a silence are read while it lasts."""
    slow = [part for number in range(6) for part in (event(str(number)), 0.25)]
    fast = [part for number in range(20) for part in (event(str(number)), 0.002)]

    async def run():
        async with connected([HEAD + b"\r\n", *slow, *fast, 1.5, event("last")]) as (model, _):
            groups = await timed_groups(model, pace=pace)
        assert [len(values) for values, _ in groups[:6]] == [1] * 6
        assert len(groups[-1][0]) == 1
        assert groups[-1][1] - groups[-2][1] > 0.3

    asyncio.run(run())


@PACES
@pytest.mark.timeout(30)
def test_much_text_is_not_held_up_by_pauses(pace):
    """A reply of 24 MB, whose pieces come without a break, takes at most a second longer than without pauses."""
    part = event("a" * 2000) * 100
    parts = [HEAD + b"\r\n", event("a"), 0.002, event("a"), 0.002, *[part] * 120]

    async def run():
        async with connected(parts) as (model, _):
            (*_, (_, seconds)) = await timed_groups(model, pace=pace)
        return seconds

    assert asyncio.run(run()) < 6.0


@pytest.mark.timeout(30)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", ["https://me:SECRET@other.example/v2?key=SECRET", "/v2", "file:///etc/passwd", ""])
def test_a_redirect_is_not_followed(status, location):
    """A redirect is one request and a failure `denied`, whose message has the new address without secrets."""

    async def run():
        moved = f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
        async with connected([moved], [moved]) as (model, heads):
            with pytest.raises(RefusedRequest) as error:
                await values_of(model)
            assert (len(heads), failure_of_error(error.value).kind) == (1, "denied")
            assert {"h": "https://other.example/v2", "/": "/v2"}.get(location[:1], "") in error.value.body
            assert "SECRET" not in str(error.value)

    asyncio.run(run())


def packed(body, kind=b"gzip"):
    body = gzip.compress(body)
    return HEAD + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)) + body


@pytest.mark.timeout(30)
def test_a_compressed_reply_is_read_within_a_ratio():
    """No encoding is asked for. A reply in gzip is read, unless it grows more than a hundred times."""

    async def run():
        bombs = [packed(unit * (20_000_000 // len(unit))) for unit in (b"data: {}\n\n", b": " + b"x" * 997 + b"\n")]
        async with connected([packed(event("a") + b"data: [DONE]\n\n")], *[[bomb] for bomb in bombs]) as (model, heads):
            assert await values_of(model) == ["a", "[DONE]"]
            assert "accept-encoding: identity\r\n" in heads[0]
            for _ in bombs:
                with pytest.raises(BrokenReply, match="times as large"):
                    async with aclosing(reply_pieces(model, {}, reply=Values())) as reply:
                        assert [value async for pieces in reply for value in pieces if value] == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("part", "thread"),
    [
        (event("a"), "MainThread"),
        (b'data: {"choices": [{"delta": {"content": "' + b"a" * 40_000 + b'"}}]}\n\n', "read_0"),
        (b"data: {}\n\n" * 2000, "read_0"),
    ],
    ids=["small", "large", "many"],
)
def test_large_and_many_values_are_read_by_the_reading_thread(part, thread):
    """Small events are read on the event loop, a large one or many at once by the one reading thread."""

    async def run():
        names = set()
        async with connected([HEAD + b"\r\n", 0.1, part, 0.1, b"data: [DONE]\n\n"]) as (model, _):
            values = await all_of(reply_pieces(model, {}, reply=Values(threads=names)))
        assert values[-1] == "[DONE]"
        return names

    assert thread in asyncio.run(run())


_LONG = b'{"choices": [{"delta": {"content": "' + b"a" * 40_000


@pytest.mark.parametrize(
    "parts",
    [[b"data: " + _LONG + b'"}}]}'], [_LONG + b'"}}]}'], [_LONG + b'"}}]}' + b" " * 200]],
    ids=["an event without a line's end", "a document", "a document and blanks"],
)
def test_the_last_value_of_a_reply_is_read_by_the_reading_thread(parts):
    """A large value that is complete only when the connection ends is not read on the event loop."""

    async def run():
        names = set()
        async with connected([HEAD + b"\r\n", 0.05, *parts]) as (model, _):
            values = await all_of(reply_pieces(model, {}, reply=Values(threads=names)))
        assert len(str(values[0])) > 40_000
        return names

    assert asyncio.run(run()) == {"read_0"}


#: parts of replies that are sent without an end, after a status line and the headers
ENDLESS = {
    "events without content": (HEAD + b"\r\n", b'data: {"choices": [{"delta": {}}]}\n\n' * 2000),
    "empty comments": (HEAD + b"\r\n", b":\n" * 30_000),
    "empty data": (HEAD + b"\r\n", b"data:\n" * 10_000),
    "short data": (HEAD + b"\r\n", b"data:ab\n" * 8000),
    "a line": (HEAD + b"\r\n", b"data: " + b"x" * 60_000),
    "a document": (HEAD + b"\r\n[{}", b"," + b"{}," * 32 + b"{}"),
    "replies 100": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ENDLESS)
def test_a_reply_without_end_does_not_hold_the_event_loop(name):
    """While an endless reply is read, the loop runs other tasks after little processor time, and a deadline holds."""

    async def run():
        head, part = ENDLESS[name]
        longest = 0.0

        async def watch():
            nonlocal longest
            last = time.process_time()
            while True:
                await asyncio.sleep(0)
                now = time.process_time()
                longest, last = max(longest, now - last), now

        async with connected([head, *[part] * 1000]) as (model, _):
            watcher = asyncio.create_task(watch())
            with pytest.raises((BrokenReply, aiohttp.ClientError, TimeoutError)):
                async with (
                    asyncio.timeout(2),
                    aclosing(reply_pieces(model, {}, reply=Values(seen=["answer"]))) as reply,
                ):
                    assert [value async for pieces in reply for value in pieces] == []
            watcher.cancel()
        assert longest < 1.0

    asyncio.run(run())


@pytest.mark.timeout(30)
@pytest.mark.parametrize("length", [15, 5000])
def test_an_error_whose_body_is_cut_keeps_its_status(length):
    """A 400 whose body breaks off is refused like a whole one, and its endless body is not read to the end."""

    async def run():
        parts = [b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n" % length, b'{"error": "no"']
        async with connected(parts) as (model, _):
            with pytest.raises(RefusedRequest) as error:
                await values_of(model)
            assert failure_of_error(error.value).kind == "refused"
            assert '{"error": "no"' in error.value.body

    asyncio.run(run())


@pytest.mark.timeout(30)
def test_a_connection_is_used_again_and_credentials_of_the_address_replace_the_key():
    """Two requests share a connection, and send user and password of the address as Basic authentication."""

    async def run():
        body = event("a") + b"data: [DONE]\n\n"
        whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        async with connected([whole], [whole], prefix="me:word@") as (model, heads):
            assert [await values_of(model), await values_of(model)] == [["a", "[DONE]"]] * 2
            assert len(heads) == 2
            assert "authorization: basic bwu6d29yza==" in heads[1]  # in lower case

    asyncio.run(run())


@pytest.mark.timeout(30)
def test_an_invalid_chunk_ends_the_reply_at_once():
    """A chunk without a length is an error as soon as it arrives, although the connection stays open."""

    async def run():
        parts = [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", 0.1, b"zz\r\nno length\r\n", 25.0]
        async with connected(parts) as (model, _):
            with pytest.raises(aiohttp.ClientError):
                async with asyncio.timeout(10):
                    await values_of(model)

    asyncio.run(run())


@pytest.mark.timeout(30)
def test_a_proxy_of_the_environment_is_used_and_netrc_is_not_read(monkeypatch, tmp_path):
    """HTTP_PROXY may be a host and a port; hosts in NO_PROXY are asked directly; a password in ~/.netrc is not sent."""
    (tmp_path / "netrc").write_text("default login me password word\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("NO_PROXY", "localhost")
    body = event("a") + b"data: [DONE]\n\n"
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def run():
        async with connected([whole], [whole]) as (direct, heads):
            monkeypatch.setenv("HTTP_PROXY", direct.url.removeprefix("http://").split("/")[0])
            through = connect(base_url="http://model.example/v1", key="k", headers={}, read_s=20.0)
            assert await values_of(through) == await values_of(direct) == ["a", "[DONE]"]
            await through.close()
            assert heads[0].startswith("post http://model.example/v1/chat/completions")
            assert ["\r\nauthorization: bearer k" in head for head in heads] == [True, True]
            assert not any("proxy-authorization" in head for head in heads)

    asyncio.run(run())


def test_certificates_are_those_of_the_environment_else_of_certifi(monkeypatch):
    """An empty SSL_CERT_DIR counts as none."""
    monkeypatch.setenv("SSL_CERT_DIR", "")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert certificates().cert_store_stats()["x509_ca"] > 50


@pytest.mark.timeout(30)
def test_a_proxy_gets_neither_the_key_nor_the_headers(monkeypatch):
    """The request that opens a tunnel through a proxy has no key and no configured header."""

    async def run():
        heads = []

        async def refuse(reader, writer):
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            writer.close()

        proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        model = connect(base_url="https://model.example/v1", key="SECRET", headers={"api-key": "SECRET"}, read_s=20.0)
        with pytest.raises(aiohttp.ClientError):
            await values_of(model)
        await model.close()
        proxy.close()
        assert heads[0].startswith("CONNECT model.example:443")
        assert "SECRET" not in heads[0]
        assert "authorization" not in heads[0].lower()

    asyncio.run(run())


@pytest.mark.timeout(30)
def test_a_reset_connection_is_no_line_of_asyncio(caplog):
    """A connection that is reset in the middle of a reply raises an error, and asyncio logs none."""

    async def run():
        async def reset(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD + b"Content-Length: 5000\r\n\r\n" + event("a"))
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        server = await asyncio.start_server(reset, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        model = connect(base_url=url, key="k", headers={}, read_s=20.0)
        with pytest.raises(aiohttp.ClientError):
            await values_of(model)
        await model.close()
        server.close()

    asyncio.run(run())
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []

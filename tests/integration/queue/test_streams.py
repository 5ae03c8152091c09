"""Streams through a real Redis: order, bounds, slow readers, and readers and servers that go away."""

import asyncio
import threading
import time

import pytest

from ragbandit.router.queue.jobs import connect_redis
from ragbandit.router.queue.outage import Outage
from ragbandit.router.queue.redis_server import RedisServer
from ragbandit.router.queue.stream_reader import MAX_HELD, StreamReader
from ragbandit.router.queue.stream_writer import MAX_PIECE, StreamWriter
from ragbandit.router.queue.streams import MAX_ENTRIES, stream_key
from ragbandit.shared.types import DecisionId, StatusNote, TextPiece
from tests.support.waiting import until

KEY = DecisionId("d1")

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def writer(redis_client, redis_server):
    made = StreamWriter(connect_redis(redis_server, timeout_s=3.0), outage=Outage())
    yield made
    made.close()


@pytest.fixture
def reader(redis_client, redis_server):
    # as the service has it
    made = StreamReader(connect_redis(redis_server, timeout_s=1.0), outage=Outage())
    yield made
    made.close()


class Reading:
    """Takes everything that comes, until told to stop."""

    def __init__(self, reader, key=KEY):
        self.woken, self.got = threading.Event(), []
        self.stream = reader.subscribe(key, wake=self.woken.set)

    def until(self, enough, *, seconds=10.0):
        give_up = time.monotonic() + seconds
        while not enough(self):
            assert time.monotonic() < give_up, self.got
            self.woken.wait(0.05)
            self.woken.clear()
            self.got += self.stream.read()
        return self

    @property
    def text(self):
        return "".join(piece.text for piece in self.got if isinstance(piece, TextPiece))


def give(made, *pieces):
    async def run():
        for piece in pieces:
            await made.text(piece)

    asyncio.run(run())


def test_pieces_come_in_order_and_together(writer, reader, redis_client):
    """The first piece is written at once, what follows it closely together; notes keep their place."""
    reading = Reading(reader)
    stream = writer.open(KEY)
    assert stream.reading
    stream.note("searching: x")
    give(stream, *(f"{number} " for number in range(1000)))
    stream.note("done")
    writer.end(stream)
    reading.until(lambda it: it.got and it.got[-1] == StatusNote(text="done"))
    assert reading.text == "".join(f"{number} " for number in range(1000))
    assert reading.got[0] == StatusNote(text="searching: x")
    assert redis_client.xlen(stream_key(KEY)) < 100
    assert 0 < redis_client.ttl(stream_key(KEY)) <= 60


def test_a_reader_that_comes_late_is_told_by_notification(writer, reader):
    """A run in progress streams its text from the moment it learns of a reader."""
    stream = writer.open(KEY)
    reading = Reading(reader)
    writer.begin_writing(KEY)
    assert stream.reading
    give(stream, "late")
    assert reading.until(lambda it: it.got).text == "late"


def test_a_stream_is_bounded(writer, redis_client):
    """Where the reader has gone the writer goes on, and Redis holds MAX_ENTRIES entries of MAX_PIECE characters."""
    redis_client.set(f"ragbandit:stream-wanted:{KEY}", 1)
    stream = writer.open(KEY)
    began = time.monotonic()
    give(stream, *("x" * (MAX_PIECE + 10) for _ in range(MAX_ENTRIES)))
    writer.end(stream)
    assert time.monotonic() - began < 20
    last = f"1-{2 * MAX_ENTRIES}".encode()
    until(lambda: [key for key, _ in redis_client.xrevrange(stream_key(KEY), count=1)] == [last])
    entries = redis_client.xrange(stream_key(KEY))
    assert len(entries) <= MAX_ENTRIES
    assert all(len(fields[b"t"]) <= MAX_PIECE for _, fields in entries)


def test_a_reader_that_takes_nothing_holds_nobody_up(writer, reader):
    """The run goes on at its own pace; what the reader has not taken is bounded, and the rest is lost to it."""
    reading = Reading(reader)
    stream = writer.open(KEY)
    began = time.monotonic()
    give(stream, *("x" * MAX_PIECE for _ in range(2 * MAX_HELD)))
    assert time.monotonic() - began < 10
    writer.end(stream)
    until(lambda: reading.stream.lost)
    assert 0 < len(reading.stream.read()) <= MAX_HELD


def test_two_readers_and_two_runs(writer, reader):
    """Both readers of an answer get all of it, and of a second run only what it has beyond the first."""
    one, two = Reading(reader), Reading(reader)
    first = writer.open(KEY)
    give(first, "a")
    writer.end(first)
    one.until(lambda it: it.got)
    second = writer.open(KEY)
    give(second, "ab")
    writer.end(second)
    for reading in (one, two):
        reading.until(lambda it: len(it.got) == 2)
        assert reading.got == [TextPiece(text="a"), TextPiece(text="b")]


def test_redis_going_away_ends_the_stream_and_not_the_run(settings):
    """The reader hears that nothing more comes, the writer goes on at once, and new answers come whole."""
    configuration = settings()
    server = RedisServer(configuration.data_dir)
    server.start()
    client = connect_redis(configuration.redis, timeout_s=3.0)
    writer, reader = (kind(client, outage=Outage()) for kind in (StreamWriter, StreamReader))
    try:
        reading = Reading(reader)
        run = writer.open(KEY)
        give(run, "a")
        reading.until(lambda it: it.got)
        server.stop()
        until(lambda: reading.stream.lost)
        began = time.monotonic()
        give(run, *("x" * MAX_PIECE for _ in range(200)))
        assert time.monotonic() - began < 10
        until(lambda: not run.reading)
        assert reader.subscribe(DecisionId("d2"), wake=lambda: None) is None
    finally:
        writer.close()
        reader.close()
        server.stop()

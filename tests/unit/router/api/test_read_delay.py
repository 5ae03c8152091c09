"""How long requests wait in their sockets, and which of them are refused for that."""

import asyncio
import socket
import sys
import time

import pytest

from ragbandit.router.api.http_server.read_delay import LATE, ReadDelay, waited_s
from ragbandit.router.errors import Overloaded


def test_late_requests_are_refused_while_all_are_late():
    """Requests that waited too long are refused once so many in a row did; one that is in time ends that."""
    delay = ReadDelay()
    for _ in range(LATE):
        delay.check(1.5, max_wait_s=1.0)
    for _ in range(3):
        with pytest.raises(Overloaded, match=r"waited 1\.5 s to be read, longer than server.max_wait_s \(1 s\)"):
            delay.check(1.5, max_wait_s=1.0)
    delay.check(0.9, max_wait_s=1.0)
    delay.check(1.5, max_wait_s=1.0)
    assert (delay.refused, delay.last_s) == (3, 1.5)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone says how long bytes have waited")
def test_the_system_says_how_long_bytes_waited():
    """The delay of bytes that arrived while the event loop was busy is the time that it was busy."""
    found = []

    class Reading(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            found.append(waited_s(self.transport))
            self.transport.close()
            done.set()

    async def run():
        server = await asyncio.get_running_loop().create_server(Reading, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            client.sendall(b"x")
            time.sleep(0.2)
            await asyncio.wait_for(done.wait(), 10)
        server.close()

    done = asyncio.Event()
    asyncio.run(run())
    assert 0.19 <= found[0] < 5.0


def test_no_delay_where_the_system_does_not_say():
    """A connection that is no TCP has no delay."""

    class Transport:
        def get_extra_info(self, name):
            return ours

    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert waited_s(Transport()) == 0.0
    ours = None
    assert waited_s(Transport()) == 0.0

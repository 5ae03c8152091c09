"""The event loop of a worker, which all its jobs share."""

import asyncio
import threading
import time
from concurrent.futures import CancelledError

import pytest

from ragbandit.workers.running.event_loop import EventLoop


@pytest.fixture
def loop():
    made = EventLoop()
    yield made
    made.close()


def test_what_a_coroutine_raises_reaches_the_job(loop):
    """An error comes out of `run`, and the next coroutine is served."""

    async def fail():
        raise KeyError("k")

    with pytest.raises(KeyError):
        loop.run(fail())
    assert loop.run(asyncio.sleep(0, "next")) == "next"


def test_closing_cancels_what_still_runs():
    """A coroutine left behind is cancelled, the thread ends, and closing again does nothing."""
    loop, cancelled = EventLoop(), threading.Event()

    async def hang():
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    kept = []

    async def leave_behind():
        kept.append(asyncio.create_task(hang()))
        await asyncio.sleep(0)

    loop.run(leave_behind())
    loop.close()
    loop.close()
    assert cancelled.is_set()
    assert not loop._thread.is_alive()


def test_a_blocked_loop_is_found(loop):
    """A loop answers at once while its coroutines await; code that does not await keeps it from that, and is named."""
    blocked, freed = threading.Event(), []

    async def block_the_loop():
        blocked.set()
        for _ in range(1000):  # calls no function of Python, which would be the position
            if freed:
                return
            time.sleep(0.01)

    assert loop.watch.answers()
    with pytest.raises(TimeoutError):
        loop.run(block_the_loop(), timeout_s=0.1)
    assert blocked.wait(5)
    loop.watch.blocked_s = 0.1
    assert not loop.watch.answers()
    assert "block_the_loop" in loop.watch.position()
    freed.append(True)
    loop.watch.blocked_s = 5.0
    assert loop.watch.answers()


def test_a_loop_that_has_ended_counts_as_blocked(loop, monkeypatch):
    """A library that ends the process from a task of its own ends only the loop: the watch sees it."""

    async def end_the_process():
        async def call():
            raise SystemExit(2)

        await asyncio.gather(call(), asyncio.sleep(60))

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    asyncio.run_coroutine_threadsafe(end_the_process(), loop._loop)
    loop._thread.join(10)
    assert not loop.watch.answers()
    assert loop.watch.position() == "its thread has ended"


def test_interrupting_twice_lets_a_coroutine_end(loop):
    """A coroutine that is interrupted again while it counts its cost goes on with that, and its caller waits."""
    begun, counted = threading.Event(), []

    async def work():
        try:
            begun.set()
            await asyncio.sleep(60)
        finally:
            loop.interrupt()
            await asyncio.sleep(0.05)
            counted.append(True)

    raised = []

    def run():
        try:
            loop.run(work())
        except CancelledError as error:
            raised.append((error, list(counted)))

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(10)
    loop.interrupt()
    thread.join(10)
    assert raised[0][1] == [True]

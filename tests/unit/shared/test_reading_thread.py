"""The reading thread: one text at a time, small ones first, and nothing is read after its caller has ended."""

import asyncio
import threading
import time

import pytest

from ragbandit.shared.reading import thread as reading_thread
from ragbandit.shared.reading.thread import ReadingStuck, ReadingThread


def test_small_texts_pass_large_ones_until_these_have_waited():
    """A smaller text goes first, but a large one waits for no more than its own size."""
    order, gate = [], threading.Event()

    async def run():
        thread = ReadingThread()
        first = asyncio.ensure_future(thread.read(50, gate.wait, 10))
        await asyncio.sleep(0.05)
        sizes = [400, 100, 100, 100, 100, 100]
        reads = []
        for number, size in enumerate(sizes):
            reads.append(asyncio.ensure_future(thread.read(size, order.append, (size, number))))
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *reads)
        gate.clear()
        held = asyncio.ensure_future(thread.read(50, gate.wait, 10))
        await asyncio.sleep(0.05)
        later = [asyncio.ensure_future(thread.read(size, order.append, size)) for size in (400, 100, 100)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(held, *later)

    asyncio.run(run())
    assert order[:6] == [(100, 1), (100, 2), (100, 3), (100, 4), (100, 5), (400, 0)]
    assert order[6:] == [100, 100, 400]


def test_a_text_of_one_size_keeps_its_turn():
    """If small texts follow each other, a large text waits only for as many bytes as its own."""
    order = []

    async def run():
        thread, begun = ReadingThread(), threading.Event()
        held = asyncio.ensure_future(thread.read(1, begun.wait, 10))
        await asyncio.sleep(0.05)
        large = asyncio.ensure_future(thread.read(350, order.append, "large"))
        await asyncio.sleep(0)

        def small(number):
            order.append(number)
            time.sleep(0.02)

        async def one_after_another():
            await asyncio.gather(*(thread.read(100, small, number) for number in range(2)))
            for number in range(2, 10):
                await thread.read(100, small, number)

        following = asyncio.ensure_future(one_after_another())
        await asyncio.sleep(0)
        begun.set()
        await asyncio.gather(held, large, following)

    asyncio.run(run())
    assert order.index("large") <= 4


def test_a_cancelled_caller_ends_after_its_text():
    """A reader never changes what its caller has after the caller has ended; a text that waits is not read."""
    done, begun, release = [], threading.Event(), threading.Event()

    async def run():
        thread = ReadingThread()

        def slow():
            begun.set()
            release.wait(10)
            done.append("slow")

        running = asyncio.ensure_future(thread.read(1, slow))
        await asyncio.to_thread(begun.wait, 10)
        waiting = asyncio.ensure_future(thread.read(1, done.append, "waiting"))
        await asyncio.sleep(0)
        waiting.cancel()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert done == []
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert done == ["slow"]
        await thread.read(1, done.append, "next")

    asyncio.run(run())
    assert done == ["slow", "next"]


def test_errors_reach_the_caller():
    """An error of a reader is raised to its caller, and the next text is read."""

    async def run():
        thread = ReadingThread()
        with pytest.raises(ValueError, match="x"):
            await thread.read(1, int, "x")
        assert await thread.read(1, int, "7") == 7

    asyncio.run(run())


def test_a_reader_that_does_not_end_holds_nobody(monkeypatch):
    """After GUARD_S its caller gets an error, and the texts that wait are read by another thread."""
    monkeypatch.setattr(reading_thread, "GUARD_S", 1.0)
    release = threading.Event()

    async def run():
        thread = ReadingThread()
        stuck = asyncio.ensure_future(thread.read(1, release.wait, 20))
        await asyncio.sleep(0.05)
        following = asyncio.ensure_future(thread.read(2, int, "7"))
        with pytest.raises(ReadingStuck):
            await stuck
        assert await following == 7
        release.set()
        assert await thread.read(1, int, "8") == 8

    asyncio.run(run())


@pytest.mark.parametrize("cancels", [1, 2])
def test_a_caller_who_leaves_a_stuck_reader_holds_nobody(monkeypatch, cancels):
    """If a caller is cancelled when its reader is stuck already, the texts that wait get another thread too."""
    monkeypatch.setattr(reading_thread, "GUARD_S", 1.0)
    release = threading.Event()

    async def run():
        thread = ReadingThread()
        stuck = asyncio.ensure_future(thread.read(1, release.wait, 20))
        await asyncio.sleep(0.05)
        following = asyncio.ensure_future(thread.read(2, int, "7"))
        await asyncio.sleep(0)
        if cancels == 2:  # the second one comes while the first waits for the reader
            stuck.cancel()
            await asyncio.sleep(0.01)
        time.sleep(1.5)  # the reader becomes stuck while the event loop is busy
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        assert await asyncio.wait_for(following, 5) == 7
        release.set()
        assert await thread.read(1, int, "8") == 8

    asyncio.run(run())

"""Waits of requests, until their callers close the connections."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from starlette.exceptions import HTTPException

from ragbandit.router.api.dependencies import CallerGone, Waiter
from ragbandit.router.api.schemas.requests import Malformed

GONE = {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("sent", "expected"), [(HTTPException(413), HTTPException), (Malformed("no gzip"), Malformed), (GONE, CallerGone)]
)
def test_a_body_that_was_not_read_is_refused(sent, expected):
    """A request that waits before its body is read gets the error of the body, and does not count as left alone."""

    async def receive():
        if isinstance(sent, Exception):
            raise sent
        return sent

    async def run():
        unread = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(context))
        waiter = Waiter(SimpleNamespace(scope={}, receive=receive))
        with pytest.raises(expected):
            await waiter.wait(until=asyncio.get_running_loop().time() + 60)
        return unread

    assert asyncio.run(run()) == []


@pytest.mark.parametrize("own_loop", [True, False])
def test_a_pipe_wakes_only_the_loop_of_another_thread(own_loop, monkeypatch):
    """A notification ends the wait; one from the event loop of the request itself writes to no pipe."""

    async def receive():
        await asyncio.sleep(60)

    async def run():
        loop, woken = asyncio.get_running_loop(), []
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *call: woken.append(call) or wake(*call))
        waiter = Waiter(SimpleNamespace(scope={}, receive=receive))
        thread = threading.Timer(0.05, waiter.notify)
        if own_loop:
            loop.call_later(0.05, waiter.notify)
        else:
            thread.start()
        assert await waiter.wait(until=loop.time() + 30)
        waiter.notify()
        waiter.notify()
        assert await waiter.wait(until=loop.time() + 30)
        assert not await waiter.wait(until=loop.time())
        return len(woken)

    assert asyncio.run(run()) == (0 if own_loop else 1)

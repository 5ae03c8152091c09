"""Waits of requests, until their callers close the connections."""

import asyncio
from types import SimpleNamespace

import pytest
from starlette.exceptions import HTTPException

from ragbandit.router.api.dependencies import CallerGone, Waiter
from ragbandit.router.api.packed_bodies import Malformed

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

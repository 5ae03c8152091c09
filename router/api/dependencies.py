"""Dependencies of the endpoints: the router in use, shared parameters, and waiting without blocking the event loop."""

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from typing import Annotated, Any, Self, TypeVar

from fastapi import Header, Request

from ragbandit.router.api.threads import Reads
from ragbandit.router.errors import NotReady
from ragbandit.router.serving.micro_batching import SERVE_S
from ragbandit.router.serving.router import Router

__all__ = ["CallerGone", "CallerWatch", "IdempotencyKey", "awaited", "awaited_all", "reads_of", "router_of"]

Reply = TypeVar("Reply")

IdempotencyKey = Annotated[
    str | None,
    Header(
        description="Your own id of the request, instead of `decision_id` or `feedback_id` in the body: the same "
        "request sent again under the same id gives the same reply, another request under it is a conflict (409)."
    ),
]


def router_of(request: Request) -> Router:
    """The app's router."""
    router: Router = request.app.state.router
    return router


def reads_of(request: Request) -> Reads:
    """The app's threads for blocking reads."""
    reads: Reads = request.app.state.reads
    return reads


class CallerGone(Exception):
    """The caller has closed its connection: nobody reads a reply."""


class CallerWatch:
    """Waits for the work of a request. When the caller closes the connection, what has not begun is cancelled.

    Use it as a context manager: it watches the connection inside the `with` block.
    """

    def __init__(self, request: Request, futures: "Sequence[Future[Any]]") -> None:
        self._request = request
        self._futures = futures
        self._gone = False

    def __enter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    def __exit__(self, *_: object) -> None:
        self._task.cancel()

    async def wait(self, work: "Awaitable[Reply]", *, limit_s: float) -> Reply:
        """What `work` gives. Raises CallerGone, and TimeoutError after so many seconds."""
        try:
            reply = await asyncio.wait_for(work, limit_s)
        except asyncio.CancelledError:
            if self._gone:
                raise CallerGone from None
            raise
        if self._gone:
            done = sum(not future.cancelled() for future in self._futures)
            self._request.app.state.metrics.unseen.inc(done)
            raise CallerGone
        return reply

    async def _watch(self) -> None:
        # The body has been read: all that can still come is the end of the connection.
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        for future in self._futures:
            future.cancel()


async def awaited(request: Request, future: "Future[Reply]", *, what: str) -> Reply:
    """The Future's result. Once the caller has gone, work that has not begun is dropped.

    Raises CallerGone, and NotReady after SERVE_S seconds: the work may still be done, and the same id finds it.
    """
    with CallerWatch(request, [future]) as caller:
        try:
            return await caller.wait(asyncio.wrap_future(future), limit_s=SERVE_S)
        except TimeoutError as error:
            raise _late(what) from error


async def awaited_all(
    request: Request, futures: "Sequence[Future[Reply]]", *, what: str
) -> list[Reply | BaseException]:
    """The result or the exception of each Future, in order. Raises as `awaited`."""
    with CallerWatch(request, futures) as caller:
        every = asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
        try:
            return await caller.wait(every, limit_s=SERVE_S)
        except TimeoutError as error:
            raise _late(what) from error


def _late(what: str) -> NotReady:
    return NotReady(f"no reply within {SERVE_S:g} s", remedy=f"try again with the same {what}")

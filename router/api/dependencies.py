"""Dependencies of the endpoints: the router in use, shared parameters, and waiting without blocking the event loop."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any, Generic, TypeVar

from fastapi import APIRouter, Depends, Header, Request

from ragbandit.router.api.rules import OPERATOR_PATHS
from ragbandit.router.api.schemas.requests import ID
from ragbandit.router.api.schemas.responses import ERRORS
from ragbandit.router.serving.batching import SERVE_S
from ragbandit.router.serving.router import Router
from ragbandit.shared.errors import InvalidInput, NotReady, Overloaded
from ragbandit.shared.types import Caller

Reply = TypeVar("Reply")
Value = TypeVar("Value")

IdempotencyKey = Annotated[
    str | None,
    Header(
        description="Your own id of the request, instead of `decision_id` or `feedback_id` in the body: the same "
        "request sent again under the same id gives the same reply, another request under it is a conflict (409).",
        json_schema_extra=ID,
    ),
]


def caller_of(request: Request) -> Caller:
    """Who sends this request, as the edge knows by its key."""
    caller: Caller | None = request.scope.get("state", {}).get("caller")
    return caller or Caller()


def router_of(request: Request) -> Router:
    """The app's router."""
    router: Router = request.app.state.router
    return router


async def known_parameters(request: Request) -> None:
    """Raises InvalidInput for a query parameter that the endpoint does not have.

    Probes and scrapers add parameters of their own: what operators ask for takes any.
    """
    if not request.scope["query_string"] or request.scope["path"] in OPERATOR_PATHS:
        return
    route = request.scope["route"]
    if not route.include_in_schema:
        return
    known = sorted(param.alias for param in route.dependant.query_params)
    for name in request.query_params:
        if name not in known:
            has = f"use {', '.join(known)}" if known else f"send what {route.path} takes in the path or the body"
            message = f'"{name[:80]}" is not a query parameter of {route.path}'
            raise InvalidInput(message, field=name[:80], remedy=has)


def documented(tag: str) -> APIRouter:
    """A router for endpoints of this tag in /docs, which refuse unknown parameters and describe their errors."""
    return APIRouter(tags=[tag], dependencies=[Depends(known_parameters)], responses=ERRORS)


class Reads:
    """A few threads for blocking calls of requests. most: calls that may run or wait at a time; more are refused."""

    def __init__(self, *, threads: int, most: int, limit_s: float) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="ragbandit-reads")
        self._most, self._limit_s = most, limit_s
        self._open = 0

    async def run(self, work: Callable[[], Value]) -> Value:
        """What `work` returns. Raises Overloaded, and NotReady when it takes too long."""
        if self._open >= self._most:
            raise Overloaded(
                f"{self._open} reads are waiting already, so this one was refused", remedy="try again in a second"
            )
        self._open += 1
        try:
            future = self._executor.submit(work)
            return await _within(future, limit_s=self._limit_s)
        finally:
            self._open -= 1

    def close(self) -> None:
        """Take no more calls; what runs ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class SharedRead(Generic[Value]):
    """A blocking read on a thread of its own, for probes: whoever asks while one waits to begin gets that one's value.

    So at most one runs and one waits, however many probes come and however long the database takes.
    """

    def __init__(self, read: Callable[[], Value], *, name: str, limit_s: float) -> None:
        self._read, self._limit_s = read, limit_s
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"ragbandit-{name}")
        self._next: Future[Value] | None = None
        self._lock = threading.Lock()

    async def value(self) -> Value:
        """A value that was read after this call. Raises NotReady when it takes too long, and what `read` raises."""
        with self._lock:
            # One that runs may have read before the caller's last write.
            if self._next is None or self._next.running() or self._next.done():
                self._next = self._executor.submit(self._read)
            shared = self._next
        return await _within(shared, limit_s=self._limit_s, shared=True)

    def close(self) -> None:
        """Read no more; what runs ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)


async def _within(future: "Future[Value]", *, limit_s: float, shared: bool = False) -> Value:
    """The Future's value. shared: others wait for it too, so it goes on when this caller gives up."""
    wrapped = asyncio.wrap_future(future)
    try:
        return await asyncio.wait_for(asyncio.shield(wrapped) if shared else wrapped, limit_s)
    except TimeoutError as error:
        raise NotReady(f"the database did not reply within {limit_s:g} s", remedy="try again in a second") from error


def reads_of(request: Request) -> Reads:
    """The app's threads for blocking reads."""
    reads: Reads = request.app.state.reads
    return reads


def reports_of(request: Request) -> Reads:
    """The app's thread for reports, which read up to 200,000 rows."""
    reports: Reads = request.app.state.reports
    return reports


class CallerGone(Exception):
    """The caller has closed its connection: nobody reads a reply."""


async def all_done(request: Request, futures: "Sequence[Future[Any]]", *, limit_s: float) -> bool:
    """Wait for the work of a request; False if not all of it is done after so many seconds. The body has been read.

    Raises CallerGone when the caller closes the connection: what has not begun is cancelled, the rest is counted as
    unseen.
    """
    if all(future.done() for future in futures):
        return True
    try:
        # One wait in the own task of the request, cancelled from outside and ended by the timeout, as asyncio has it.
        # A task for the connection beside one for the work costs as much as deciding.
        async with asyncio.timeout(limit_s) as until:
            _end_when_done(until, futures)
            # All that can still come is the end of the connection.
            while (await request.receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return all(future.done() for future in futures)
    except asyncio.CancelledError:  # somebody else has cancelled the request
        for future in futures:
            future.cancel()
        raise
    begun = [asyncio.wrap_future(future) for future in futures if not future.cancel()]
    if begun:
        await asyncio.wait(begun, timeout=limit_s)
        request.app.state.metrics.unseen.inc(len(begun))
    raise CallerGone


def _end_when_done(until: asyncio.Timeout, futures: "Sequence[Future[Any]]") -> None:
    """Let the block of this timeout end as soon as all Futures are done."""
    left, loop = itertools.count(len(futures) - 1, -1), asyncio.get_running_loop()  # next() of it is atomic

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the block is over
            until.reschedule(0.0)

    def done(_future: "Future[Any]") -> None:
        if next(left) == 0:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended
                loop.call_soon_threadsafe(wake)

    for future in futures:
        future.add_done_callback(done)


async def awaited(request: Request, future: "Future[Reply]", *, what: str) -> Reply:
    """The Future's result. Once the caller has gone, work that has not begun is dropped.

    Raises CallerGone, and NotReady after SERVE_S seconds: the work may still be done, and the same id finds it.
    """
    if not await all_done(request, [future], limit_s=SERVE_S):
        future.cancel()
        raise _late(what)
    return future.result()


async def awaited_all(
    request: Request, futures: "Sequence[Future[Reply]]", *, what: str
) -> list[Reply | BaseException]:
    """The result or the exception of each Future, in order; NotReady for one that is not done after SERVE_S seconds.

    Raises CallerGone.
    """
    await all_done(request, futures, limit_s=SERVE_S)
    results: list[Reply | BaseException] = []
    for future in futures:
        if not future.done():
            future.cancel()
            results.append(_late(what))
        else:
            error = future.exception()
            results.append(future.result() if error is None else error)
    return results


def _late(what: str) -> NotReady:
    return NotReady(
        f"no reply within {SERVE_S:g} s, so whether it is stored is not known",
        remedy=f"send it again with the same {what}: nothing is stored twice",
    )

"""Dependencies of the endpoints: the router in use, shared parameters, and waiting without blocking the event loop."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any, Final, Generic, TypeVar

from fastapi import APIRouter, Depends, Header, Request

from ragbandit.router.api.schemas.requests import ID
from ragbandit.router.api.schemas.responses import ERRORS
from ragbandit.router.api.security.rules import OPERATOR_PATHS
from ragbandit.router.serving.batching import SERVE_S
from ragbandit.router.serving.router import Router
from ragbandit.router.telemetry.tracing import OFF, Tracing
from ragbandit.shared.errors import InvalidInput, NotReady, Overloaded
from ragbandit.shared.types import Caller

#: ASGI scope key of a request made on behalf of another one that was counted already; the value is its surface
PART: Final = "ragbandit.part"

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


def tracing_of(request: Request) -> Tracing:
    """The app's tracing."""
    tracing: Tracing = getattr(request.app.state, "tracing", OFF)
    return tracing


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


def documented(tag: str, *, any_parameter: bool = False) -> APIRouter:
    """A router for endpoints of this tag in /docs, which describe their errors.

    They refuse unknown query parameters, unless their clients add some of their own (any_parameter).
    """
    checks = [] if any_parameter else [Depends(known_parameters)]
    return APIRouter(tags=[tag], dependencies=checks, responses=ERRORS)


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
    """A blocking read on a thread of its own, for probes: requests that come before it begins share its value.

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
    """The app's thread for reports, which read up to 30,000 rows."""
    reports: Reads = request.app.state.reports
    return reports


class CallerGone(Exception):
    """The caller has closed its connection, so no reply is read."""


class Waiter:
    """Waits for news, and for the end of a request's connection. The body has been read.

    One wait in the own task of the request, ended by a timeout of asyncio: separate tasks for the connection and the
    work cost as much as deciding.
    """

    def __init__(self, request: Request) -> None:
        self._request, self._loop = request, asyncio.get_running_loop()
        self._noted = self._is_waking = False
        self._block: asyncio.Timeout | None = None

    def note(self) -> None:
        """There is news. Called from any thread."""
        if self._is_waking:
            return
        self._is_waking = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._noted, self._is_waking = True, False
        with contextlib.suppress(RuntimeError):  # the block is over
            if self._block is not None:
                self._block.reschedule(0.0)

    async def wait(self, *, until: float) -> bool:
        """True once there is news, False at that time of the loop. Raises CallerGone."""
        try:
            async with asyncio.timeout_at(0.0 if self._noted else until) as self._block:
                # All that can still come is the end of the connection.
                while (await self._request.receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            noted, self._noted = self._noted, False
            return noted
        raise CallerGone


async def all_done(request: Request, futures: "Sequence[Future[Any]]", *, limit_s: float) -> bool:
    """Wait for the work of a request; False if it is not done after `limit_s` seconds. The body has been read.

    Raises CallerGone when the caller closes the connection: what has not begun is cancelled, the rest is counted as
    unseen.
    """
    if all(future.done() for future in futures):
        return True
    waiter, left = Waiter(request), itertools.count(len(futures) - 1, -1)  # next() of it is atomic
    for future in futures:
        future.add_done_callback(lambda _: waiter.note() if next(left) == 0 else None)
    try:
        await waiter.wait(until=asyncio.get_running_loop().time() + limit_s)
        return all(future.done() for future in futures)
    except asyncio.CancelledError:  # the server has cancelled the request
        for future in futures:
            future.cancel()
        raise
    except CallerGone:
        begun = [asyncio.wrap_future(future) for future in futures if not future.cancel()]
        if begun:
            done, _ = await asyncio.wait(begun, timeout=limit_s)
            request.app.state.metrics.unseen.inc(sum(future.exception() is None for future in done))
        raise


async def awaited(request: Request, future: "Future[Reply]", *, what: str) -> Reply:
    """The Future's result. Once the caller has gone, work that has not begun is dropped.

    Raises CallerGone, and NotReady after SERVE_S seconds: the work may still be done, and the same id finds it.
    """
    (result,) = await awaited_all(request, [future], what=what)
    if isinstance(result, BaseException):
        raise result
    return result


async def awaited_all(
    request: Request, futures: "Sequence[Future[Reply]]", *, what: str
) -> list[Reply | BaseException]:
    """The result or the exception of each Future, in order; NotReady for one that is not done after SERVE_S seconds.

    Raises CallerGone.
    """
    await all_done(request, futures, limit_s=SERVE_S)
    results: list[Reply | BaseException] = []
    for future in futures:
        if future.done():
            results.append(future.exception() or future.result())
            continue
        future.cancel()
        message = f"no reply within {SERVE_S:g} s, so whether it is stored is not known"
        results.append(NotReady(message, remedy=f"send it again with the same {what}: nothing is stored twice"))
    return results


def check_count(items: Sequence[object], *, most: int) -> None:
    """Raises InvalidInput for a batch that is empty or too large."""
    if not 0 < len(items) <= most:
        message = f'"items" has {len(items)} entries'
        raise InvalidInput(message, field="items", remedy=f"send between 1 and {most}")

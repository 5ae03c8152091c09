"""Code that all endpoints use: the app's objects, parameters, and waits that do not block the event loop."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any, Generic, TypeVar, cast

from fastapi import Header, Request
from starlette.types import Scope

from ragbandit.router.api.request_state import ClientConnection, request_state
from ragbandit.router.api.schemas.requests import ID
from ragbandit.router.serving.batching import SERVE_S
from ragbandit.router.serving.router import Router
from ragbandit.router.telemetry.tracing import OFF, Tracing
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

BatchKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Your own id of the batch. Items without an id of their own get the ids KEY-0, KEY-1 and so on, by "
        "their places: the same batch sent again gets the same replies, another item at a place is a conflict.",
        json_schema_extra=ID,
    ),
]


def caller_of(request: Request) -> Caller:
    """The caller that the edge found by the API key; an anonymous caller if the edge has not checked keys."""
    return request_state(request.scope).caller


def router_of(request: Request) -> Router:
    router: Router = request.scope["app"].state.router
    return router


def tracing_of(request: Request) -> Tracing:
    tracing: Tracing = getattr(request.scope["app"].state, "tracing", OFF)
    return tracing


class ReadPool:
    """Threads for blocking reads. most: number of reads that may run or wait at once."""

    def __init__(self, *, threads: int, most: int, limit_s: float) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="ragbandit-reads")
        self._most, self._limit_s = most, limit_s
        self._open = 0

    async def run(self, work: Callable[[], Value]) -> Value:
        """Call `work` on a thread. Raises Overloaded if too many reads wait, and NotReady after `limit_s` seconds."""
        if self._open >= self._most:
            message = f"{self._open} reads are waiting already, so this one was refused"
            raise Overloaded(message, remedy="try again in a second")
        self._open += 1
        try:
            return await _result_within(self._executor.submit(work), limit_s=self._limit_s)
        finally:
            self._open -= 1

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class SharedRead(Generic[Value]):
    """A blocking read on its own thread. All callers who come before a read begins share its value, so at most one read
    runs and one waits, however slow the database is.
    """

    def __init__(self, read: Callable[[], Value], *, name: str, limit_s: float) -> None:
        self._read, self._limit_s = read, limit_s
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"ragbandit-{name}")
        self._next: Future[Value] | None = None
        self._lock = threading.Lock()

    async def value(self) -> Value:
        """A value whose read begins after this call. Raises NotReady after `limit_s` seconds, or the read's error."""
        with self._lock:
            # A read that runs already may miss what the caller has written just before this call.
            if self._next is None or self._next.running() or self._next.done():
                self._next = self._executor.submit(self._read)
            shared = self._next
        return await _result_within(shared, limit_s=self._limit_s, shared=True)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


async def _result_within(future: "Future[Value]", *, limit_s: float, shared: bool = False) -> Value:
    """Wait for a Future. Raises NotReady, and then cancels the Future unless other requests wait for it (`shared`)."""
    wrapped = asyncio.wrap_future(future)
    try:
        return await asyncio.wait_for(asyncio.shield(wrapped) if shared else wrapped, limit_s)
    except TimeoutError as error:
        raise NotReady(f"the database did not reply within {limit_s:g} s", remedy="try again in a second") from error


def reads_of(request: Request) -> ReadPool:
    return cast(ReadPool, request.app.state.reads)


def reports_of(request: Request) -> ReadPool:
    return cast(ReadPool, request.app.state.reports)


class CallerGone(Exception):
    """The caller has closed its connection, so it would not receive a reply."""


def stop_reading(scope: Scope) -> None:
    """Stop reading the connection of a request that has ended."""
    state = request_state(scope)
    if state.connection is not None:
        state.connection.reading.cancel()
        state.connection = None


class Waiter:
    """Lets a request wait for a notification, until its caller closes the connection. Read the request's body first.

    One task reads the connection for all waits of a request, and a wait is one future of the event loop: tasks and
    timeouts for each wait would cost as much time as a decision.
    """

    def __init__(self, request: Request) -> None:
        self._request, self._loop, self._thread = request, asyncio.get_running_loop(), threading.get_ident()
        self._is_notified = self._is_waking = False
        self._wait: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """Wake the waiting request, or its next wait; may be called from any thread."""
        if threading.get_ident() == self._thread:
            self._wake()
        elif not self._is_waking:  # each call writes to a pipe, so one call for several notifications is enough
            self._is_waking = True
            try:  # noqa: SIM105 - `suppress` would take longer than the call
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the event loop is closed already
                pass

    def _wake(self) -> None:
        self._is_notified, self._is_waking = True, False
        self._end_wait()

    def _end_wait(self) -> None:
        if self._wait is not None and not self._wait.done():
            self._wait.set_result(None)

    async def wait(self, *, until: float) -> bool:
        """Wait for a notification until `until`, a time on the event loop's clock. Returns whether one came. Raises
        CallerGone, and the error of a body that was not read before.
        """
        state = request_state(self._request.scope)
        connection = state.connection = state.connection or ClientConnection(self._request)
        if not (self._is_notified or connection.is_closed):
            self._wait, connection.on_close = self._loop.create_future(), self._end_wait
            timer = self._loop.call_at(until, self._end_wait)
            try:
                await self._wait
            finally:
                timer.cancel()
                self._wait = connection.on_close = None
        if connection.is_closed:
            raise connection.error or CallerGone
        noted, self._is_notified = self._is_notified, False
        return noted


async def wait_for_all(request: Request, futures: "Sequence[Future[Any]]", *, limit_s: float) -> bool:
    """Wait for all Futures. Returns False if a Future is not done after `limit_s` seconds. Read the request's body
    first.

    Raises CallerGone if the caller closes the connection. Futures that have not begun are then cancelled, and the
    metric `ragbandit_replies_unseen` counts the others that succeed.
    """
    waiter = Waiter(request)
    countdown = itertools.count(len(futures) - 1, -1)  # next(countdown) is atomic

    def count(_: "Future[Any]") -> None:
        if next(countdown) == 0:
            waiter.notify()

    for future in futures:
        future.add_done_callback(count)
    try:
        noted = await waiter.wait(until=asyncio.get_running_loop().time() + limit_s)
        return noted or all(map(Future.done, futures))
    except asyncio.CancelledError:  # the server has cancelled the request
        for future in futures:
            future.cancel()
        raise
    except CallerGone:
        running = [asyncio.wrap_future(future) for future in futures if not future.cancel()]
        if running:
            done, _ = await asyncio.wait(running, timeout=limit_s)
            request.app.state.metrics.unseen.inc(sum(future.exception() is None for future in done))
        raise


async def await_future(request: Request, future: "Future[Reply]", *, name: str) -> Reply:
    """The Future's result. name: name of the request's id. Raises CallerGone, NotReady, and its exception."""
    if not await wait_for_all(request, [future], limit_s=SERVE_S):
        future.cancel()
        raise _timeout_error(name)
    return future.result()


async def await_all(request: Request, futures: "Sequence[Future[Reply]]", *, name: str) -> list[Reply | BaseException]:
    """The result or exception of each Future, in order; NotReady after SERVE_S seconds. Raises CallerGone."""
    if not all(map(Future.done, futures)):
        await wait_for_all(request, futures, limit_s=SERVE_S)
    results: list[Reply | BaseException] = []
    for future in futures:
        if future.done():
            results.append(future.exception() or future.result())
            continue
        future.cancel()
        results.append(_timeout_error(name))
    return results


def _timeout_error(name: str) -> NotReady:
    message = f"no reply within {SERVE_S:g} s, so it is not known whether the request is stored"
    return NotReady(message, remedy=f"send it again with the same {name}: nothing is stored twice")


def check_count(items: Sequence[object], *, most: int) -> None:
    if not 0 < len(items) <= most:
        message = f'"items" has {len(items)} entries'
        raise InvalidInput(message, field="items", remedy=f"send 1 to {most} items")

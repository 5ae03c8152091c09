"""Dependencies of the endpoints: the router in use, shared parameters, and waiting without blocking the event loop."""

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Annotated, Any, TypeVar

from fastapi import Header, Request

from ragbandit.router.api.http_server.connections import OPERATOR_PATHS
from ragbandit.router.api.http_server.threads import Reads
from ragbandit.router.api.schemas.requests import ID
from ragbandit.router.serving.batching.micro_batching import SERVE_S
from ragbandit.router.serving.router import Router
from ragbandit.shared.errors import InvalidInput, NotReady
from ragbandit.shared.types import Caller

Reply = TypeVar("Reply")

IdempotencyKey = Annotated[
    str | None,
    Header(
        description="Your own id of the request, instead of `decision_id` or `feedback_id` in the body: the same "
        "request sent again under the same id gives the same reply, another request under it is a conflict (409).",
        json_schema_extra=ID,
    ),
]


def caller_of(request: Request) -> Caller:
    """Who sends this request, as the edge has found out."""
    found: Caller | None = getattr(request.state, "caller", None)
    return found or Caller()


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


def reads_of(request: Request) -> Reads:
    """The app's threads for blocking reads."""
    reads: Reads = request.app.state.reads
    return reads


class CallerGone(Exception):
    """The caller has closed its connection: nobody reads a reply."""


async def all_done(request: Request, futures: "Sequence[Future[Any]]", *, limit_s: float) -> bool:
    """Wait for the work of a request; False if not all of it is done after so many seconds. The body has been read.

    Raises CallerGone when the caller closes the connection: what has not begun is cancelled, the rest is counted as
    unseen.
    """
    if all(future.done() for future in futures):
        return True
    gone = False
    with _Until(futures, limit_s=limit_s):
        # All that can still come is the end of the connection.
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone = True
    if not gone:
        return all(future.done() for future in futures)
    begun = [asyncio.wrap_future(future) for future in futures if not future.cancel()]
    if begun:
        await asyncio.wait(begun, timeout=limit_s)
        request.app.state.metrics.unseen.inc(len(begun))
    raise CallerGone


class _Until:
    """Context manager: what its block waits for is given up when all Futures are done, or after limit_s seconds.

    One wait in the own task of the request, as `asyncio.timeout` has it: it is cancelled from outside, and the
    cancellation ends here. A task for the connection beside one for the work costs as much as deciding.
    """

    def __init__(self, futures: "Sequence[Future[Any]]", *, limit_s: float) -> None:
        self._futures = futures
        self._limit_s = limit_s
        self._left = itertools.count(len(futures) - 1, -1)  # next() of it is atomic
        self._open = True
        self._woken = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._loop = task, asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._limit_s, self._wake)
        for future in self._futures:
            future.add_done_callback(self._done)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._open = False
        self._timer.cancel()
        if kind is None or not issubclass(kind, asyncio.CancelledError):
            return False
        if self._woken and not self._task.uncancel():
            return True
        for future in self._futures:  # somebody else has cancelled the request
            future.cancel()
        return False

    def _done(self, _future: "Future[Any]") -> None:
        if next(self._left) == 0 and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._open and not self._woken:
            self._woken = True
            self._task.cancel()


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

"""Dependencies of the endpoints: the router in use, shared parameters, and waiting without blocking the event loop."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, cast

from fastapi import APIRouter, Depends, Header, Request
from starlette.datastructures import State
from starlette.routing import compile_path

from ragbandit.router.api.schemas.requests import ID
from ragbandit.router.api.schemas.responses import ERRORS
from ragbandit.router.serving.batching import SERVE_S
from ragbandit.router.serving.router import Queue, Router
from ragbandit.router.telemetry.tracing import OFF, Tracing
from ragbandit.shared.errors import InvalidInput, NotReady, Overloaded
from ragbandit.shared.types import Caller, Role

#: no key is needed
EVERYBODY: Final = "everybody"
#: what probes and scrapers ask all the time
OPERATOR_PATHS: Final = frozenset({"/health", "/ready", "/metrics"})
#: who only operates the service, and neither asks nor judges
_OPERATORS: Final = frozenset({"reader", "operator", "admin"})
#: where tools are called
MCP: Final = "/mcp"
#: key of an ASGI scope: this request is a part of another one, which was counted; its value is the surface
PART: Final = "ragbandit.part"
#: on both ports
_DOCS: Final = ("/docs", "/openapi.json")


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for an endpoint before it runs."""

    #: names of the roles that may call it (a test reads them), or EVERYBODY; admin may call everything
    text: str
    #: shows data of all tenants, so keys of a single tenant are refused whatever their role
    all_tenants: bool = False
    #: in which its requests wait
    queue: Queue | None = None
    #: the setting of `server` that says how large a body may be
    largest: Literal["max_body_bytes", "max_batch_bytes", "max_chat_bytes"] = "max_body_bytes"

    @property
    def roles(self) -> frozenset[Role] | None:
        """The roles that may call it; empty: nobody, it is in no line; None: everybody, also without a key."""
        return _ROLES[self.text]


_ALL: Final = "reader app rater worker operator"
_OPERATE: Final = Rule("reader operator", all_tenants=True)
_COMMAND: Final = Rule("operator", all_tenants=True)
_READ: Final = Rule("reader operator")
_LABEL: Final = Rule("rater operator")

#: method and path, as the app has them -> the rule
RULES: Final[Mapping[str, Rule]] = {
    "GET /": Rule(EVERYBODY),
    "GET /health": Rule(EVERYBODY),
    "GET /ready": Rule(EVERYBODY),
    "POST /v1/route": Rule("app", queue="questions"),
    "POST /v1/route/batch": Rule("app", queue="questions", largest="max_batch_bytes"),
    "POST /v1/answer": Rule("app", queue="questions"),
    "POST /v1/chat/completions": Rule("app", queue="questions", largest="max_chat_bytes"),
    "POST /v1/responses": Rule("app", queue="questions", largest="max_chat_bytes"),
    "GET /v1/responses/{response_id}": Rule("app"),
    "POST /v1/responses/{response_id}/cancel": Rule("app"),
    "POST /v1/completions": Rule("app"),
    f"POST {MCP}": Rule(_ALL),
    "GET /v1/models": Rule("app"),
    "GET /v1/models/{model:path}": Rule("app"),
    "POST /v1/outcomes": Rule("app worker", queue="outcomes"),
    "GET /v1/decisions/{decision_id}": Rule(_ALL),
    "GET /v1/decisions/{decision_id}/explanation": Rule(_ALL),
    "POST /v1/decisions/{decision_id}/cancel": Rule("app operator"),
    "GET /v1/label-queue": _LABEL,
    "POST /v1/feedback": Rule("app rater", queue="feedback"),
    "POST /v1/feedback/batch": Rule("app rater", queue="feedback", largest="max_batch_bytes"),
    "GET /v1/policies": _OPERATE,
    "GET /v1/policies/{name}": _OPERATE,
    "POST /v1/policies/kill": _COMMAND,
    "POST /v1/policies/unkill": _COMMAND,
    "POST /v1/policies/{name}/{verb}": _COMMAND,
    "POST /v1/arms/{arm}/changed": _COMMAND,
    "GET /v1/status": _OPERATE,
    "GET /v1/overview": _OPERATE,
    "GET /v1/report": _OPERATE,
    "GET /metrics": _OPERATE,
    "GET /ui": _OPERATE,
    "GET /ui/arms": _OPERATE,
    "GET /ui/decisions": _READ,
    "GET /ui/decisions/{decision_id}": _READ,
    "POST /ui/decisions/{decision_id}/cancel": Rule("operator"),
    "POST /ui/decisions/{decision_id}/rating": _LABEL,
    "GET /ui/policies": _OPERATE,
    "GET /ui/policies/{name}": _OPERATE,
    "POST /ui/policies/{name}/{verb}": _COMMAND,
    "POST /ui/switch": _COMMAND,
    "GET /ui/feedback": _OPERATE,
    "GET /ui/labels": Rule("reader rater operator"),
    "POST /ui/labels": _LABEL,
    "GET /ui/queues": _OPERATE,
    "GET /ui/login": Rule(EVERYBODY),
    "POST /ui/login": Rule(EVERYBODY),
    "POST /ui/logout": Rule("reader rater operator"),
    "GET /ui/static/{path:path}": Rule(EVERYBODY),
    "HEAD /ui/static/{path:path}": Rule(EVERYBODY),
    "GET /docs": Rule(_ALL),
    "GET /openapi.json": Rule(_ALL),
    "HEAD /openapi.json": Rule(_ALL),
    "GET /docs/assets/{path:path}": Rule(_ALL),
    "HEAD /docs/assets/{path:path}": Rule(_ALL),
}
#: rule of requests that match no entry of RULES: nobody may call them
NOBODY: Final = Rule("")
_ROLES: Final[Mapping[str, frozenset[Role] | None]] = {
    **{rule.text: frozenset({*cast(list[Role], rule.text.split()), "admin"}) for rule in RULES.values()},
    NOBODY.text: frozenset(),
    EVERYBODY: None,
}
_PATTERNS: Final = [
    (method, compile_path(path)[0], RULES[f"{method} {path}"])
    for method, path in (endpoint.split(" ", 1) for endpoint in RULES if "{" in endpoint)
]


def rule_of(method: str, path: str) -> Rule:
    """The rule of a request; NOBODY where no line has it."""
    rule = RULES.get(f"{method} {path}")
    if rule is not None:
        return rule
    return next((rule for of, pattern, rule in _PATTERNS if of == method and pattern.match(path)), NOBODY)


def is_page(path: str) -> bool:
    """Whether a path is one of the dashboard's."""
    return path == "/ui" or path.startswith("/ui/")


def is_for_operators(path: str) -> bool:
    """Whether this path is served on server.admin_port: probes, metrics, pages, and what only operators may call."""
    if path in OPERATOR_PATHS or is_page(path):
        return True
    known = [roles for method in ("GET", "POST", "PUT", "DELETE") if (roles := rule_of(method, path).roles)]
    return bool(known) and all(roles <= _OPERATORS for roles in known)


def has_path(path: str, *, state: State) -> bool:
    """Whether the app has this path: on the port that it serves, and pages only where they are wanted."""
    if path == "/":
        return True
    if state.port != "all" and not path.startswith(_DOCS) and (state.port == "operators") != is_for_operators(path):
        return False
    return not is_page(path) or state.router.settings.server.dashboard


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

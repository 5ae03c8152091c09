"""Operations endpoints: health, readiness, status, metrics."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import Query, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from ragbandit.client.replies.status import HealthReply, ReadyReply, StatusReply
from ragbandit.router.api.dependencies import SharedRead, Value, documented, reads_of, reports_of, router_of
from ragbandit.router.api.findings import is_problem, of_parts
from ragbandit.router.api.metrics import Metrics
from ragbandit.router.api.schemas.replies import plain, status_json
from ragbandit.router.api.schemas.responses import JsonReply, described
from ragbandit.router.api.security.budgets import budget_states
from ragbandit.router.reporting.reading import Report, ReportScope
from ragbandit.router.reporting.report import report
from ragbandit.router.serving.health.readiness import RouterState
from ragbandit.router.serving.overview import HOUR_S, Overview, overview
from ragbandit.router.serving.router import Router
from ragbandit.shared.errors import NotReady, StoreError

#: most budgets in one scrape
MOST_BUDGETS: Final = 100
#: longest wait for the router's state, seconds
PROBE_S = 4.0

endpoints = documented("Operations")


def state_of(router: Router) -> SharedRead[RouterState]:
    """The router's state, read on a thread of its own: a probe never waits behind requests."""
    return SharedRead(router.state, name="state", limit_s=PROBE_S)


def budgets_of(router: Router) -> SharedRead[Mapping[tuple[str, str, str], float]]:
    """Share of each dollar budget that is spent, by kind and name of its spender and by period."""

    def read() -> Mapping[tuple[str, str, str], float]:
        states = budget_states(router.database, settings=router.settings, now=time.time())
        spent = {(one.spender.kind, one.spender.name, one.period): one.spent_of(s) / one.dollars for one, s in states}
        return dict(sorted(spent.items(), key=lambda each: -each[1])[:MOST_BUDGETS])

    return SharedRead(read, name="budgets", limit_s=PROBE_S)


async def current_state(request: Request) -> RouterState:
    """The router's state, read after this call. Raises NotReady, StoreError."""
    state: SharedRead[RouterState] = request.app.state.read_state
    return await state.value()


@endpoints.get(
    "/health",
    summary="Check that the process is alive",
    responses={200: described("The process is alive.", HealthReply)},
)
async def health() -> Response:
    """Liveness probe: 200 as long as the process serves requests. It asks no other part."""
    reply: HealthReply = {"status": "ok"}
    return JsonReply(reply)


@endpoints.get(
    "/ready",
    summary="Check that requests can be served",
    responses={200: described("Ready.", ReadyReply), 503: described("Not ready.", ReadyReply)},
)
async def ready(request: Request) -> Response:
    """Readiness probe: 503 if the router or the database cannot serve requests; `parts` names each fault.

    The database is tried by a small committed write, at most one a second; a probe waits for it for 2 s at most.
    Redis that is down is named but does not make the service unready: decisions and feedback are still stored,
    answers and learning are late. `redis` also names a listener that hears nothing, notifications that fail, and
    foreign data that was found in Redis within the last minute, and ignored. While the policy is being learned
    again from its ledger a part `policy` reports it; the service is ready, another policy decides meanwhile. While a
    learner cannot use its store (a full disk) a part `learner` reports it: feedback is stored and learned later.
    """
    readiness = router_of(request).readiness
    futures, seconds = readiness.ask()
    # Without the threads that other requests use: with a dead database all of them may be waiting for it.
    if futures:
        await asyncio.wait([asyncio.wrap_future(future) for future in futures], timeout=seconds)
    parts = readiness.states()
    broken = is_problem(of_parts(parts))
    reply: ReadyReply = {"status": "not ready" if broken else "ok", "parts": parts}
    return JsonReply(reply, status_code=503 if broken else 200)


@endpoints.get(
    "/v1/status",
    summary="Read the state of the service",
    responses={200: described("State of the ledger and of this router.", StatusReply)},
)
async def status(request: Request) -> Response:
    """Counts of decisions, learning lag, current snapshot and health of each arm."""
    return JsonReply(status_json(await current_state(request)))


@endpoints.get(
    "/metrics",
    summary="Read the metrics for Prometheus",
    response_class=Response,
    responses={200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """Prometheus text format. What this process counts is included even if the database cannot be read."""
    reads = _read_or_none(current_state(request)), _read_or_none(request.app.state.read_budgets.value())
    state, budgets = await asyncio.gather(*reads)
    own: Metrics = request.app.state.metrics
    return Response(own.text(state, budgets=budgets), media_type=CONTENT_TYPE_LATEST)


async def _read_or_none(read: Awaitable[Value]) -> Value | None:
    """The value; None if it cannot be read or is late. The metrics of the other read do not depend on it."""
    try:
        return await read
    except (NotReady, StoreError):
        return None


#: default length of the time, seconds
_DAY_S, _WEEK_S = 86_400.0, 7 * 86_400.0

_TIME: Final[dict[str, Any]] = {"ge": 0, "le": 1e11, "allow_inf_nan": False}
SinceQuery = Annotated[float | None, Query(**_TIME, description="Seconds since 1970; left out: a day before.")]
UntilQuery = Annotated[float | None, Query(**_TIME, description="Seconds since 1970; left out: now.")]
StepQuery = Annotated[
    int, Query(ge=HOUR_S, le=400 * 86_400, multiple_of=HOUR_S, description="Seconds of a point, a multiple of 3600.")
]


@endpoints.get(
    "/v1/overview",
    summary="Read what the policy earned",
    responses={200: described("The time that was asked for.", Overview)},
)
async def read_overview(
    request: Request, since: SinceQuery = None, until: UntilQuery = None, step: StepQuery = HOUR_S
) -> Response:
    """Reward, quality, cost and traffic over time and by arm.

    The time is widened to whole hours. Read from hourly totals, which are half a minute behind: it costs the same
    in a store of any size.
    """
    router = router_of(request)
    end = time.time() if until is None else until
    begin = max(0.0, end - _DAY_S) if since is None else since
    label = router.ledger.label

    def read() -> object:
        """Made plain on this thread: a thousand points would hold up the event loop."""
        return plain(overview(router.database, policy=label, since=begin, until=end, step=step))

    return JsonReply(await reads_of(request).run(read))


@endpoints.get(
    "/v1/report",
    summary="Read what the router earned",
    responses={200: described("The report of the time that was asked for.", Report)},
)
async def read_report(
    request: Request,
    since: Annotated[float | None, Query(**_TIME, description="Seconds since 1970; left out: a week before.")] = None,
    until: UntilQuery = None,
    tenant: Annotated[str | None, Query(max_length=64, description="This tenant only.")] = None,
    against: Annotated[
        str | None,
        Query(
            max_length=64,
            description="The arm to compare with; left out: the holdback's, else the incumbent, else the most "
            "expensive one that was tried enough.",
        ),
    ] = None,
) -> Response:
    """Dollars and quality against always one arm, with intervals and a verdict; by arm, tenant, price and week.

    Estimated from the decisions themselves. A time of more than 30,000 questions is read as a uniform sample (`sample`)
    and has exact totals (`asked`), so a report takes at most seconds in a store of any size.
    """
    router, now = router_of(request), time.time()
    end = now if until is None else until
    begin = max(0.0, end - _WEEK_S) if since is None else since
    scope = ReportScope(label=router.ledger.label, since=begin, until=end, tenant=tenant, reward=router.settings.reward)
    policy = router.settings.policy
    result = await reports_of(request).run(
        lambda: report(router.database, scope, policy=policy, against=against, now=now)
    )
    learning = (await reads_of(request).run(router.status)).learning
    return JsonReply(replace(result, learning=None if learning is None else learning.line))

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

from fastapi import Query, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from ragbandit.client.replies.status import HealthReply, ReadyReply, StatusReply
from ragbandit.router.api.dependencies import SharedRead, Value, reads_of, reports_of, router_of
from ragbandit.router.api.metrics import Metrics
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.responses import JsonReply, reply_description
from ragbandit.router.api.security.rules import PROBE, READ_ALL
from ragbandit.router.operation.budgets import budget_states
from ragbandit.router.operation.findings import findings_of_parts, is_problem
from ragbandit.router.replies.status import status_json
from ragbandit.router.replies.values import json_ready
from ragbandit.router.reporting.last_verdicts import report_with_last_verdict
from ragbandit.router.reporting.reading import Report, ReportScope
from ragbandit.router.serving.explanations.policy_map import with_kinds
from ragbandit.router.serving.health.readiness import RouterState
from ragbandit.router.serving.overview import HOUR_S, Overview, overview
from ragbandit.router.serving.router import Router
from ragbandit.shared.errors import NotReady, StoreError

MOST_BUDGETS: Final = 100
#: time limit for a read of the router's state or of the budgets, seconds
PROBE_S = 4.0

endpoints = Endpoints("Operations")


def shared_budget_shares(router: Router) -> SharedRead[Mapping[tuple[str, str, str], float]]:
    """A shared read of dollar budgets: (kind of spender, name of spender, period) -> share that is spent."""

    def read() -> Mapping[tuple[str, str, str], float]:
        states = budget_states(router.database, tenants=router.settings.tenants, now=time.time())
        shares = {
            (budget.spender.kind, budget.spender.name, budget.period): budget.spent_of(sums) / budget.dollars
            for budget, sums in states
        }
        return dict(sorted(shares.items(), key=lambda item: -item[1])[:MOST_BUDGETS])

    return SharedRead(read, name="budgets", limit_s=PROBE_S)


async def current_state(request: Request) -> RouterState:
    """The router's state, read after this call began. Raises NotReady, StoreError."""
    state: SharedRead[RouterState] = request.app.state.read_state
    return await state.value()


@endpoints.get(
    "/health",
    rule=PROBE,
    summary="Check that the process is alive",
    responses={200: reply_description("The process is alive.", HealthReply)},
)
async def health() -> Response:
    """Liveness probe: 200 while the process serves requests. It checks no other part of the service."""
    reply: HealthReply = {"status": "ok"}
    return JsonReply(reply)


@endpoints.get(
    "/ready",
    rule=PROBE,
    summary="Check that requests can be served",
    responses={200: reply_description("Ready.", ReadyReply), 503: reply_description("Not ready.", ReadyReply)},
)
async def ready(request: Request) -> Response:
    """Readiness probe: 503 if the router or the database cannot serve requests; `parts` names each fault.

    The database is checked by a small committed write, at most once a second; a probe waits at most 2 s for it.

    Two parts are reported but do not make the service unready. `redis`: Redis is down, the listener receives nothing,
    or notifications fail; answers and learning are late. `policy`: the policy is being learned again from its ledger,
    and another policy decides meanwhile.
    """
    readiness = router_of(request).process.readiness
    futures, seconds = readiness.start_checks()
    # The checks have their own threads, since all threads for reads may be waiting for the database.
    if futures:
        await asyncio.wait([asyncio.wrap_future(future) for future in futures], timeout=seconds)
    parts = readiness.states()
    broken = is_problem(findings_of_parts(parts))
    reply: ReadyReply = {"status": "not ready" if broken else "ok", "parts": parts}
    return JsonReply(reply, status_code=503 if broken else 200)


@endpoints.get(
    "/v1/status",
    rule=READ_ALL,
    summary="Read the state of the service",
    responses={200: reply_description("State of the ledger and of this router.", StatusReply)},
)
async def status(request: Request) -> Response:
    """Read counts of decisions, the learning lag, the current snapshot and the health of each arm."""
    return JsonReply(status_json(await current_state(request)))


@endpoints.get(
    "/metrics",
    rule=replace(READ_ALL, is_probe=True),
    summary="Read the metrics for Prometheus",
    response_class=Response,
    responses={200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """Read the metrics in Prometheus text format. If the database fails, they are the metrics of this process only."""
    reads = read_or_none(current_state(request)), read_or_none(request.app.state.read_budgets.value())
    state, budgets = await asyncio.gather(*reads)
    own: Metrics = request.app.state.metrics
    return Response(own.exposition(state, budgets=budgets), media_type=CONTENT_TYPE_LATEST)


async def read_or_none(read: Awaitable[Value]) -> Value | None:
    """The result of a read; None if the database does not reply, or not in time."""
    try:
        return await read
    except (NotReady, StoreError):
        return None


_TIME: Final[dict[str, Any]] = {"ge": 0, "le": 1e11, "allow_inf_nan": False}
SinceQuery = Annotated[float | None, Query(**_TIME, description="Start, seconds since 1970; default: end - 1 day.")]
UntilQuery = Annotated[float | None, Query(**_TIME, description="End, seconds since 1970; default: now.")]
StepQuery = Annotated[
    int, Query(ge=HOUR_S, le=400 * 86_400, multiple_of=HOUR_S, description="Seconds of a step; a multiple of 3600.")
]


@endpoints.get(
    "/v1/overview",
    rule=READ_ALL,
    summary="Read what the policy earned",
    responses={200: reply_description("The totals of that time.", Overview)},
)
async def read_overview(
    request: Request, since: SinceQuery = None, until: UntilQuery = None, step: StepQuery = HOUR_S
) -> Response:
    """Read reward, quality, cost and traffic, over time and by arm.

    The period is extended to whole hours. The reply is computed from hourly totals and from rows not counted yet;
    10,000 or more such rows are left out. Its speed does not depend on the size of the store.
    """
    router = router_of(request)
    end = time.time() if until is None else until
    begin = max(0.0, end - 86_400.0) if since is None else since
    label, weight = router.ledger.label, router.settings.reward.weight

    read = partial(overview, router.database, policy=label, since=begin, until=end, weight=weight, step=step)
    # The thread also converts the overview to JSON values: a thousand points would block the event loop.
    return JsonReply(await reads_of(request).run(lambda: json_ready(read())))


@endpoints.get(
    "/v1/report",
    rule=READ_ALL,
    summary="Read what the router earned",
    responses={200: reply_description("The report of that time.", Report)},
)
async def read_report(
    request: Request,
    since: Annotated[
        float | None, Query(**_TIME, description="Start, seconds since 1970; default: end - 1 week.")
    ] = None,
    until: UntilQuery = None,
    tenant: Annotated[str | None, Query(max_length=64, description="This tenant only.")] = None,
    against: Annotated[
        str | None,
        Query(
            max_length=64,
            description="The arm to compare with; default: the arm of the holdback, else the incumbent, else the arm "
            "that is surely the best so far.",
        ),
    ] = None,
) -> Response:
    """Compare reward, quality and cost of routing with always using one arm: by arm, tenant, price and week.

    The figures have intervals and a verdict; they are estimated from the logged decisions. If the period has more than
    30,000 questions, a uniform sample of them is read, so a report takes seconds at most; `sample` is its size. Sums
    are scaled to all questions; `/v1/overview` has exact totals.
    """
    router, now = router_of(request), time.time()
    end = now if until is None else until
    begin = max(0.0, end - 7 * 86_400.0) if since is None else since
    label, settings = router.ledger.label, router.settings
    scope = ReportScope.of(settings, label=label, since=begin, until=end, tenant=tenant)
    read = partial(report_with_last_verdict, router.database, scope, policy=settings.policy, against=against, now=now)
    result = await reports_of(request).run(read)
    learning = (await reads_of(request).run(router.status)).learning
    add = partial(with_kinds, database=router.database, label=label, schema=settings.context)
    result = await reports_of(request).run(partial(add, result, weight=settings.reward.weight))
    return JsonReply(replace(result, learning=None if learning is None else learning.line))

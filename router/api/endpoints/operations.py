"""Operations endpoints: health, readiness, status, metrics."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from fastapi import Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from ragbandit.client.replies.status import HealthReply, ReadyReply, StatusReply
from ragbandit.router.api.dependencies import SharedRead, documented, router_of
from ragbandit.router.api.limiting.budgets import budget_states
from ragbandit.router.api.metrics.service import Metrics
from ragbandit.router.api.schemas.replies import status_json
from ragbandit.router.api.schemas.responses import JsonReply, described
from ragbandit.router.serving.health.readiness import LEARNER, REDIS
from ragbandit.router.serving.health.state import RouterState
from ragbandit.router.serving.router import Router
from ragbandit.shared.errors import NotReady, StoreError

#: parts without which requests are served: answers and learning are late
DELAYED: Final = frozenset({REDIS, "policy", LEARNER})
#: budgets that a scrape tells of
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


def _state(request: Request) -> SharedRead[RouterState]:
    state: SharedRead[RouterState] = request.app.state.read_state
    return state


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
    """Readiness probe: 503 if the router or the database cannot serve requests; `parts` says what is wrong.

    The database is tried by a small committed write, at most one a second; a probe waits for it for 2 s at most.
    Redis that is down is named but does not make the service unready: decisions and feedback are still stored,
    answers and learning are late. `redis` also names a listener that hears nothing, notifications that fail, and
    data of somebody else that was met in Redis within a minute, and ignored. While the policy is being learned
    again from its ledger a part `policy` says so; the service is ready, another policy decides meanwhile. While a
    learner cannot use its store (a full disk) a part `learner` says so: feedback is stored and learned later.
    """
    readiness = router_of(request).readiness
    futures, seconds = readiness.ask()
    # Without the threads that other requests use: with a dead database all of them may be waiting for it.
    if futures:
        await asyncio.wait([asyncio.wrap_future(future) for future in futures], timeout=seconds)
    parts = readiness.states()
    broken = {name for name, state in parts.items() if state != "ok"} - DELAYED
    reply: ReadyReply = {"status": "not ready" if broken else "ok", "parts": parts}
    return JsonReply(reply, status_code=503 if broken else 200)


@endpoints.get(
    "/v1/status",
    summary="Read the state of the service",
    responses={200: described("State of the ledger and of this router.", StatusReply)},
)
async def status(request: Request) -> Response:
    """Counts of decisions, learning lag, current snapshot and health of each arm."""
    state = await _state(request).value()
    return JsonReply(status_json(state))


@endpoints.get(
    "/metrics",
    summary="Read the metrics for Prometheus",
    response_class=Response,
    responses={200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """Prometheus text format. What this process counts is there even if the database cannot be read."""
    try:
        state, budgets = await asyncio.gather(_state(request).value(), request.app.state.read_budgets.value())
    except (NotReady, StoreError):
        state, budgets = None, {}
    own: Metrics = request.app.state.metrics
    return Response(own.own_text() + own.state_text(state, budgets=budgets), media_type=CONTENT_TYPE_LATEST)

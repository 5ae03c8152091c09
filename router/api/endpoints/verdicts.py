"""Endpoints that buy a verdict: what a paired comparison of stored questions would cost, and its run by a learner."""

import time
from typing import Annotated, Literal

from fastapi import Request
from fastapi.responses import Response
from pydantic import Field

from ragbandit.client.replies.status import VerdictRequestReply
from ragbandit.router.api.dependencies import caller_of, reads_of, router_of
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.requests import RequestBody, example
from ragbandit.router.api.schemas.responses import JsonReply, reply_description
from ragbandit.router.api.security.actors import actor_of
from ragbandit.router.api.security.rules import ADMIN, READ_ALL
from ragbandit.router.replies.values import build_reply
from ragbandit.router.reporting.verdict_requests import VerdictRequest, make_request, newest_request
from ragbandit.shared.errors import InvalidInput, QueueError

WEEK_S = 7 * 86_400.0
_Seconds = Annotated[float | None, Field(ge=0, le=1e11)]

endpoints = Endpoints("Operations")


class DecideBody(RequestBody):
    """Terms of a paired comparison."""

    model_config = example(budget=1.0, against="large")

    budget: Annotated[float | None, Field(ge=0, le=1e6)] = None
    """Dollars that the comparison may cost. With null it is only planned: number of questions, cost, and certainty."""
    since: _Seconds = None
    """Beginning of the period, seconds since 1970; default: a week before its end."""
    until: _Seconds = None
    """End of the period, seconds since 1970; default: now. To ask the questions of a plan, send its period."""
    tenant: Annotated[str | None, Field(max_length=64)] = None
    """This tenant only."""
    against: Annotated[str | None, Field(max_length=64)] = None
    """The arm to compare with; default: as for `GET /v1/report`."""
    judge: Literal["judge", "check", "labels"] | None = None
    """Who scores the answers: the model of `judge`, `reward.check`, or people; default: the configured one."""


@endpoints.get(
    "/v1/report/decide",
    rule=READ_ALL,
    summary="Read how a bought verdict gets on",
    responses={200: reply_description("The newest request.", VerdictRequestReply)},
)
async def read_verdict_request(request: Request) -> Response:
    """Read the state of the newest request: its plan, its dollars so far, and why it ended. The comparison itself is in
    `asked` of `GET /v1/report`.
    """
    return await _reply(request, await read_newest(request))


@endpoints.post(
    "/v1/report/decide",
    rule=ADMIN,
    status_code=202,
    summary="Plan or buy a verdict",
    responses={202: reply_description("A learner plans or asks it.", VerdictRequestReply)},
)
async def decide(body: DecideBody, request: Request) -> Response:
    """Let a learner ask stored questions both ways, by routing and by `against`, as `ragbandit report --decide` does.
    Without `budget` it only plans. One request runs at a time: 409 if one is open. The dollars are booked on your key.
    """
    return await _reply(request, await store_request(request, body), status=202)


async def _reply(request: Request, paired: VerdictRequest, *, status: int = 200) -> Response:
    missing = await missing_process(request, paired)
    return JsonReply(build_reply(VerdictRequestReply, paired, missing=missing), status_code=status)


async def missing_process(request: Request, paired: VerdictRequest) -> str | None:
    """Which process an open request lacks, and how to start it; None if it lacks none."""
    if not paired.is_open:
        return None
    jobs = router_of(request).process.jobs
    try:
        workers = await reads_of(request).run(jobs.workers)
    except QueueError:
        return "Redis cannot be reached, so nobody knows whether a learner runs: `ragbandit worker --queue learn`"
    if any(worker.queue == "learn" for worker in workers):
        return None
    return "No learner runs, and only a learner carries this out: start one with `ragbandit worker --queue learn`"


async def read_newest(request: Request) -> VerdictRequest:
    router = router_of(request)

    def read() -> VerdictRequest:
        with router.database.read() as connection:
            return newest_request(connection, label=router.ledger.label)

    return await reads_of(request).run(read)


async def store_request(request: Request, body: DecideBody) -> VerdictRequest:
    """Store a request for a verdict, which a learner carries out. Raises InvalidInput, Conflict, StoreError."""
    router, actor = router_of(request), actor_of(request)
    until = time.time() if body.until is None else body.until
    since = max(0.0, until - WEEK_S) if body.since is None else body.since
    if since >= until:
        raise InvalidInput(
            f"{since:g} to {until:g} is not a period", field="since", remedy="give the earlier time first"
        )
    if body.against is not None and body.against not in router.settings.worker_arms:
        is_own = body.against in router.settings.arms
        reason = "is run by your code, not by a learner" if is_own else "is not configured (`arms`)"
        own = "use `ragbandit report --decide --module MODULE:NAME --judge labels`"
        remedy = own if is_own else "name an arm that is"
        raise InvalidInput(f"{body.against} {reason}", field="against", remedy=remedy)
    verdict = VerdictRequest(
        since=since,
        until=until,
        tenant=body.tenant,
        against=body.against,
        judge=body.judge,
        budget=body.budget,
        actor=actor,
        charged=caller_of(request).key or actor,
    )
    return await reads_of(request).run(lambda: make_request(router.database, verdict, label=router.ledger.label))

"""Decision endpoints: route, answer, outcomes, cancel, and everything known of a decision."""

import asyncio
import time
from typing import Annotated

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse, Response

from ragbandit.router.api.dependencies import awaited, router_of
from ragbandit.router.api.requests import OutcomeBody, RouteBody, identity
from ragbandit.router.api.responses import (
    cancellation_json,
    decision_json,
    headers,
    outcome_json,
    record_json,
)
from ragbandit.router.api.schemas import REPLIES
from ragbandit.router.errors import InvalidInput
from ragbandit.router.serving.validation import checked_id, made_outcome
from ragbandit.router.types import ArmName, Budget, Decision, DecisionId, Query, RunBy

__all__ = []


def add_decisions(app: FastAPI) -> None:
    @app.post("/v1/route", status_code=200, responses=REPLIES["/v1/route"])
    async def route(
        body: RouteBody, request: Request, idempotency_key: Annotated[str | None, Header()] = None
    ) -> Response:
        """Draw an arm for your own stack to run."""
        decision, seconds = await _decide(request, body, idempotency_key, run_by="caller")
        return JSONResponse(decision_json(decision, seconds=seconds), headers=headers(decision))

    @app.post("/v1/answer", status_code=200, responses=REPLIES["/v1/answer"])
    async def answer(
        body: RouteBody,
        request: Request,
        idempotency_key: Annotated[str | None, Header()] = None,
        wait_s: float | None = None,
    ) -> Response:
        """Draw an arm and have a worker run it; 202 with the id if it takes longer than wait_s."""
        router = router_of(request)
        limit = router.settings.server.answer_wait_s
        if wait_s is not None and not 0 <= wait_s <= 600:
            raise InvalidInput(f"{wait_s!r} is out of range", field="wait_s", remedy="send a number in [0, 600]")
        decision, seconds = await _decide(request, body, idempotency_key, run_by="worker")
        waiting = await asyncio.to_thread(router.await_outcome, decision)
        try:
            # Asked first: wait_for with 0 s gives up before a wrapped Future can say that it is done.
            wait_s = limit if wait_s is None else wait_s
            outcome = (
                waiting.result() if waiting.done() else await asyncio.wait_for(asyncio.wrap_future(waiting), wait_s)
            )
        except TimeoutError:
            reply = decision_json(decision, seconds=seconds) | {"status": "pending", "answer": None}
            return JSONResponse(reply, status_code=202, headers=headers(decision))
        finally:
            router.forget(decision.id, waiting)
        return JSONResponse(decision_json(decision, seconds=seconds) | outcome_json(outcome), headers=headers(decision))

    @app.post("/v1/outcomes", status_code=202, responses=REPLIES["/v1/outcomes"])
    async def outcomes(body: OutcomeBody, request: Request) -> Response:
        """Report what your own stack did with a decision."""
        router = router_of(request)
        made = made_outcome(now=time.time(), **body.model_dump())
        new = await awaited(router.submit_outcome(made), what="decision_id")
        reply = {"decision_id": body.decision_id, "duplicate": not new}
        return JSONResponse(reply, status_code=202 if new else 200)

    @app.get("/v1/decisions/{decision_id}", responses=REPLIES["/v1/decisions/{decision_id}"])
    async def decision(decision_id: str, request: Request) -> Response:
        """Everything known of a decision."""
        checked_id(decision_id, field="decision_id")
        record = await asyncio.to_thread(router_of(request).decision, decision_id)
        return JSONResponse(record_json(record), headers=headers(record.decision))

    cancelling = "/v1/decisions/{decision_id}/cancel"

    @app.post(cancelling, status_code=202, responses=REPLIES[cancelling])
    async def cancel(decision_id: str, request: Request) -> Response:
        """Have no worker answer it; 202 while one has still to end it, 200 with how it ended."""
        found = await asyncio.to_thread(router_of(request).cancel, decision_id)
        return JSONResponse(cancellation_json(found), status_code=202 if found.status is None else 200)


async def _decide(
    request: Request, body: RouteBody, idempotency_key: str | None, *, run_by: RunBy
) -> tuple[Decision, float]:
    router, meters = router_of(request), request.app.state.meters
    key = identity(body.decision_id, key=idempotency_key, field="decision_id")
    query = Query(
        id=None if key is None else DecisionId(key),
        text=body.question,
        context=body.context,
        arms=None if body.arms is None else tuple(ArmName(arm) for arm in body.arms),
        budget=Budget(**body.budget.model_dump()),
        tenant=body.tenant,
    )
    began = time.perf_counter()
    decision = await awaited(router.submit(query, run_by=run_by), what="decision_id")
    seconds = time.perf_counter() - began
    meters.route_seconds.observe(seconds)
    meters.decisions.labels(decision.arm, decision.explored).inc()
    if decision.fault:
        meters.faults.inc()
    return decision, seconds

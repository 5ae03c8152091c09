"""The HTTP surface: thin. Bodies are checked here and in edge.py, everything else is the Router's."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from swagger_ui_bundle import swagger_ui_path

from ragbandit.router.api.metrics import Edge, Meters
from ragbandit.router.api.requests import FeedbackBatchBody, FeedbackBody, OutcomeBody, RouteBody, complaint, identity
from ragbandit.router.api.responses import (
    cancellation_json,
    decision_json,
    error_body,
    error_json,
    headers,
    outcome_json,
    receipt_json,
    record_json,
    status_json,
)
from ragbandit.router.api.schemas import ERRORS, REPLIES
from ragbandit.router.errors import InvalidInput, NotReady, QueueError, RagBanditError, StoreError
from ragbandit.router.jobs.queue import RedisJobs
from ragbandit.router.serving.router import SERVE_S, Router
from ragbandit.router.serving.validation import checked_id, made_feedback, made_outcome
from ragbandit.router.types import ArmName, Budget, Decision, DecisionId, Feedback, Query, Receipt, RunBy

__all__ = ["create_app"]

Reply = TypeVar("Reply")

log = logging.getLogger("ragbandit.api")

#: most items in one /v1/feedback/batch
MAX_BATCH = 1000


def create_app(open_router: Callable[[], Router]) -> FastAPI:
    """The app; the Router is opened when it starts and closed when it stops."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        router = await asyncio.to_thread(open_router)
        app.state.router, app.state.meters = router, Meters(router)
        try:
            yield
        finally:
            await asyncio.to_thread(router.close)

    app = FastAPI(title="RagBandit", version="1", lifespan=lifespan, responses=ERRORS, docs_url=None, redoc_url=None)
    app.openapi_version = "3.0.3"  # what the bundled Swagger UI reads
    _add_decisions(app)
    _add_feedback(app)
    _add_operations(app)
    _add_docs(app)
    _add_errors(app)
    app.add_middleware(Edge, state=app.state, limit=lambda: app.state.router.settings.server.max_body_bytes)
    return app


def _router(request: Request) -> Router:
    router: Router = request.app.state.router
    return router


def _add_decisions(app: FastAPI) -> None:
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
        router = _router(request)
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
        router = _router(request)
        made = made_outcome(now=time.time(), **body.model_dump())
        new = await _awaited(router.submit_outcome(made), what="decision_id")
        reply = {"decision_id": body.decision_id, "duplicate": not new}
        return JSONResponse(reply, status_code=202 if new else 200)

    @app.get("/v1/decisions/{decision_id}", responses=REPLIES["/v1/decisions/{decision_id}"])
    async def decision(decision_id: str, request: Request) -> Response:
        """Everything known of a decision."""
        checked_id(decision_id, field="decision_id")
        record = await asyncio.to_thread(_router(request).decision, decision_id)
        return JSONResponse(record_json(record), headers=headers(record.decision))

    cancelling = "/v1/decisions/{decision_id}/cancel"

    @app.post(cancelling, status_code=202, responses=REPLIES[cancelling])
    async def cancel(decision_id: str, request: Request) -> Response:
        """Have no worker answer it; 202 while one has still to end it, 200 with how it ended."""
        found = await asyncio.to_thread(_router(request).cancel, decision_id)
        return JSONResponse(cancellation_json(found), status_code=202 if found.status is None else 200)


def _add_feedback(app: FastAPI) -> None:
    @app.post("/v1/feedback", status_code=202, responses=REPLIES["/v1/feedback"])
    async def feedback(
        body: FeedbackBody, request: Request, idempotency_key: Annotated[str | None, Header()] = None
    ) -> Response:
        """Keep one judgement of a decision."""
        receipt = await _keep(request, body, key=idempotency_key)
        return JSONResponse(receipt_json(receipt), status_code=200 if receipt.duplicate else 202)

    @app.post("/v1/feedback/batch", status_code=202, responses=REPLIES["/v1/feedback/batch"])
    async def batch(body: FeedbackBatchBody, request: Request) -> Response:
        """Keep many judgements; the reply has one entry per item, in order, a receipt or an error."""
        if not body.items or len(body.items) > MAX_BATCH:
            raise InvalidInput(f"has {len(body.items)} items", field="items", remedy=f"send between 1 and {MAX_BATCH}")
        results = await asyncio.gather(*(_keep_item(request, item) for item in body.items), return_exceptions=True)
        replies: list[dict[str, Any]] = []
        for result in results:
            if isinstance(result, RagBanditError):
                replies.append(error_json(result))
            elif isinstance(result, BaseException):
                raise result
            else:
                replies.append(receipt_json(result))
        return JSONResponse({"items": replies}, status_code=202)


async def _keep(request: Request, body: FeedbackBody, *, key: str | None) -> Receipt:
    router = _router(request)
    made = _feedback(router, body, key=key)
    receipt = await _awaited(router.submit_feedback(made), what="feedback_id")
    _count_feedback(request, made, receipt)
    return receipt


async def _keep_item(request: Request, item: dict[str, Any]) -> Receipt:
    try:
        body = FeedbackBody.model_validate(item)
    except ValidationError as error:
        raise complaint(error.errors()[0]) from error
    return await _keep(request, body, key=None)


async def _awaited(future: "Future[Reply]", *, what: str) -> Reply:
    """What a group replies, or NotReady: the work may still be done, and the same id will find it."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), SERVE_S)
    except TimeoutError as error:
        raise NotReady(f"no reply within {SERVE_S:g} s", remedy=f"try again with the same {what}") from error


def _add_operations(app: FastAPI) -> None:
    @app.get("/health", responses=REPLIES["/health"])
    async def health() -> Response:
        """The process is alive."""
        return JSONResponse({"status": "ok"})

    @app.get("/ready", responses=REPLIES["/ready"])
    async def ready(request: Request) -> Response:
        """Everything a request needs is there; 503 names what is not."""
        router = _router(request)
        parts = await asyncio.to_thread(_parts, router)
        missing = {name: state for name, state in parts.items() if state != "ok"}
        # Without Redis decisions and feedback are still kept; only answers and learning are late.
        hard = set(missing) - {"redis"}
        return JSONResponse({"status": "not ready" if hard else "ok", "parts": parts}, status_code=503 if hard else 200)

    @app.get("/v1/status", responses=REPLIES["/v1/status"])
    async def status(request: Request) -> Response:
        """Counters, lag, snapshot."""
        return JSONResponse(await asyncio.to_thread(status_json, _router(request)))

    @app.get("/metrics", response_class=Response, responses=REPLIES["/metrics"])
    async def metrics(request: Request) -> Response:
        """Prometheus text."""
        return Response(
            await asyncio.to_thread(request.app.state.meters.text, _router(request)), media_type=CONTENT_TYPE_LATEST
        )


def _add_docs(app: FastAPI) -> None:
    """/docs from files on this machine: FastAPI's own page loads its script from the internet."""
    app.mount("/docs/assets", StaticFiles(directory=swagger_ui_path), name="docs-assets")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="RagBandit",
            swagger_js_url="/docs/assets/swagger-ui-bundle.js",
            swagger_css_url="/docs/assets/swagger-ui.css",
            swagger_favicon_url="/docs/assets/favicon-32x32.png",
        )


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RagBanditError)
    async def ours(_request: Request, error: RagBanditError) -> Response:
        headers = {"Retry-After": "1"} if error.status == 503 else None
        return JSONResponse(error_json(error), status_code=error.status, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            body = error_body("INVALID_JSON", "the body is not JSON", remedy="send a JSON object in UTF-8")
            return JSONResponse(body, status_code=400)
        said = complaint(first, skip=1, content_type=request.headers.get("content-type"))
        return JSONResponse(error_json(said), status_code=said.status)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        codes = {
            400: ("INVALID_JSON", "the body cannot be read", "send a JSON object in UTF-8"),
            404: ("NOT_FOUND", f"there is nothing at {request.url.path}", "see /docs"),
            405: ("METHOD_NOT_ALLOWED", f"{request.method} is not for {request.url.path}", "see /docs"),
            413: ("BODY_TOO_LARGE", "the body is too large", "send less"),
        }
        code, message, remedy = codes.get(error.status_code, ("HTTP_ERROR", str(error.detail), "see /docs"))
        return JSONResponse(error_body(code, message, remedy=remedy), status_code=error.status_code)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        log.exception("unforeseen failure", extra={"action": "error", "path": request.url.path}, exc_info=error)
        return JSONResponse(error_body("INTERNAL", "this is our fault; it is in the log"), status_code=500)


async def _decide(
    request: Request, body: RouteBody, idempotency_key: str | None, *, run_by: RunBy
) -> tuple[Decision, float]:
    router, meters = _router(request), request.app.state.meters
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
    decision = await _awaited(router.submit(query, run_by=run_by), what="decision_id")
    seconds = time.perf_counter() - began
    meters.route_seconds.observe(seconds)
    meters.decisions.labels(decision.arm, decision.explored).inc()
    if decision.fault:
        meters.faults.inc()
    return decision, seconds


def _feedback(router: Router, body: FeedbackBody, *, key: str | None) -> Feedback:
    return made_feedback(
        decision_id=body.decision_id,
        settings=router.settings,
        now=time.time(),
        feedback_id=identity(body.feedback_id, key=key, field="feedback_id"),
        label=body.label,
        rating=body.rating,
        scale=body.scale,
        reward=body.reward,
        source=body.source,
    )


def _count_feedback(request: Request, made: Feedback, receipt: Receipt) -> None:
    result = "duplicate" if receipt.duplicate else "late" if receipt.late else "kept"
    request.app.state.meters.feedback.labels(made.kind, result).inc()


def _parts(router: Router) -> dict[str, str]:
    parts = {"router": "ok" if router.service.alive() else "its thread has ended", "database": "ok", "redis": "ok"}
    try:
        router.ledger.last_seq()
    except StoreError as error:
        parts["database"] = str(error)
    if isinstance(router.jobs, RedisJobs):
        try:
            router.jobs.ping()
        except QueueError as error:
            parts["redis"] = str(error)
    return parts

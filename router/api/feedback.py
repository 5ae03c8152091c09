"""Feedback endpoints: one item, and a batch."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from ragbandit.router.api.dependencies import awaited, router_of
from ragbandit.router.api.requests import FeedbackBatchBody, FeedbackBody, complaint, identity
from ragbandit.router.api.responses import (
    error_json,
    receipt_json,
)
from ragbandit.router.api.schemas import REPLIES
from ragbandit.router.errors import InvalidInput, RagBanditError
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.validation import made_feedback
from ragbandit.router.types import Feedback, Receipt

__all__ = ["MAX_BATCH"]


#: most items in one /v1/feedback/batch
MAX_BATCH = 1000


def add_feedback(app: FastAPI) -> None:
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
    router = router_of(request)
    made = _feedback(router, body, key=key)
    receipt = await awaited(router.submit_feedback(made), what="feedback_id")
    _count_feedback(request, made, receipt)
    return receipt


async def _keep_item(request: Request, item: dict[str, Any]) -> Receipt:
    try:
        body = FeedbackBody.model_validate(item)
    except ValidationError as error:
        raise complaint(error.errors()[0]) from error
    return await _keep(request, body, key=None)


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

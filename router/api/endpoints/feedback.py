import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response

from ragbandit.client.replies.decisions import BatchReply, ReceiptReply
from ragbandit.router.api.dependencies import BatchKey, IdempotencyKey, await_all, caller_of, check_count, router_of
from ragbandit.router.api.metrics import Metrics
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.requests import FeedbackBatchBody, FeedbackBody, body_of, idempotency_id, item_ids
from ragbandit.router.api.schemas.responses import JsonReply, error_item, reply_description
from ragbandit.router.api.security.ownership import check_owner, inaccessible_ids
from ragbandit.router.api.security.rules import AccessRule, roles
from ragbandit.router.learning.sources import IMPORTED_RATER
from ragbandit.router.replies.values import build_reply
from ragbandit.router.serving.checks.reports import check_feedback_id, make_feedback
from ragbandit.router.storage.decisions.feedback_writes import unknown_decision
from ragbandit.shared.errors import InvalidInput, RagBanditError
from ragbandit.shared.types import Feedback, Receipt

STORED: Final[dict[int | str, dict[str, Any]]] = {
    200: reply_description("This feedback was stored before.", ReceiptReply),
    202: reply_description("Stored.", ReceiptReply),
}
MAX_BATCH = 1000

endpoints = Endpoints("Feedback")


@endpoints.post(
    "/v1/feedback",
    rule=AccessRule(roles("app", "rater"), queue="feedback"),
    status_code=202,
    summary="Judge a decision",
    responses=STORED,
)
async def feedback(body: FeedbackBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Store one judgement of a decision: a label (gold answers), a rating or a reward.

    The reply comes after the judgement is committed. The policy learns from it in the background.
    """
    item = feedback_of(request, body, key=idempotency_key)
    await check_owner(request, item.decision_id)
    (receipt,) = await store_judgements(request, [item])
    if not isinstance(receipt, Receipt):
        raise receipt
    return JsonReply(build_reply(ReceiptReply, receipt), status_code=200 if receipt.duplicate else 202)


@endpoints.post(
    "/v1/feedback/batch",
    rule=AccessRule(roles("app", "rater"), queue="feedback", size_limit="max_batch_bytes"),
    status_code=202,
    summary="Judge many decisions",
    responses={202: reply_description("A receipt or an error for each item.", BatchReply)},
)
async def batch(body: FeedbackBatchBody, request: Request, idempotency_key: BatchKey = None) -> Response:
    """Store up to 1,000 judgements. Each is stored or refused on its own.

    The reply has one entry per item, in order: a receipt or an error.
    """
    check_count(body.items, most=MAX_BATCH)
    keys = item_ids(body.items, key=idempotency_key, field="feedback_id")
    checked = [_item_feedback(request, item, key=key) for item, key in zip(body.items, keys, strict=True)]
    unknown = await inaccessible_ids(request, (item.decision_id for item in checked if isinstance(item, Feedback)))
    items = [
        unknown_decision() if isinstance(item, Feedback) and item.decision_id in unknown else item for item in checked
    ]
    receipts = iter(await store_judgements(request, [item for item in items if isinstance(item, Feedback)]))
    results = [next(receipts) if isinstance(item, Feedback) else item for item in items]
    reply: BatchReply = {
        "items": [
            build_reply(ReceiptReply, item) if isinstance(item, Receipt) else error_item(item) for item in results
        ]
    }
    return JsonReply(reply, status_code=202)


async def store_judgements(request: Request, items: Sequence[Feedback]) -> list[Receipt | BaseException]:
    """Store and count judgements. Returns a receipt or an error for each. Raises Overloaded, CallerGone."""
    receipts = await await_all(request, router_of(request).submit_feedback_batch(items), name="feedback_id")
    kept = [(item, receipt) for item, receipt in zip(items, receipts, strict=True) if isinstance(receipt, Receipt)]
    metrics: Metrics = request.app.state.metrics
    for item, receipt in kept:
        result = "late" if receipt.late else "kept"
        if receipt.duplicate:
            result = "duplicate"
        metrics.feedback.labels(item.kind, result).inc()
        if item.event is not None:
            metrics.events.labels(item.event, result).inc()
    return receipts


def _item_feedback(request: Request, item: dict[str, Any], *, key: str | None) -> Feedback | RagBanditError:
    try:
        return feedback_of(request, body_of(FeedbackBody, item), key=key)
    except RagBanditError as error:
        return error


def feedback_of(request: Request, body: FeedbackBody, *, key: str | None) -> Feedback:
    fields = body.model_dump() | {"feedback_id": idempotency_id(body.feedback_id, key=key, field="feedback_id")}
    check_feedback_id(fields["feedback_id"])
    item = make_feedback(settings=router_of(request).settings, now=time.time(), **fields)
    if (item.rater or "").startswith(IMPORTED_RATER):  # such raters have other weights, and no daily cap
        message = f"raters that begin with {IMPORTED_RATER!r} are those of imported files"
        raise InvalidInput(message, field="rater", remedy="send another name, or use `ragbandit feedback import FILE`")
    return replace(item, api_key=caller_of(request).key)

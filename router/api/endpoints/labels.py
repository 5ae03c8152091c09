"""Endpoints of the label queue: answers that wait for a person's label, of decisions and of bought verdicts."""

import time
from dataclasses import replace
from functools import partial
from typing import Annotated, Final

from fastapi import Query as QueryParameter, Request
from fastapi.responses import Response
from pydantic import Field

from ragbandit.client.replies.decisions import LabelQueueReply, LabelReply, LabelTask
from ragbandit.router.api.dependencies import caller_of, reads_of, router_of
from ragbandit.router.api.endpoints.feedback import feedback_of, store_judgements
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.requests import FeedbackBody, RequestBody, example
from ragbandit.router.api.schemas.responses import JsonReply, reply_description
from ragbandit.router.api.security.ownership import inaccessible_ids
from ragbandit.router.api.security.rules import LABEL
from ragbandit.router.replies.values import build_reply
from ragbandit.router.serving.checks.questions import ID_PATTERN
from ragbandit.router.serving.checks.reports import MAX_RATER
from ragbandit.router.storage import label_queue as queue
from ragbandit.router.storage.access.shared_secrets import DRAWS, shared_secret
from ragbandit.shared.errors import Conflict, NotFound
from ragbandit.shared.types import Receipt

endpoints = Endpoints("Feedback")

_ITEM: Final = rf"^{ID_PATTERN.pattern}(\.[0-9a-f]{{16}})?$"


class LabelBody(RequestBody):
    """A person's label for an answer in the label queue."""

    model_config = example(item="ticket-4711", right=True)

    item: Annotated[str, Field(pattern=_ITEM)]
    """Id of the answer, see GET /v1/label-queue."""
    right: bool
    """Whether the answer is right."""


@endpoints.get(
    "/v1/label-queue",
    rule=LABEL,
    summary="Read what to label",
    responses={200: reply_description("Answers that wait for a label.", LabelQueueReply)},
)
async def label_queue(
    request: Request, n: Annotated[int, QueryParameter(ge=1, le=100, description="Largest number of answers.")] = 20
) -> Response:
    """Read the answers that wait for a label, without their arms. First come answers of a bought verdict
    (`ragbandit report --decide --judge labels`): both answers to a question follow each other, in a random order. Then
    come answers from whose labels the policy would learn most (setting `learning.labels_per_day`), newest first;
    tenants take turns.
    """
    items = await read_items(request, limit=n)
    reply: LabelQueueReply = {"items": [_label_task(item) for item in items]}
    return JsonReply(reply)


@endpoints.post(
    "/v1/label-queue",
    rule=LABEL,
    summary="Label an answer",
    responses={200: reply_description("The label is stored.", LabelReply)},
)
async def label_answer(body: LabelBody, request: Request) -> Response:
    """Say whether an answer of the label queue is right. The first label stays: the same label again is a duplicate,
    and a different label is refused with 409. No policy learns the label of an answer of a verdict.
    """
    reply: LabelReply = {"duplicate": await store_label(request, body)}
    return JsonReply(reply)


def _label_task(item: queue.LabelItem) -> LabelTask:
    decision_id = item.id if item.kind == "decision" else None
    return build_reply(LabelTask, item, item=item.id, decision_id=decision_id)


async def read_items(request: Request, *, limit: int, skip: int = 0) -> list[queue.LabelItem]:
    database, tenant = router_of(request).database, caller_of(request).tenant
    return await reads_of(request).run(lambda: queue.waiting_items(database, tenant=tenant, limit=limit, skip=skip))


async def store_label(request: Request, body: LabelBody) -> bool:
    """Store a label. Returns whether the answer had this label before. Raises NotFound, Conflict."""
    if await inaccessible_ids(request, [queue.decision_id_of(body.item)]):
        raise queue.unknown_item()
    if queue.is_of_verdict(body.item):
        database, rater = router_of(request).database, caller_of(request).name[:MAX_RATER] or queue.LABEL_QUEUE
        label = partial(queue.label_verdict, database, body.item, right=body.right, rater=rater)
        return await reads_of(request).run(label)
    return await _label_decision(request, body)


async def _label_decision(request: Request, body: LabelBody) -> bool:
    """Store the label as feedback, which the policy learns."""
    database, rater = router_of(request).database, caller_of(request).name[:MAX_RATER] or None
    secret = await reads_of(request).run(lambda: shared_secret(database, name=DRAWS, now=time.time()))
    find = partial(queue.stored_label, database, body.item, secret=secret)
    given = await reads_of(request).run(find)
    if given is not None:
        queue.refuse_other_label(right=body.right, given=given)
        return True
    label = FeedbackBody.model_construct(decision_id=body.item, rater=rater, rating=body.right, source="label")
    item = replace(feedback_of(request, label, key=None), id=queue.label_id(body.item, secret=secret))
    (receipt,) = await store_judgements(request, [item])
    if isinstance(receipt, Receipt):
        return receipt.duplicate
    if isinstance(receipt, NotFound):
        raise queue.unknown_item()
    if not isinstance(receipt, Conflict):
        raise receipt
    queue.refuse_other_label(right=body.right, given=await reads_of(request).run(find))
    return True

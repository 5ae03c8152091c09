"""Endpoints of paired comparisons: both ways' answers to stored questions, which people label."""

from typing import Annotated

from fastapi import Query as QueryParameter, Request
from fastapi.responses import Response
from pydantic import Field

from ragbandit.client.replies.decisions import PairedItemReply, PairedLabelReply, PairedLabelsReply
from ragbandit.router.api.dependencies import caller_of, reads_of, router_of
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.requests import RequestBody, example
from ragbandit.router.api.schemas.responses import JsonReply, reply_description
from ragbandit.router.api.security.rules import LABEL
from ragbandit.router.replies.values import filled
from ragbandit.router.serving.checks.reports import MAX_RATER
from ragbandit.router.serving.router import Router
from ragbandit.router.storage import paired_labels
from ragbandit.router.storage.access.shared_secrets import DRAWS, known_secret
from ragbandit.shared.errors import NotReady

endpoints = Endpoints("Feedback")


class PairedLabelBody(RequestBody):
    """The label of an answer of a paired comparison."""

    model_config = example(item="ticket-4711.9f86d081884c7d65", right=True)

    item: Annotated[str, Field(min_length=1, max_length=200, pattern="^[!-~]+$")]
    """Id of the answer, see GET /v1/paired-labels."""
    right: bool
    """Whether the answer is right."""


@endpoints.get(
    "/v1/paired-labels",
    rule=LABEL,
    summary="Read what to label for a verdict",
    responses={200: reply_description("Answers of a paired comparison that wait for a label.", PairedLabelsReply)},
)
async def paired_items(
    request: Request, n: Annotated[int, QueryParameter(ge=1, le=100, description="Largest number of answers.")] = 20
) -> Response:
    """Read answers of both ways to the same questions (`ragbandit report --decide --judge labels`). The two answers to
    a question follow each other in a random order, without their arms and passages. An answer waits for seven days.
    """
    items = await read_items(request, limit=n)
    return JsonReply({"items": [filled(PairedItemReply, item) for item in items]})


@endpoints.post(
    "/v1/paired-labels",
    rule=LABEL,
    summary="Label an answer for a verdict",
    responses={200: reply_description("The label is stored.", PairedLabelReply)},
)
async def label_paired_item(body: PairedLabelBody, request: Request) -> Response:
    """Say whether an answer of a paired comparison is right. No policy learns it. The first label stays: the same one
    again is a duplicate, another one is refused with 409.
    """
    reply: PairedLabelReply = {"duplicate": await store_label(request, body)}
    return JsonReply(reply)


async def read_items(request: Request, *, limit: int, skip: int = 0) -> list[paired_labels.PairedItem]:
    router, tenant = router_of(request), caller_of(request).tenant

    def read() -> list[paired_labels.PairedItem]:
        secret = _secret(router)
        with router.database.read() as connection:
            return paired_labels.waiting_items(connection, secret=secret, tenant=tenant, limit=limit, skip=skip)

    return await reads_of(request).run(read)


async def store_label(request: Request, body: PairedLabelBody) -> bool:
    """Returns whether the answer had this label before. Raises NotFound, Conflict."""
    router, caller = router_of(request), caller_of(request)

    def label() -> bool:
        return paired_labels.label_item(
            router.database,
            body.item,
            right=body.right,
            rater=caller.name[:MAX_RATER] or paired_labels.LABEL_QUEUE,
            tenant=caller.tenant,
            secret=_secret(router),
        )

    return await reads_of(request).run(label)


def _secret(router: Router) -> bytes:
    secret = known_secret(router.database, name=DRAWS)
    if secret is None:
        raise NotReady("no question of this store was drawn yet")
    return secret

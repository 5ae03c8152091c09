"""Sessions: the end of a task, with the judgement of the whole task."""

from functools import partial
from typing import Annotated

from fastapi import Path as PathParameter, Request
from fastapi.responses import Response

from ragbandit.client.replies.decisions import ReceiptReply, SessionEndReply
from ragbandit.router.api.dependencies import caller_of, reads_of, router_of
from ragbandit.router.api.endpoints.feedback import feedback_of, store_judgements
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.requests import FeedbackBody, SessionEndBody, body_of
from ragbandit.router.api.schemas.responses import JsonReply, reply_description
from ragbandit.router.api.security.ownership import tenant_of
from ragbandit.router.api.security.rules import AccessRule, roles
from ragbandit.router.replies.values import build_reply
from ragbandit.router.serving.checks.questions import MAX_SESSION, checked_text
from ragbandit.shared.errors import NotFound
from ragbandit.shared.types import Receipt

endpoints = Endpoints("Feedback")

SessionPath = Annotated[
    str,
    PathParameter(description="Id of the conversation.", json_schema_extra={"minLength": 1, "maxLength": MAX_SESSION}),
]


@endpoints.post(
    "/v1/sessions/{session_id:path}/end",
    rule=AccessRule(roles("app", "rater"), queue="feedback"),
    summary="End and judge a task",
    responses={200: reply_description("The decision of the task.", SessionEndReply)},
)
async def end(body: SessionEndBody, session_id: SessionPath, request: Request) -> Response:
    """End the open tasks of a conversation, so that they are learned, and store a judgement of the newest one.

    The judgement counts for the decision of the main agent's newest task that is not closed; without tasks, for the
    newest decision. A repeated request with the same `feedback_id` has no further effect.
    """
    router = router_of(request)
    tenant = tenant_of(caller_of(request), given=body.tenant if "tenant" in body.model_fields_set else None)
    session, tenant = checked_text(session_id, field="session_id"), checked_text(tenant, field="tenant")
    feedback_id = None if body.feedback is None else body.feedback.get("feedback_id")
    known_id = feedback_id if isinstance(feedback_id, str) else None
    key, store = caller_of(request).key, router.store
    find = partial(store.decision_of_session, session, tenant=tenant, feedback_id=known_id, api_key=key)
    found = await reads_of(request).run(find)
    if found is None:
        remedy = "send the id that the questions had as session_id, and their tenant"
        raise NotFound(f"no decision has the session {session!r:.80}", field="session_id", remedy=remedy)
    (decision_id, received_at), receipt = found, None
    if body.feedback is not None:
        judged = body_of(FeedbackBody, {**body.feedback, "decision_id": decision_id})
        (receipt,) = await store_judgements(request, [feedback_of(request, judged, key=None)])
        if not isinstance(receipt, Receipt):
            raise receipt
    end_tasks = partial(store.end_session, session, tenant=tenant, now=router.service.clock(), begun_until=received_at)
    ended = await reads_of(request).run(partial(end_tasks, api_key=key))
    router.process.notifier.notify_learner()
    feedback = build_reply(ReceiptReply, receipt) if isinstance(receipt, Receipt) else None
    reply: SessionEndReply = {"decision_id": decision_id, "ended": ended, "feedback": feedback}
    return JsonReply(reply)

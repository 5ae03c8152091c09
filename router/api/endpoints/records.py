"""Stored decisions: reading and explaining one."""

from dataclasses import replace
from functools import partial

from fastapi import Request
from fastapi.responses import Response

from ragbandit.client.replies import decisions as reply_types
from ragbandit.router.api.dependencies import await_future, reads_of, router_of
from ragbandit.router.api.endpoints.decisions import DecisionPath
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.responses import JsonReply, decision_headers, reply_description
from ragbandit.router.api.security.ownership import check_owner
from ragbandit.router.api.security.rules import ANY_ROLE
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.replies.decisions import record_json
from ragbandit.router.replies.explanations import explanation_json
from ragbandit.router.serving.explanations.explain import Explanation, explain
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import NO_TERMS, NOTHING_CONTINUED, Sent

endpoints = Endpoints("Decisions")


@endpoints.get(
    "/v1/decisions/{decision_id}",
    rule=ANY_ROLE,
    summary="Read a decision",
    responses={200: reply_description("All that is stored about the decision.", reply_types.RecordReply)},
)
async def decision(decision_id: DecisionPath, request: Request) -> Response:
    """Read all that is stored about a decision: question, probabilities, outcome, feedback, reward, state."""
    router = router_of(request)
    await check_owner(request, decision_id)
    record = await reads_of(request).run(lambda: router.decision(decision_id))
    return JsonReply(record_json(record), headers=decision_headers(record.decision))


@endpoints.get(
    "/v1/decisions/{decision_id}/explanation",
    rule=ANY_ROLE,
    summary="Explain a decision",
    responses={200: reply_description("The decision explained.", Explanation)},
)
async def explanation(decision_id: DecisionPath, request: Request) -> Response:
    """Explain a decision: draw and reasons, steps of the answer, feedback, reward, and what the decision waits for."""
    explained = await explain_decision(request, decision_id)
    return JsonReply(explanation_json(explained), headers=decision_headers(explained.record.decision))


async def explain_decision(request: Request, decision_id: str) -> Explanation:
    """Explain a decision. Raises InvalidInput, and NotFound if the caller may not see the decision."""
    router = router_of(request)
    await check_owner(request, decision_id)
    rule = closing_rule(router.settings.learning)
    read = partial(explain, router.store, decision_id, rule=rule, known=router.service.arms)
    explained = await reads_of(request).run(read)
    return await _with_present_choice(request, explained)


async def _with_present_choice(request: Request, explained: Explanation) -> Explanation:
    """Add, for a later turn, the arm that the policy would probably draw if the turn were a decision."""
    decision, router = explained.record.decision, router_of(request)
    if decision.turn_of is None or not decision.query.text:
        return explained
    sent = Sent(surface=decision.query.sent.surface, agent=decision.query.sent.agent)  # rules read no other facts
    query = replace(decision.query, id=None, session=None, unit="turn", arms=None, arm_by=None, sent=sent)
    query = replace(query, continues=NOTHING_CONTINUED, terms=NO_TERMS)
    try:
        now = await await_future(request, router.preview(query, run_by=decision.run_by), name="decision_id")
    except RagBanditError:  # no arm would be offered now
        return explained
    if now.arm == decision.arm:
        return explained
    reason = f"For this turn alone the policy would now prefer {now.arm}; the turns stay on their arm."
    return replace(explained, reasons=(*explained.reasons, reason))

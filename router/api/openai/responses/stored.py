"""Responses that were made: read by their id, and gone on from. The record of the decision is all that is stored."""

from typing import Any

from fastapi import Request

from ragbandit.router.api.dependencies import reads_of, router_of
from ragbandit.router.api.openai.responses.replies import response
from ragbandit.router.api.security.ownership import check_owner
from ragbandit.router.serving.checks.fields import ID_PATTERN
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.shared.types import Message


async def record_of(
    request: Request, response_id: str, *, field: str = "response_id", tenant: str | None = None
) -> DecisionRecord:
    """The record of a response. Raises NotFound.

    One of another tenant, one that was made with `store: false` and one that was never made are the same. field: the
    parameter that names it. tenant: whose it must be; None: any that the caller may know of.
    """
    missing = NotFound("there is no response of this id", field=field, remedy="use the id that a response had")
    if not ID_PATTERN.fullmatch(response_id):
        raise missing
    router = router_of(request)
    try:
        await check_owner(request, response_id)
        record = await reads_of(request).run(lambda: router.decision(response_id))
    except NotFound:
        raise missing from None
    query = record.decision.query
    if query.request.get("store") is False or tenant not in (None, query.tenant):
        raise missing
    return record


def stored_response(request: Request, record: DecisionRecord) -> dict[str, Any]:
    """The response of a record."""
    error, outcome = None, record.outcome
    if outcome is None and record.state == "closed":
        error = {"code": "not_answered", "message": f"no arm answered: {record.reason or 'it waited too long'}"}
    saved = None if outcome is None else router_of(request).savings.of(outcome.cost)
    return response(record.decision, outcome, base=str(request.base_url), saved=saved, error=error)


async def turns_before(request: Request, response_id: str, *, tenant: str) -> tuple[str, list[Message]]:
    """The session of a response and its conversation, its answer last; without its own `instructions`.

    tenant: whose question goes on from it. Raises NotFound, InvalidInput where its texts are not stored.
    """
    field = "previous_response_id"
    # A key of all tenants carries no text from one to another.
    record = await record_of(request, response_id, field=field, tenant=tenant)
    query, outcome = record.decision.query, record.outcome
    question = query.asked or query.text
    if not question:
        message = "the texts of this response were erased, or never stored (log.text)"
        raise InvalidInput(message, field=field, remedy="send the whole conversation as input")
    if outcome is None:
        remedy = f"wait for it: GET /v1/responses/{response_id}"
        raise InvalidInput("this response has no answer yet", field=field, remedy=remedy)
    own = bool(query.request.get("instructions"))
    turns = [each for each in query.messages if not (own and each.role == "system")]
    turns.append(Message(role="user", text=question))
    if outcome.answer:
        turns.append(Message(role="assistant", text=outcome.answer))
    return query.session or record.decision.id, turns

"""Stored responses, and the question of a new response, which may continue a stored one or refer to its items."""

from contextlib import suppress
from typing import Any, Final

from fastapi import Request

from ragbandit.router.api.dependencies import caller_of, reads_of, router_of
from ragbandit.router.api.openai.chats import MOST_SAID, SAID, is_reference, read_chat, said_of
from ragbandit.router.api.openai.replies import Unsupported, message_of
from ragbandit.router.api.openai.requests import ChatQuestion, chat_question
from ragbandit.router.api.openai.responses import ID_PREFIX, ResponseBody, check_response, decisions_of_item, response
from ragbandit.router.api.schemas.requests import id_in_header
from ragbandit.router.api.security.ownership import check_owner
from ragbandit.router.serving.checks.questions import ID_PATTERN, new_id
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.router.storage.decisions.tool_turns import CONVERSATION
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.shared.failures import successor_of
from ragbandit.shared.types import NAMED_ID, Decision

#: largest number of references to items in a request; each is read from the store
_MOST_REFERENCES: Final = 256


async def record_of(
    request: Request, response_id: str, *, field: str = "response_id", tenant: str | None = None
) -> DecisionRecord:
    """Read the record of a response. Raises NotFound, also for a response made with `store: false`. field: name of the
    parameter with the id, for errors. tenant: the tenant that must own it; None if any tenant of the caller may.
    """
    missing = NotFound("there is no response of this id", field=field, remedy="use the id that a response had")
    if not ID_PATTERN.fullmatch(response_id):
        raise missing
    router = router_of(request)
    try:
        await check_owner(request, response_id)
        record = await reads_of(request).run(lambda: router.decision(response_id))
        successor = None if record.outcome is None else successor_of(record.outcome.made_by)
        if successor is not None:
            return await record_of(request, successor, field=field, tenant=tenant)
    except NotFound:
        raise missing from None
    query = record.decision.query
    if query.request.get("store") is False or tenant not in (None, query.tenant):
        raise missing
    return record


def stored_response(request: Request, record: DecisionRecord) -> dict[str, Any]:
    outcome, error = record.outcome, None
    if outcome is None and record.state == "closed":
        error = {"code": "not_answered", "message": f"no arm answered: {record.reason or 'it waited too long'}"}
    saved = None if outcome is None else router_of(request).savings.of(outcome.cost)
    return response(record.decision, outcome, base=str(request.base_url), saved=saved, error=error)


async def response_question(request: Request, body: ResponseBody, *, key: str | None) -> ChatQuestion:
    """Read a request for a response; items replace references. Raises NotFound, Unsupported and as `chat_question`."""
    check_response(body)
    named_id = id_in_header(key)
    response_id = named_id or f"{ID_PREFIX}{new_id()}"
    session = None if body.store is False else response_id
    before, earlier = list[dict[str, Any]](), None
    instructions = int(bool(body.instructions))  # number of messages that `instructions` make
    if body.previous_response_id is not None:
        decision, before = await _messages_before(request, body.previous_response_id)
        session, conversation = decision.query.session or decision.id, decision.query.request.get(CONVERSATION)
        if isinstance(conversation, str) and decision.query.api_key == caller_of(request).key:
            earlier = conversation, instructions + len(before) - 1  # the stored hash excludes the answer
    await _insert_items(request, body)
    sent, ignored = body.sent(before)
    passed, skip = bool(router_of(request).service.passing), instructions + len(before)
    chat = read_chat(sent, at="input", skip=skip, passed=passed, ignored=ignored)
    said = {} if body.store is False else said_of(chat.sent["messages"][instructions:])
    facts = body.facts | said
    if named_id is None:
        facts[NAMED_ID] = False
    return chat_question(
        request, body, chat=chat, decision_id=response_id, session=session, earlier=earlier, facts=facts
    )


async def _messages_before(request: Request, response_id: str) -> tuple[Decision, list[dict[str, Any]]]:
    """Returns (decision of a response, its conversation without `instructions`); the answer is the last message. Raises
    NotFound, and InvalidInput if there is no answer yet or the texts are not stored.
    """
    field, tenant = "previous_response_id", caller_of(request).tenant or "default"
    # Even a key for all tenants must not copy the texts of one tenant into a conversation of another.
    record = await record_of(request, response_id, field=field, tenant=tenant)
    query, outcome = record.decision.query, record.outcome
    question = query.asked or query.text
    if not question:
        message = "the texts of this response were erased, or never stored (log.text)"
        raise InvalidInput(message, field=field, remedy="send the whole conversation as input")
    if outcome is None:
        remedy = f"wait for it: GET /v1/responses/{response_id}"
        raise InvalidInput("this response has no answer yet", field=field, remedy=remedy)
    stored = query.request.get(SAID)
    if isinstance(stored, int):
        message = f"the messages of this response have {stored} characters, and {MOST_SAID} are kept"
        raise InvalidInput(message, field=field, remedy="send the whole conversation as input")
    if isinstance(stored, list):
        messages: list[Any] = list(stored)
    else:
        turns = query.messages
        if query.request.get("instructions"):
            turns = tuple(turn for turn in turns if turn.role != "system")
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        messages.append({"role": "user", "content": question})
    replied = message_of(outcome)
    text, calls = outcome.answer or replied.get("refusal") or None, replied.get("tool_calls")
    if text or calls:
        messages.append({"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})})
    return record.decision, messages


async def _insert_items(request: Request, body: ResponseBody) -> None:
    """Replace references in the input by the items of earlier responses. Raises Unsupported."""
    if isinstance(body.input, str):
        return
    places = [place for place, item in enumerate(body.input) if is_reference(item)]
    for place in places:
        item_id = str(body.input[place].get("id"))
        item: dict[str, Any] | None = None
        if item_id.startswith("rs_"):
            item = {"type": "reasoning"}
        elif len(places) <= _MOST_REFERENCES:
            item = await _stored_item(request, item_id)
        if item is None:
            message = f"{item_id!r:.80} is no item of a stored response of yours"
            if len(places) > _MOST_REFERENCES:
                message = f"{len(places)} items are references, and {_MOST_REFERENCES} are read"
            remedy = "send the item itself in place of the reference"
            raise Unsupported(message, field=f"input.{place}.id", remedy=remedy)
        body.input[place] = item


async def _stored_item(request: Request, item_id: str) -> dict[str, Any] | None:
    tenant = caller_of(request).tenant or "default"
    item = None
    for decision_id in decisions_of_item(item_id):
        with suppress(NotFound):
            record = await record_of(request, decision_id, tenant=tenant)
            output = stored_response(request, record)["output"] if record.decision.query.text else ()
            item = next((candidate for candidate in output if candidate["id"] == item_id), item)
    return item

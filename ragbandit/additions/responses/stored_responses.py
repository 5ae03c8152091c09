"""Stored responses, and the question of a new response, which may continue a stored one or refer to its items."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Final, cast

from fastapi import Request

from ragbandit.additions.responses.items import chat_of_items, is_reference
from ragbandit.additions.responses.response_stream import ResponseStream
from ragbandit.additions.responses.responses import (
    ResponseBody,
    check_response,
    possible_decision_ids,
    response,
    storable_tools,
)
from ragbandit.additions.responses.tools import call_facts, item_tools, sent_tools
from ragbandit.router.api.dependencies import caller_of, reads_of, router_of
from ragbandit.router.api.openai.chat_exchange import ChatDoor
from ragbandit.router.api.openai.chats import Chat, read_chat, storable_field
from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.router.api.openai.replies import message_of
from ragbandit.router.api.openai.requests import ChatQuestion, chat_question
from ragbandit.router.api.reading import reads_body
from ragbandit.router.api.schemas.requests import id_in_header
from ragbandit.router.api.security.ownership import check_owner
from ragbandit.router.serving.abilities import ContextExceeded, short_names
from ragbandit.router.serving.checks.questions import ID_PATTERN, RESPONSE_PREFIX, new_id
from ragbandit.router.storage.decisions.chains import MOST_LINKS
from ragbandit.router.storage.decisions.store import DecisionRecord, DecisionStore
from ragbandit.router.storage.decisions.turns import TOOL_TURN
from ragbandit.shared.dialects.chat.message_parts import reasoning_in
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.shared.model_servers.failures import successor_of
from ragbandit.shared.types import MAX_TEXT, Branch, Continues, Conversation, Decision, DecisionId, Json, Outcome, Sent

#: type of `ResponseBody.input`
Input = str | list[dict[str, Any]]
_PREVIOUS: Final = "previous_response_id"
#: largest number of references to items in a request; each is read from the store
_MOST_REFERENCES: Final = 256
#: largest chain that a response can continue: number of responses, and characters of JSON
MOST_TURNS: Final = 1024
MOST_CHARACTERS: Final = 2_097_152
#: key in `Sent.others`: messages of a response's own turn, unless the question is the only message; above MOST_SAID
#: only their size
SAID: Final = "said"
#: largest size of messages that are stored under SAID, characters of JSON
MOST_SAID: Final = 262_144
#: key in `Sent.others`: tools of the items in the input of a response and of earlier ones. Above MOST_SAID only
#: their size
ITEM_TOOLS: Final = "item_tools"
#: key in `Sent.others`: True if the first message of the turn is the previous answer, which has calls
REPEATS: Final = "repeats_answer"


async def response_record(
    request: Request, response_id: str, *, field: str = "response_id", tenant: str | None = None
) -> DecisionRecord:
    """Read the record of a response; after a failover, of the decision that answered. Raises NotFound, also for a
    response made with `store: false`. field: name of the parameter with the id, for errors. tenant: the tenant that
    must own it; None if any tenant of the caller may.
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
            return await response_record(request, successor, field=field, tenant=tenant)
    except NotFound:
        raise missing from None
    query = record.decision.query
    if query.sent.others.get("store") is False or tenant not in (None, query.tenant):
        raise missing
    return record


def stored_response(request: Request, record: DecisionRecord) -> dict[str, Any]:
    outcome, error = record.outcome, None
    if outcome is None and record.state == "closed":
        error = {"code": "not_answered", "message": f"no arm answered: {record.reason or 'it waited too long'}"}
    saved = None if outcome is None else router_of(request).process.savings.of(outcome.cost)
    return response(record.decision, outcome, base=str(request.base_url), saved=saved, error=error)


class Responses(ChatDoor[ResponseBody]):
    #: Codex compacts a conversation that is too long after an event, but not after a status 400
    error_events: ClassVar[Collection[str]] = (ContextExceeded.code,)

    def whole_reply(self, decision: Decision, outcome: Outcome, *, base: str, saved: float | None) -> dict[str, Any]:
        return response(decision, outcome, base=base, saved=saved)

    def stream(self, decision: Decision, *, base: str) -> ResponseStream:
        return ResponseStream(decision, base=base)

    async def read(self, request: Request, body: ResponseBody, *, key: str | None) -> ChatQuestion:
        """Read a question; stored items replace references. Raises NotFound, Unsupported and InvalidInput."""
        check_response(body)
        named_id = id_in_header(key)
        response_id = named_id or f"{RESPONSE_PREFIX}{new_id()}"
        own_id, session = None if body.store is False else response_id, None
        before, earlier, known = list[dict[str, Any]](), None, list[dict[str, Any]]()
        instructions = int(bool(body.instructions))  # number of messages that `instructions` make
        notes, continues = await self._notes(request, body), Continues(previous=body.previous_response_id)
        if body.previous_response_id is not None:
            decision, before = await _messages_before(request, body.previous_response_id)
            known = _tools_of_chain(decision)
            notes |= call_facts([*known, *sent_tools(body.sent_fields)])
            session, conversation = decision.query.session or decision.id, decision.query.continues.conversation
            continues = replace(continues, chain=(decision.id, *decision.query.continues.chain)[:MOST_LINKS])
            if conversation is not None and decision.query.api_key == caller_of(request).key:
                earlier = conversation, instructions + len(before) - 1  # the stored hash excludes the answer
        sent, quoted = await _replace_references(request, body.input)
        continues = replace(continues, quoted=tuple(quoted))
        skip = instructions + len(before)
        fields = {**body.sent_fields, "input": sent}
        chat, ignored = await self._chat(request, fields, before=before, known=known, skip=skip)
        messages = chat.fields["messages"]
        if len(messages) == skip:
            raise InvalidInput("no item of the input is a message", field="input", remedy="send a question or a result")
        if before and messages[skip - 1].get("tool_calls"):
            skip, notes[REPEATS] = skip - 1, True
        if body.store is not False:
            notes |= own_turn_facts(messages[skip:]) | _item_tool_facts(sent, known=known)
        others = {name: note for name, note in notes.items() if note not in (None, [], {})}
        named = None if named_id else False
        facts = Sent(surface="responses", named_id=named, ignored=tuple(ignored), others=others)
        ids: dict[str, str | None] = {"decision_id": response_id, "session": session, "own_id": own_id}
        more: dict[str, Any] = {"earlier": earlier, "sent": facts, "continues": continues, **ids}
        return await self._question(request, body, chat=chat, **more)

    @reads_body
    def _notes(self, _request: Request, body: ResponseBody) -> dict[str, Json]:
        return body.notes

    @reads_body
    def _chat(
        self,
        request: Request,
        fields: Mapping[str, Any],
        *,
        before: Sequence[dict[str, Any]],
        known: Sequence[Mapping[str, Any]],
        skip: int,
    ) -> tuple[Chat, list[str]]:
        """Returns (the chat of a response, names of fields that it lacks). skip: number of messages before input."""
        sent, ignored = chat_of_items(fields, before=before, known=known)
        passed = bool(router_of(request).service.passing)
        return read_chat(sent, path="input", skip=skip, passed=passed), short_names(ignored)

    @reads_body
    def _question(self, request: Request, /, body: ResponseBody, *, chat: Chat, **more: Any) -> ChatQuestion:
        conversation = Conversation(fields=chat.fields, encoding=chat.encoding)
        return chat_question(request, body, chat=chat, conversation=conversation, **more)


async def _messages_before(request: Request, response_id: str) -> tuple[Decision, list[dict[str, Any]]]:
    """Returns (decision of a response, its conversation without `instructions`); the answer is the last message. Raises
    NotFound, and InvalidInput if there is no answer yet, or a text of the conversation is not stored.
    """
    tenant = caller_of(request).tenant or "default"
    # Even a key for all tenants must not copy the texts of one tenant into a conversation of another.
    record = await response_record(request, response_id, field=_PREVIOUS, tenant=tenant)
    if record.outcome is None and record.decision.query.text:
        remedy = f"wait for it: GET /v1/responses/{response_id}"
        raise InvalidInput("this response has no answer yet", field=_PREVIOUS, remedy=remedy)
    store = router_of(request).store
    messages = await reads_of(request).run(lambda: conversation_of(store, record.decision))
    return record.decision, messages


def conversation_of(store: DecisionStore, last: Decision) -> list[dict[str, Any]]:
    """The messages of a chain up to its last answer, by one query for 32 responses. Raises InvalidInput."""
    turns, size = [(last, _own_messages(last))], 0
    while ids := [*map(DecisionId, turns[-1][0].query.continues.chain)]:
        found = store.decisions_by_id(ids)
        for key in ids:
            decision, _ = found.get(key, (None, ""))
            if not isinstance(decision, Decision):
                raise _lost_error(f"the earlier response {key} was deleted")
            turns.append((decision, _own_messages(decision)))
            size += len(json.dumps(turns[-1][1], ensure_ascii=False))
        if len(turns) > MOST_TURNS or size > MOST_CHARACTERS:
            raise _lost_error(f"the conversation has more than {MOST_TURNS} responses or {MOST_CHARACTERS} characters")
    outcomes = store.outcomes_by_id([decision.id for decision, _ in turns])
    messages: list[dict[str, Any]] = []
    for decision, said in reversed(turns):
        if decision.query.sent.others.get(REPEATS) and messages:
            messages.pop()
        messages += said
        outcome = outcomes.get(decision.id)
        if isinstance(outcome, Outcome):
            messages += _answer_messages(store, outcome)
    return messages


def own_turn_facts(messages: Sequence[Mapping[str, Any]]) -> dict[str, Json]:
    """Returns {SAID: ...} for `Sent.others`; {} if the query's text is the only message."""
    match messages:
        case [{"role": "user", "content": str(text), **more}] if not more and text.strip() and len(text) <= MAX_TEXT:
            return {}
    size = len(json.dumps(messages, ensure_ascii=False))
    return {SAID: [dict(message) for message in messages] if size <= MOST_SAID else size}


def _item_tool_facts(sent: Input, *, known: Sequence[dict[str, Any]]) -> dict[str, Json]:
    """Returns {ITEM_TOOLS: ...} for `Sent.others`; {} if no item has brought tools."""
    new = item_tools(sent)
    tools = storable_tools([*(tool for tool in known if tool not in new), *new])
    size = len(json.dumps(tools, ensure_ascii=False))
    kept: Json = storable_field(tools, field="input")[0] if size <= MOST_SAID else size
    return {ITEM_TOOLS: kept} if tools else {}


def _tools_of_chain(decision: Decision) -> list[dict[str, Any]]:
    """The tools that items of a chain have brought. Raises InvalidInput if they are not stored."""
    kept = decision.query.sent.others.get(ITEM_TOOLS)
    if isinstance(kept, int):
        raise _lost_error(f"the tools in items of {decision.id} have {kept} characters, and {MOST_SAID} are kept")
    return cast(list[dict[str, Any]], kept) if isinstance(kept, list) else []


def _lost_error(message: str) -> InvalidInput:
    return InvalidInput(message, field=_PREVIOUS, remedy="send the whole conversation as input")


def _own_messages(decision: Decision) -> list[dict[str, Any]]:
    """The messages of a response's own turn. Raises InvalidInput if they are not stored."""
    query = decision.query
    question, stored = query.asked or query.text, query.sent.others.get(SAID)
    if not question:
        raise _lost_error(f"the texts of the response {decision.id} were erased, or never stored (log.text)")
    if isinstance(stored, int):
        raise _lost_error(f"the messages of {decision.id} have {stored} characters, and {MOST_SAID} are kept")
    if isinstance(stored, list):
        return cast(list[dict[str, Any]], stored)
    return [{"role": "user", "content": question}]


def _answer_messages(store: DecisionStore, outcome: Outcome) -> list[dict[str, Any]]:
    """The answer as a message of an assistant; [] if it is empty."""
    replied = message_of(outcome)
    text, calls = outcome.answer or replied.get("refusal") or None, replied.get("tool_calls")
    turns = [step.value for step in outcome.trace if isinstance(step, Branch) and step.rule == TOOL_TURN]
    if calls and turns:  # the outcome has the answer of the last turn; the message with the calls is in the first one
        key, text = DecisionId(turns[0].partition(":")[0]), None
        turn, _ = store.decisions_by_id([key]).get(key, (None, ""))
        if isinstance(turn, Decision) and turn.query.sent.others.get(REPEATS) and turn.query.text:
            return _own_messages(turn)[:1]
    if not text and not calls:
        return []
    return [{"role": "assistant", "content": text, **reasoning_in(replied), **({"tool_calls": calls} if calls else {})}]


async def _replace_references(request: Request, sent: Input) -> tuple[Input, list[str]]:
    """Returns (the input with stored items in place of references, possible ids of the responses that made its items).

    Raises Unsupported.
    """
    if isinstance(sent, str):
        return sent, []
    named = [str(item["id"]) for item in sent if item.get("id")]
    quoted = dict.fromkeys(key for item_id in named for key in possible_decision_ids(item_id))
    items = list(sent)
    places = [place for place, item in enumerate(items) if is_reference(item)]
    for place in places:
        item_id = str(items[place].get("id"))
        item = await _stored_item(request, item_id) if len(places) <= _MOST_REFERENCES else None
        if item is None and not item_id.startswith("rs_"):
            message = f"{item_id!r:.80} is not an item of a stored response of yours"
            if len(places) > _MOST_REFERENCES:
                message = f"{len(places)} items are references, and {_MOST_REFERENCES} are read"
            remedy = "send the item itself in place of the reference"
            raise Unsupported(message, field=f"input.{place}.id", remedy=remedy)
        items[place] = item or {"type": "reasoning"}
    return items, list(quoted)[-MOST_LINKS:]


async def _stored_item(request: Request, item_id: str) -> dict[str, Any] | None:
    tenant = caller_of(request).tenant or "default"
    item = None
    for decision_id in possible_decision_ids(item_id):
        with suppress(NotFound):
            record = await response_record(request, decision_id, tenant=tenant)
            output = stored_response(request, record)["output"] if record.decision.query.text else ()
            item = next((candidate for candidate in output if candidate["id"] == item_id), item)
    return item

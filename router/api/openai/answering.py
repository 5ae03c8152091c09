"""Answers behind OpenAI's interface: a question is decided, committed and handed to a worker, whatever the door.

A door (chat completions, responses) reads a request and writes the reply, whole or in pieces; what is between is here.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from fastapi import Request
from fastapi.responses import Response

from ragbandit.router.api.dependencies import CallerGone, awaited, reads_of, router_of
from ragbandit.router.api.endpoints.routing import decide, paced
from ragbandit.router.api.endpoints.streaming import EventStream, PendingAnswer, want_events
from ragbandit.router.api.openai.chats import Chat
from ragbandit.router.api.openai.errors import AnswerTimeout, error_in_reply, fault_of
from ragbandit.router.api.openai.requests import OpenAIBody, query_of
from ragbandit.router.api.schemas.replies import headers
from ragbandit.router.api.schemas.responses import JsonReply, refusal
from ragbandit.router.serving.batching import SERVE_S
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.decisions.tool_turns import TOOL_TURN, next_turn
from ragbandit.shared.errors import NotReady, RagBanditError
from ragbandit.shared.types import Decision, DeltaPiece, Json, Outcome, Query, StatusNote, TextPiece

log = logging.getLogger("ragbandit.api")

#: an arm may go on for the seconds of its budget, and the question has waited for a worker before, seconds
_WAITING_S: Final = 30.0


class ReplyStream(Protocol):
    """Events of one reply in pieces, each as its bytes."""

    def begin(self) -> Sequence[bytes]:
        """The first events, before there is an answer."""

    def of(self, event: TextPiece | DeltaPiece | StatusNote | None) -> Sequence[bytes]:
        """The events for this one of the answer; None: nothing has come for a while."""

    def end(self, outcome: Outcome, *, saved: float | None) -> Sequence[bytes]:
        """The last events of an answer that came."""

    def failure(self, error: Mapping[str, Any]) -> Sequence[bytes]:
        """The last events of an answer that failed. error: as OpenAI has it."""


async def answered(
    request: Request,
    body: OpenAIBody,
    *,
    chat: Chat,
    key: str | None,
    named: bool,
    whole: Callable[..., Mapping[str, Any]],
    stream: Callable[..., ReplyStream],
    session: str | None = None,
    facts: Mapping[str, Json] | None = None,
) -> Response:
    """The reply to a question: it is decided, and a worker answers it.

    chat: what it asks for. key: the id that the decision is to have. named: the caller chose that, and may ask for it
    again. whole: writes the reply of (decision, outcome, base=URL of this service, saved=dollars or None). stream: the
    events of the reply to (decision, base=...). session: the conversation, where no header names one. facts: what else
    is kept of the request. Raises what is wrong before there is a decision. What fails later is replied so that clients
    do not ask again by themselves: they would have a second decision made for the same question.
    """
    query = query_of(request, body, chat=chat, key=key, session=session, facts=facts or {})
    query = await paced(request, await _with_turn(request, query, results=chat.results))
    router = router_of(request)
    with router.answers.place(query):
        query = await awaited(request, router.conversations.submit(chat.turns, query=query), what="Idempotency-Key")
        decision, _ = await decide(request, query, run_by="worker")
        request.state.named = named
        try:
            if body.stream:
                await want_events(request, decision)
            # Not given up with the caller: the decision is stored, and the recovery loop would ask for its answer.
            waiting = await asyncio.wait_for(asyncio.wrap_future(router.answers.submit(decision)), SERVE_S)
        except RagBanditError as error:
            return _failed_reply(request, decision, error)
    answer = PendingAnswer(request=request, decision=decision, waiting=waiting, limit_s=_limit_s(router))
    base = str(request.base_url)
    if body.stream:
        return EventStream(_streamed(answer, stream=stream(decision, base=base)), headers=headers(decision))
    try:
        outcome = await _outcome(answer)
    except RagBanditError as error:
        return _failed_reply(request, decision, error)
    finally:
        answer.forget()
    saved = router.savings.of(outcome.cost)
    return JsonReply(whole(decision, outcome, base=base, saved=saved), headers=headers(decision))


async def _with_turn(request: Request, query: Query, *, results: Sequence[str]) -> Query:
    """The query; one that brings the results of tools to an arm that called them is answered by that arm.

    results: ids of the calls. It is drawn as any other where the loop had too many turns or took too long, or the
    caller may not have, or does not want, that arm. Raises StoreError.
    """
    if not results:
        return query
    router, settings = router_of(request), router_of(request).settings.conversation
    find = partial(next_turn, router.database, results, tenant=query.tenant)
    turn = await reads_of(request).run(find)
    if turn is None or turn.number > settings.tool_turns or time.time() > turn.began_at + settings.tool_turns_s:
        return query
    if turn.arm not in router.service.passing or (query.arms is not None and turn.arm not in query.arms):
        return query
    return replace(query, arms=(turn.arm,), forced=True, request={**query.request, TOOL_TURN: turn.facts})


def _limit_s(router: Router) -> float:
    return max(router.settings.server.answer_wait_s, router.settings.budget.seconds + _WAITING_S)


async def _outcome(answer: PendingAnswer) -> Outcome:
    """The outcome, once it has an answer. Raises the error that the reply is to be; CallerGone."""
    outcome: Outcome | None = None
    try:
        async with aclosing(answer.events()) as events:  # type: ignore[type-var] # a generator
            async for event in events:
                outcome = event if isinstance(event, Outcome) else outcome
    except TimeoutError:
        raise _ending(answer) from None
    return _checked(answer, outcome)


def _checked(answer: PendingAnswer, outcome: Outcome | None) -> Outcome:
    """Raises what is wrong with an outcome that is no answer."""
    if outcome is None:
        message = f"no answer within {answer.limit_s:g} s; the decision stands, and its answer may come"
        raise AnswerTimeout(message, remedy=f"ask for it: GET /v1/decisions/{answer.decision.id}")
    fault = fault_of(answer.decision, outcome)
    if fault is not None:
        raise fault
    return outcome


def _ending(answer: PendingAnswer) -> NotReady:
    remedy = f"ask for the answer in a while: GET /v1/decisions/{answer.decision.id}"
    return NotReady("the service is shutting down; the decision stands", remedy=remedy)


def _failed_reply(request: Request, decision: Decision, error: RagBanditError) -> Response:
    """The reply to a question that was decided, and whose answer failed."""
    reply = refusal(error, scope=request.scope)
    reply.headers.update(headers(decision))
    reply.headers["x-should-retry"] = "false"
    return reply


async def _streamed(answer: PendingAnswer, *, stream: ReplyStream) -> AsyncIterator[bytes]:
    """The events of a stream to its end; nothing more once the caller has gone."""
    outcome: Outcome | None = None
    try:
        for part in stream.begin():
            yield part
        async with aclosing(answer.events()) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Outcome):
                    outcome = event
                    continue
                for part in stream.of(event):
                    yield part
        outcome = _checked(answer, outcome)
        for part in stream.end(outcome, saved=router_of(answer.request).savings.of(outcome.cost)):
            yield part
    except CallerGone:
        return
    except Exception as error:  # the reply has begun: what failed can only be said in it
        for part in stream.failure(_shown(error, answer=answer)):
            yield part
    finally:
        answer.forget()


def _shown(error: Exception, *, answer: PendingAnswer) -> dict[str, Any]:
    """An error as a stream has it."""
    if isinstance(error, TimeoutError):
        error = _ending(answer)
    elif not isinstance(error, RagBanditError):
        log.error("unexpected error in a stream", extra={"action": "error"}, exc_info=error)
        error = RagBanditError("the service failed; its log has the traceback")
    return error_in_reply(error)

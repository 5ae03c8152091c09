"""Answers behind OpenAI's interface: a question is decided, committed and handed to a worker, whatever the door.

A door (chat completions, responses) reads a request and writes the reply, whole or in pieces; what is between is here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Protocol

from fastapi import Request
from fastapi.responses import Response

from ragbandit.router.api.dependencies import CallerGone, awaited, caller_of, router_of
from ragbandit.router.api.endpoints.routing import decide, traced_links
from ragbandit.router.api.openai.errors import AnswerTimeout, error_in_reply, fault_of
from ragbandit.router.api.openai.models import choice_of
from ragbandit.router.api.openai.open_webui import links_of
from ragbandit.router.api.openai.requests import OpenAIBody, query_of_body
from ragbandit.router.api.schemas.replies import headers
from ragbandit.router.api.schemas.responses import JsonReply, refusal
from ragbandit.router.api.security.ownership import noted_prices, permitted_arms
from ragbandit.router.api.streaming.answer_events import PendingAnswer, want_events
from ragbandit.router.api.streaming.event_stream import EventStream, with_pauses
from ragbandit.router.serving.batching.micro_batching import SERVE_S
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.decisions.links import LINKS
from ragbandit.shared.errors import NotReady, RagBanditError
from ragbandit.shared.types import Decision, Json, Message, Outcome, Query, StatusNote, TextPiece

log = logging.getLogger("ragbandit.api")

#: an arm may go on for the seconds of its budget, and the question has waited for a worker before, seconds
_WAITING_S: Final = 30.0


class ReplyStream(Protocol):
    """Events of one reply in pieces, each as its bytes."""

    def begin(self) -> Sequence[bytes]:
        """The first events, before there is an answer."""

    def of(self, event: TextPiece | StatusNote | None) -> Sequence[bytes]:
        """The events for this one of the answer; None: nothing has come for a while."""

    def end(self, outcome: Outcome, *, saved: float | None) -> Sequence[bytes]:
        """The last events of an answer that came."""

    def failure(self, error: Mapping[str, Any]) -> Sequence[bytes]:
        """The last events of an answer that failed. error: as OpenAI has it."""


class Door(Protocol):
    """How the replies of an endpoint are written. saved: in dollars; None: it is not known."""

    def whole(self, decision: Decision, outcome: Outcome, *, saved: float | None) -> Mapping[str, Any]:
        """The reply to a decision that was answered."""

    def stream(self, decision: Decision) -> ReplyStream:
        """The events of the reply to a decision that is being answered."""


def query_of(
    request: Request,
    body: OpenAIBody,
    *,
    key: str | None,
    session: str | None = None,
    facts: Mapping[str, Json] | None = None,
) -> Query:
    """The query of a request, still without its question and what was said before.

    key: the id that its decision is to have. session: its conversation, where no header names one. facts: what else is
    kept of it. Raises InvalidInput, ModelNotFound, Forbidden.
    """
    router, caller = router_of(request), caller_of(request)
    model, tenant = choice_of(body.model, router=router), caller.tenant or "default"
    links = traced_links(request, links_of(request.headers), traceparent=request.headers.get("traceparent"))
    named = None if model.arm is None else (model.arm,)
    return query_of_body(
        body,
        headers=request.headers,
        key=key,
        session=session,
        model=model,
        arms=permitted_arms(named, tenant=tenant, request=request, run_by="worker"),
        caller=caller,
        schema=router.settings.context,
        facts={LINKS: dict(links), **noted_prices(request, tenant=tenant), **(facts or {})},
    )


async def answered(
    request: Request, query: Query, *, turns: Sequence[Message], door: Door, in_pieces: bool, named: bool
) -> Response:
    """The reply to a question: it is decided, a worker answers it, the door writes it.

    turns: the conversation, the last of it the question. named: the caller chose the id, and may ask for it again.
    Raises what is wrong before there is a decision. What fails later is replied so that clients do not ask again by
    themselves: they would have a second decision made for the same question.
    """
    router = router_of(request)
    with router.answers.place(query):
        query = await awaited(request, router.conversations.submit(turns, query=query), what="Idempotency-Key")
        decision, _ = await decide(request, query, run_by="worker")
        request.state.named = named
        try:
            if in_pieces:
                await want_events(request, decision)
            # Not given up with the caller: the decision is stored, and the recovery loop would ask for its answer.
            waiting = await asyncio.wait_for(asyncio.wrap_future(router.answers.submit(decision)), SERVE_S)
        except RagBanditError as error:
            return _failed_reply(request, decision, error)
    answer = PendingAnswer(request=request, decision=decision, waiting=waiting, limit_s=_limit_s(router))
    if in_pieces:
        return EventStream(_streamed(answer, stream=door.stream(decision)), headers=headers(decision))
    try:
        outcome = await _outcome(answer)
    except RagBanditError as error:
        return _failed_reply(request, decision, error)
    finally:
        answer.forget()
    return JsonReply(door.whole(decision, outcome, saved=router.savings.of(outcome.cost)), headers=headers(decision))


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
        async with aclosing(with_pauses(answer.events())) as events:  # type: ignore[type-var]
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

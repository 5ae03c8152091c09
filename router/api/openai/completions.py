"""Chat completions: one question is decided, committed and handed to a worker; its answer comes whole or in pieces."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response

from ragbandit.router.api.dependencies import CallerGone, awaited, caller_of, router_of
from ragbandit.router.api.endpoints.routing import decide, traced_links
from ragbandit.router.api.openai.chunks import Chunks, Pieces
from ragbandit.router.api.openai.errors import as_openai_error
from ragbandit.router.api.openai.messages import turns_of
from ragbandit.router.api.openai.models import choice_of
from ragbandit.router.api.openai.open_webui import background_task, is_open_webui, links_of, task_answer
from ragbandit.router.api.openai.replies import ID_PREFIX, completion, task_completion
from ragbandit.router.api.openai.requests import ChatBody, query_of_chat
from ragbandit.router.api.schemas.replies import headers
from ragbandit.router.api.schemas.responses import JsonReply, error_json, refusal
from ragbandit.router.api.security.ownership import noted_prices, permitted_arms
from ragbandit.router.api.streaming.answer_events import PendingAnswer, want_events
from ragbandit.router.api.streaming.event_stream import EventStream, sent_at_once, with_pauses
from ragbandit.router.serving.batching.micro_batching import SERVE_S
from ragbandit.router.serving.checks.fields import new_id
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.decisions.links import LINKS
from ragbandit.shared.errors import ArmFailed, Conflict, NotReady, RagBanditError
from ragbandit.shared.types import CANCELLED, Decision, Outcome

log = logging.getLogger("ragbandit.api")

#: an arm may go on for the seconds of its budget, and the question has waited for a worker before, seconds
_WAITING_S: Final = 30.0


class AnswerTimeout(NotReady):
    """The answer is not there in time."""

    code = "ANSWER_TIMEOUT"
    status = 504


class Cancelled(Conflict):
    """The answer was cancelled."""

    code = "CANCELLED"


async def chat_reply(request: Request, body: ChatBody, *, key: str | None) -> Response:
    """The reply to a chat completion. key: the id that the caller chose for its decision.

    Raises what is wrong before there is a decision. What fails later is replied so that clients do not ask again by
    themselves: they would have a second decision made for the same question.
    """
    router = router_of(request)
    turns = turns_of(body.messages)
    task = background_task(request.headers, turns=turns)
    if task is not None:
        return _task_reply(body, text=task_answer(task, turns=turns))
    model, caller = choice_of(body.model, router=router), caller_of(request)
    tenant = caller.tenant or "default"
    links = traced_links(request, links_of(request.headers), traceparent=request.headers.get("traceparent"))
    query = query_of_chat(
        body,
        headers=request.headers,
        key=key,
        model=model,
        arms=permitted_arms(
            None if model.arm is None else (model.arm,), tenant=tenant, request=request, run_by="worker"
        ),
        caller=caller,
        schema=router.settings.context,
        facts={LINKS: dict(links), **noted_prices(request, tenant=tenant)},
    )
    with router.answers.place(query):
        query = await awaited(request, router.conversations.submit(turns, query=query), what="Idempotency-Key")
        decision, _ = await decide(request, query, run_by="worker")
        try:
            if body.stream:
                await want_events(request, decision)
            # Not given up with the caller: the decision is stored, and the recovery loop would ask for its answer.
            waiting = await asyncio.wait_for(asyncio.wrap_future(router.answers.submit(decision)), SERVE_S)
        except RagBanditError as error:
            return _failed_reply(request, decision, error)
    answer = PendingAnswer(request=request, decision=decision, waiting=waiting, limit_s=_limit_s(router))
    if body.stream:
        return EventStream(_streamed(answer, body=body), headers=headers(decision))
    try:
        outcome = await _outcome(answer)
    except RagBanditError as error:
        return _failed_reply(request, decision, error)
    finally:
        answer.forget()
    saved, base = router.savings.of(outcome.cost), str(request.base_url)
    return JsonReply(completion(decision, outcome, base=base, saved=saved), headers=headers(decision))


def _task_reply(body: ChatBody, *, text: str) -> Response:
    key, now = f"task-{new_id()}", time.time()
    if not body.stream:
        return JsonReply(task_completion(text, task_id=key, model=body.model, now=now))
    chunks = Chunks(
        f"{ID_PREFIX}{key}", created=int(now), model=body.model, include_usage=body.include_usage, fingerprint=None
    )
    return EventStream(sent_at_once(chunks.whole(text)), headers={})


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
    if outcome.status == "failed" and outcome.stop_reason == CANCELLED:
        raise Cancelled("the answer was cancelled", remedy="ask the question again")
    if outcome.status == "failed":
        message = f"the arm {answer.decision.arm!r} failed: {outcome.error or outcome.stop_reason}"
        raise ArmFailed(message, remedy=f"GET /v1/decisions/{answer.decision.id} has what it did")
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


async def _streamed(answer: PendingAnswer, *, body: ChatBody) -> AsyncIterator[bytes]:
    """The events of a stream, from the role to [DONE]; nothing more once the caller has gone."""
    decision, webui = answer.decision, is_open_webui(answer.request.headers)
    chunks = Chunks.of(decision, include_usage=body.include_usage)
    pieces = Pieces(chunks, notes=webui)
    outcome: Outcome | None = None
    try:
        yield chunks.role()
        async with aclosing(with_pauses(answer.events())) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Outcome):
                    outcome = event
                    continue
                for part in pieces.of(event):
                    yield part
        outcome = _checked(answer, outcome)
        saved, base = router_of(answer.request).savings.of(outcome.cost), str(answer.request.base_url)
        for part in pieces.settled() + chunks.end(decision, outcome, base=base, open_webui=webui, saved=saved):
            yield part
    except CallerGone:
        return
    except Exception as error:  # the reply has begun: what failed can only be said in it
        for part in chunks.failure(_shown(error, answer=answer)):
            yield part
    finally:
        answer.forget()


def _shown(error: Exception, *, answer: PendingAnswer) -> dict[str, Any]:
    """An error as the last event of a stream has it."""
    ours = error
    if isinstance(error, TimeoutError):
        ours = _ending(answer)
    elif not isinstance(error, RagBanditError):
        log.error("unexpected error in a stream", extra={"action": "error"}, exc_info=error)
        ours = RagBanditError("the service failed; its log has the traceback")
    assert isinstance(ours, RagBanditError)
    _, shown = as_openai_error(ours.status, error_json(ours)["error"])
    body: dict[str, Any] = shown["error"]
    return body

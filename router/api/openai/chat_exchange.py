"""The exchange behind a chat: decides the question, waits for its answer, and makes the reply, whole or in pieces."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import Response

from ragbandit.router.api.asking import decide, preview, with_budgets
from ragbandit.router.api.dependencies import CallerGone, await_future, reads_of, router_of
from ragbandit.router.api.endpoints.streaming import (
    STREAM_WAIT_S,
    AnswerEvent,
    AwaitedAnswer,
    EventStream,
    request_answer,
)
from ragbandit.router.api.openai import errors, requests
from ragbandit.router.api.schemas.question_headers import headers_of
from ragbandit.router.api.schemas.responses import JsonReply, decision_headers, refusal_reply
from ragbandit.router.config.sections import LONGEST_S
from ragbandit.router.replies.decisions import preview_json
from ragbandit.router.serving.abilities import unmet_needs
from ragbandit.router.serving.checks.questions import new_id
from ragbandit.router.serving.deciding.steps.rules import Rules
from ragbandit.router.storage.access.turn_sums import REACHED
from ragbandit.router.storage.decisions.continuing import ANSWER, RESULTS, EarlierTurn, earlier_turn
from ragbandit.shared.errors import Conflict, LimitReached, NotReady, RagBanditError
from ragbandit.shared.types import (
    DERIVED,
    ArmName,
    Decision,
    DeltaPiece,
    Outcome,
    Query,
    StatusNote,
    TextPiece,
)

log = logging.getLogger("ragbandit.api")
#: seconds after which a stream begins even without content, because proxies close silent connections. Until then the
#: service waits for the first content, so that an error can still set the HTTP status
HOLD_S: Final = 30.0
EVENTS: Final = "text/event-stream"


class ReplyStream(Protocol):
    """Makes the events of one streamed reply, as bytes: `ChatStream`, `MessageStream`, `ResponseStream`."""

    @property
    def decision(self) -> Decision: ...

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer was made."""

    def events_for(self, event: TextPiece | DeltaPiece | StatusNote | None) -> list[bytes]:
        """The events to send for one event of the answer. event: None if nothing has come for PING_S seconds."""

    def end(self, outcome: Outcome, *, saved: float | None) -> list[bytes]:
        """The last events. saved: dollars that the answer saved; None if unknown."""

    def failure(self, error: Mapping[str, Any]) -> list[bytes]:
        """The events of a failure. error: in OpenAI's form."""


Body = TypeVar("Body", bound=requests.OpenAIBody)


class ChatDoor(ABC, Generic[Body]):
    """An interface for chats: `Completions` (endpoints.py), and `Messages` and `Responses` of additions. base: URL of
    this service.
    """

    #: codes of errors that are sent as events even before the first event, for clients that ignore the HTTP status
    error_events: ClassVar[Collection[str]] = ()

    @abstractmethod
    def read(self, request: Request, /, body: Body, *, key: str | None) -> Awaitable[requests.ChatQuestion]:
        """The question of a request, for its endpoint. key: header Idempotency-Key. Raises as `chat_question`."""

    @abstractmethod
    def whole_reply(self, decision: Decision, outcome: Outcome, *, base: str, saved: float | None) -> Mapping[str, Any]:
        """The whole reply. saved: dollars that the answer saved; None if unknown."""

    @abstractmethod
    def stream(self, decision: Decision, *, base: str) -> ReplyStream:
        """The reply in pieces."""


@dataclass(frozen=True, slots=True)
class ChatExchange:
    """Answers a chat in the form of its door."""

    door: ChatDoor[Any]
    request: Request
    question: requests.ChatQuestion

    async def reply(self) -> Response:
        """Decide the question, have a worker answer it, and reply. Raises errors that come before the decision. Later
        errors become replies that ask the client not to repeat the request: a repetition would make another decision.
        """
        request, query = self.request, self.question.query
        router = router_of(request)
        server, budget = router.settings.server, router.settings.budget
        limit_s = max(server.answer_wait_s, budget.seconds + STREAM_WAIT_S)
        live = self.question.streamed
        with router.process.answers.reserve(query):
            if headers_of(request).is_preview:
                return await self._preview()
            decision, is_own = await self._decide()
            try:
                answer = await request_answer(request, decision, live=live, limit_s=limit_s, is_own=is_own)
            except RagBanditError as error:
                return self._failure(decision, error)
        if live:

            def error_reply(error: RagBanditError) -> Response:
                return self._failure(answer.decision, error)  # not `decision`: after a failover another one answers

            return EventStream(self._reply_events(answer), answer=answer, error_reply=error_reply)
        try:
            outcome = _checked_outcome(answer, await answer.outcome())
        except TimeoutError:
            return self._failure(answer.decision, _shutdown_error(answer))
        except RagBanditError as error:
            return self._failure(answer.decision, error)
        finally:
            answer.forget()
        saved = router.process.savings.of(outcome.cost)
        body = self.door.whole_reply(answer.decision, outcome, base=str(request.base_url), saved=saved)
        return JsonReply(body, headers=decision_headers(answer.decision))

    async def _preview(self) -> Response:
        query = await self._final_query()
        if isinstance(query, Decision):
            return JsonReply(preview_json(query))
        return await preview(self.request, query, run_by="worker")

    async def _decide(self) -> tuple[Decision, bool]:
        """Decide and commit the question. Returns (decision, whether only this request can ask for the answer)."""
        query = await self._final_query()
        if isinstance(query, Decision):
            return query, False
        try:
            decision, _ = await decide(self.request, query, run_by="worker")
        except (Conflict, LimitReached) as error:
            if error.field not in (RESULTS, ANSWER, REACHED):
                raise
            # Another request has meanwhile brought the results, continued the answer, or reached the limit.
            return await self._decide()
        return decision, query.id is None or query.sent.named_id is False

    async def _final_query(self) -> Query | Decision:
        """The question with budgets applied, and rewritten; the stored decision if the same turn came before."""
        request, asked_for = self.request, self.question.query
        router, earlier = router_of(request), await self._earlier_turn()
        if earlier is not None and (same := earlier.same) is not None:
            return (await reads_of(request).run(lambda: router.decision(same))).decision
        query = await with_budgets(request, self._query_after(earlier))
        is_spent = query.terms.is_spent or query.reached_limit is not None
        if query.arm_by == "calls" and is_spent:
            query = _free_turn(query, arms=asked_for.arms)
        made = query if headers_of(request).is_preview else router.conversations.rewrite(query)
        if isinstance(made, Query):
            return made
        rewritten: Query = await await_future(request, made, name="Idempotency-Key")
        return rewritten

    @property
    def _lacks_session(self) -> bool:
        """Whether the chat belongs to a task that no id names, so that only its last answer can identify the task."""
        query, settings = self.question.query, router_of(self.request).settings.conversation
        return settings.is_task(query.unit, door=query.sent.surface) and query.session is None and query.arm_by is None

    async def _earlier_turn(self) -> EarlierTurn | None:
        calls, answered, lacks_session = self.question.calls, self.question.answered, self._lacks_session
        if not calls and (answered is None or not lacks_session):
            return None
        router = router_of(self.request)
        now = router.service.clock()
        find = partial(
            earlier_turn,
            router.database,
            self.question.query,
            calls=calls,
            answered=answered,
            calls_since=now - router.settings.conversation.tool_turns_s,
            chats_since=now - LONGEST_S if lacks_session else None,
            arms=self._arms_for_results() if calls else (),
            turns_most=router.settings.conversation.tool_turns,
        )
        return await reads_of(self.request).run(find)

    def _arms_for_results(self) -> list[ArmName]:
        """The arms that may get the results of their own tool calls."""
        query, service = self.question.query, router_of(self.request).service
        passing, book = service.passing, service.step(Rules).book
        permitted = [arm for arm in passing if book.permits(query, arm=arm)]
        return [arm for arm in permitted if not unmet_needs(query, arms=(arm,), passing=passing)]

    def _query_after(self, earlier: EarlierTurn | None) -> Query:
        """The query as the turn after `earlier`. Results of tools go to the arm that called them."""
        query = self.question.query
        if earlier is None:
            return replace(query, session=f"{DERIVED}{new_id()}") if self._lacks_session else query
        continues = replace(query.continues, loop=earlier.loop, answer=earlier.answer)
        session = earlier.session if query.session is None else query.session
        query = replace(query, continues=continues, session=session)
        return query if earlier.arm is None else replace(query, arms=(earlier.arm,), arm_by=query.arm_by or "calls")

    def _failure(self, decision: Decision, error: RagBanditError) -> Response:
        scope = self.request.scope
        if self.question.streamed and error.code in self.door.error_events:
            events = self.door.stream(decision, base=str(self.request.base_url)).failure(errors.error_in_reply(error))
            return Response(b"".join(events), media_type=EVENTS, headers=decision_headers(decision))
        if isinstance(error, errors.ServerFault):  # the path is removed, so that no door renames the server's fields
            scope = {**scope, "path": ""}
        reply = refusal_reply(error, scope=scope)
        reply.headers.update(decision_headers(decision))
        may_repeat = error.status == 429
        if isinstance(error, errors.ServerFault):
            may_repeat = error.may_repeat
            if error.status == 422:
                reply.status_code = 422  # `refusal_reply` turns 422 into 400
        if not may_repeat:
            reply.headers["x-should-retry"] = "false"
        return reply

    def _events(self, event: AnswerEvent | None, reply: ReplyStream, answer: AwaitedAnswer) -> list[bytes]:
        if not isinstance(event, Outcome):
            return reply.events_for(event)
        outcome = _checked_outcome(answer, event)
        return reply.end(outcome, saved=router_of(self.request).process.savings.of(outcome.cost))

    async def _reply_events(self, answer: AwaitedAnswer) -> AsyncIterator[bytes]:
        """The events of the reply. Raises CallerGone, and the error of an answer that fails before its first event."""
        begin_at = time.monotonic() + HOLD_S
        base = str(self.request.base_url)
        reply, has_begun = self.door.stream(answer.decision, base=base), False
        group: Sequence[AnswerEvent] = ()
        try:
            async with aclosing(answer.events()) as events:  # type: ignore[type-var] # a generator
                async for group in events:
                    if reply.decision is not answer.decision:
                        reply = self.door.stream(answer.decision, base=base)
                    if not group and not has_begun and time.monotonic() < begin_at:
                        continue
                    data = b"".join([part for event in group or (None,) for part in self._events(event, reply, answer)])
                    if data:
                        has_begun = True
                        yield data
            if not (group and isinstance(group[-1], Outcome)):
                _checked_outcome(answer, None)
        except CallerGone:
            raise
        except Exception as error:
            error = _shutdown_error(answer) if isinstance(error, TimeoutError) else error
            if not has_begun:
                raise error from None
            yield b"".join(reply.failure(_error_in_stream(error, has_content=reply.has_begun)))


def _free_turn(turn: Query, *, arms: tuple[str, ...] | None) -> Query:
    """A turn with results of tools that may leave the arm that called them. arms: the caller's arms; None for all."""
    (arm,), loop = turn.arms or ("",), turn.continues.loop
    assert loop is not None
    continues = replace(turn.continues, loop=replace(loop, called_by=arm))
    return replace(turn, arms=arms, arm_by=None, continues=continues)


def _checked_outcome(answer: AwaitedAnswer, outcome: Outcome | None) -> Outcome:
    """The outcome. Raises the error of a failed or late answer. outcome: None if it did not come in time."""
    if outcome is None:
        message = f"no answer within {answer.limit_s:g} s; the decision stands, and its answer may come"
        raise errors.AnswerTimeout(message, remedy=f"ask for the answer: GET /v1/decisions/{answer.decision.id}")
    fault = errors.fault_of(answer.decision, outcome)
    if fault is not None:
        raise fault
    return outcome


def _shutdown_error(answer: AwaitedAnswer) -> NotReady:
    remedy = f"ask for the answer in a while: GET /v1/decisions/{answer.decision.id}"
    return NotReady("the service is shutting down; the decision stands", remedy=remedy)


def _error_in_stream(error: Exception, *, has_content: bool) -> dict[str, Any]:
    """The error for a stream that has begun. Its status is sent already, so only an event can report the failure."""
    fault = error if isinstance(error, RagBanditError) else None
    if fault is None:
        log.error("unexpected error in a stream", extra={"action": "error"}, exc_info=error)
        fault = RagBanditError("the service failed; its log has the traceback")
    shown = errors.error_in_reply(fault)
    if has_content and isinstance(fault, errors.ServerFault):
        shown["message"] += ". A part of the answer had been sent, so no other arm was asked"
    return shown

"""Server-sent events: a reply that ends when its events end, with comments while there is nothing to say."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ragbandit.router.api.dependencies import CallerGone, Waiter, reads_of, router_of
from ragbandit.router.api.schemas.replies import answer_json, headers, json_of, pending_json, route_json
from ragbandit.router.api.schemas.responses import error_json
from ragbandit.router.queue.streams import ReadStream
from ragbandit.router.serving.batching import SERVE_S
from ragbandit.shared.errors import NotReady, RagBanditError, StoreError
from ragbandit.shared.failures import link_of
from ragbandit.shared.message_parts import MessageParts
from ragbandit.shared.types import Decision, DecisionId, DeltaPiece, Outcome, StatusNote, TextPiece

AnswerEvent = TextPiece | DeltaPiece | StatusNote | Outcome

log = logging.getLogger("ragbandit.api")

#: A comment goes out after that long without anything else, seconds. Proxies close connections that are silent; and a
#: client that has hung up looks like one that has only closed its sending side, until two writes to it have failed.
PING_S: float = 2.0
PING: Final = b": ping\n\n"
#: a stream waits that much longer than an arm may take, unless told otherwise: the question waits for a worker, seconds
STREAM_WAIT_S: Final = 30.0
#: cancellations under way: asyncio itself does not keep a task alive
_cancelling: set["asyncio.Task[None]"] = set()


class AnswerChanged(RagBanditError):
    """The answer is not the one of which a part was given out."""

    code = "ANSWER_CHANGED"
    status = 500


@dataclass(kw_only=True, slots=True)
class PendingAnswer:
    """A decision whose answer a worker has been asked for, and the request that waits for it."""

    request: Request
    #: the one that answers: another arm's if the drawn arm failed before its first content
    decision: Decision
    #: completed with the outcome
    waiting: "Future[Outcome]"
    #: how long the outcome is waited for
    limit_s: float
    #: the worker gives the answer out while it writes
    live: bool
    #: the request had the decision made, under an id of ours: nobody else can ask for its answer
    is_own: bool
    #: pieces of an answer that this process writes itself
    local: ReadStream | None = None

    async def events(self) -> AsyncIterator[list[AnswerEvent]]:
        """The events of the answer, those together that have come together; [] if none has come for PING_S seconds.

        The last is the Outcome, unless limit_s seconds pass without one.

        The pieces together are the outcome's answer. They come while the arm writes if it is `live`; else, and where
        Redis or the arm has no pieces to give, the answer is one piece. A caller that goes away cancels the answer if
        it is its own (`is_own`), and no other request of this process waits for it. Close the iterator
        (contextlib.aclosing) when you stop before its end: that counts as going away.

        Raises CallerGone when the caller closes the connection, AnswerChanged when what was given out is not a
        beginning of the answer (its worker died, and the arm wrote something else when it was run again), TimeoutError
        when the service ends.
        """
        router, sent, stream = router_of(self.request), _Sent(self), None
        changed, done = Waiter(self.request), False
        self.waiting.add_done_callback(lambda _: changed.note())
        try:
            stream = await self._stream(wake=changed.note)
            loop = asyncio.get_running_loop()
            give_up = loop.time() + self.limit_s
            while not self.waiting.done():
                if news := sent.news(stream):
                    if stream is not None and stream.linked is not None:
                        await self.follow(stream.linked)
                    yield news
                if await changed.wait(until=min(give_up, loop.time() + PING_S)):
                    continue
                if loop.time() >= give_up:
                    done = True
                    return
                yield []
            outcome = self.waiting.result()
            await self.follow(outcome.decision_id)
            for event in sent.rest(outcome):
                yield [event]
            done = True
        finally:
            if stream is not None and stream is not self.local and router.streams is not None:
                router.streams.leave(stream)
            if not done and not self.waiting.done():
                _abandon(self)

    async def _stream(self, *, wake: Callable[[], None]) -> ReadStream | None:
        """The pieces of the answer, of this process or through Redis; None if it comes whole."""
        streams = router_of(self.request).streams
        if self.local is not None:
            self.local.attach(wake)
        elif self.live and streams is not None and not self.waiting.done():
            return await reads_of(self.request).run(partial(streams.subscribe, self.decision.id, wake=wake))
        return self.local

    async def follow(self, decision_id: DecisionId) -> None:
        """Go on with the decision that answers in place of this one, if it is another."""
        if decision_id == self.decision.id:
            return
        router = router_of(self.request)
        known = await reads_of(self.request).run(lambda: router.store.decisions_by_id([decision_id]))
        decision, _ = known[decision_id]
        if isinstance(decision, StoreError):
            raise decision
        self.decision = decision
        link = link_of(decision.query.request)
        self.request.app.state.metrics.failovers.labels(arm=link["arm"], reason=link["reason"]).inc()

    def forget(self) -> None:
        """Stop waiting for the outcome."""
        router_of(self.request).answers.remove(self.decision.id, self.waiting)


async def asked(request: Request, decision: Decision, *, live: bool, limit_s: float, is_own: bool) -> PendingAnswer:
    """The answer to a decision, which a worker is asked for. Call `forget` at the end. is_own: as in PendingAnswer.

    It is asked for also when the caller has gone: the decision is stored, and the recovery loop would ask for it.
    Raises StoreError, Overloaded, NotReady.
    """
    router = router_of(request)
    begun = None if router.inline is None else router.inline.begin(decision, live=live)
    if begun is not None:
        waiting, local = begun
        return PendingAnswer(
            request=request, decision=decision, waiting=waiting, limit_s=limit_s, live=live, is_own=is_own, local=local
        )
    if live and (streams := router.streams) is not None:
        await reads_of(request).run(partial(streams.want, decision.id))
    try:
        waiting = await asyncio.wait_for(asyncio.wrap_future(router.answers.submit(decision)), SERVE_S)
    except TimeoutError as error:
        message = f"no worker could be asked within {SERVE_S:g} s; the decision {decision.id} stands"
        raise NotReady(message, remedy="send the same request with this id to get its answer") from error
    return PendingAnswer(request=request, decision=decision, waiting=waiting, limit_s=limit_s, live=live, is_own=is_own)


class _Sent:
    """What of an answer was given out, and what may follow it."""

    def __init__(self, pending: PendingAnswer) -> None:
        self._pending = pending
        self._text = ""
        #: message fields that were given out, without the text
        self._message = MessageParts()
        #: number of the run that is given out, and its whole text so far
        self._attempt, self._said = 0, ""

    def news(self, stream: ReadStream | None) -> list[AnswerEvent]:
        """What has come since. Raises AnswerChanged."""
        events: list[AnswerEvent] = []
        while stream is not None and (entry := stream.take()) is not None:
            attempt, event = entry
            if attempt != self._attempt:
                if self._message.whole:
                    raise self._changed()
                self._attempt, self._said = attempt, ""
            if isinstance(event, DeltaPiece):
                self._message.add(event.delta)
            if isinstance(event, TextPiece):
                self._said += event.text
                if self._text.startswith(self._said):
                    continue  # a second run, which repeats the text of the first one
                event = TextPiece(text=self._beyond(self._said))
            events.append(event)
        return events

    def rest(self, outcome: Outcome) -> list[AnswerEvent]:
        """What is still to come, the outcome last. Raises AnswerChanged."""
        events: list[AnswerEvent] = []
        if outcome.answer is not None and (rest := self._beyond(outcome.answer)):
            events.append(TextPiece(text=rest))
        message = outcome.reply.get("message")
        delta = self._message.rest(message if isinstance(message, Mapping) else {})
        if delta is None:
            raise self._changed()
        return [*events, *([DeltaPiece(delta=delta)] if delta else []), outcome]

    def _beyond(self, text: str) -> str:
        if not text.startswith(self._text):
            raise self._changed()
        rest, self._text = text[len(self._text) :], text
        return rest

    def _changed(self) -> AnswerChanged:
        return AnswerChanged(
            f"the answer to decision {self._pending.decision.id} was written again in other words, since a part of the "
            "service failed while it was written; what was sent before does not stand",
            remedy="ask again with the same id to get the whole answer",
        )


def _abandon(answer: PendingAnswer) -> None:
    """The caller has gone: cancel the answer, unless it may still be asked for."""
    request, decision, router = answer.request, answer.decision, router_of(answer.request)
    request.app.state.metrics.unseen.inc()
    answer.forget()
    if not answer.is_own or router.answers.is_awaited(decision.id):
        return

    async def cancel() -> None:
        try:
            await reads_of(request).run(lambda: router.cancel(decision.id))
        except RagBanditError as error:  # the answer comes and is stored, too
            facts = {"action": "cancel", "decision": decision.id, "reason": str(error)}
            log.info("an answer that no client waits for could not be cancelled", extra=facts)

    task = asyncio.get_running_loop().create_task(cancel())
    _cancelling.add(task)
    task.add_done_callback(_cancelling.discard)


class EventStream(StreamingResponse):
    """The reply to a decision in server-sent events; it ends when they end. answer: its events are sent.

    Its status and headers go out with its first event, so that they name the decision that answers. refused: makes the
    reply of an error that comes before any event.

    Starlette's StreamingResponse watches for the end of the connection while it sends. Only one reader may wait for it:
    here it is the source of the events, which raises CallerGone.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        answer: PendingAnswer,
        refused: Callable[[RagBanditError], Response] | None = None,
    ) -> None:
        super().__init__(events, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self.events, self.answer, self.refused = events, answer, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it."""
        try:
            async with aclosing(self.events):  # type: ignore[type-var] # a generator
                first = await anext(self.events, b"")
                self.headers.update(headers(self.answer.decision))
                self.body_iterator = _after(first, self.events)
                await self.stream_response(send)
        except CallerGone:
            return
        except RagBanditError as error:
            if self.refused is None:
                raise
            await self.refused(error)(scope, receive, send)
        finally:
            self.answer.forget()


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for event in rest:
        yield event


def event_of(value: Any, *, name: str | None) -> bytes:
    """An event of this name (None: of no name) with a value as JSON."""
    head = "" if name is None else f"event: {name}\n"
    return b"%bdata: %b\n\n" % (head.encode(), json_of(value))


async def events_of(answer: PendingAnswer, *, seconds: float) -> AsyncIterator[bytes]:
    """The events of an answer. After its limit_s without an outcome the last says "pending".

    If the arm failed and another one answers, the event `decision` comes again, with that decision.

    seconds: from the request to the decision.
    """
    decision = answer.decision
    pending = pending_json(decision, seconds=seconds)
    try:
        yield event_of(name="decision", value=route_json(decision, seconds=seconds))
        last: bytes = event_of(name="outcome", value=pending)
        async with aclosing(answer.events()) as events:  # type: ignore[type-var] # a generator
            async for group in events:
                if answer.decision is not decision:
                    decision = answer.decision
                    yield event_of(name="decision", value=route_json(decision, seconds=seconds))
                if not group:
                    yield PING
                for event in group:
                    match event:
                        case TextPiece(text=text):
                            yield event_of(name="text", value={"text": text})
                        case StatusNote(text=text):
                            yield event_of(name="status", value={"text": text})
                        case Outcome():
                            saved = router_of(answer.request).savings.of(event.cost)
                            whole = answer_json(decision, event, seconds=seconds, saved=saved)
                            last = event_of(name="outcome", value=whole)
        yield last
    except TimeoutError:  # the service is about to end
        yield event_of(name="outcome", value=pending)
    except RagBanditError as error:
        yield event_of(name="error", value={"decision_id": decision.id, **error_json(error)})

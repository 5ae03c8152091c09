import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from ragbandit.router.api.dependencies import CallerGone, Waiter, reads_of, router_of
from ragbandit.router.api.schemas.responses import decision_headers, error_json
from ragbandit.router.queue.stream_reader import ReadStream
from ragbandit.router.replies.decisions import answer_json, pending_json, route_json
from ragbandit.router.replies.values import json_of
from ragbandit.router.serving.batching import SERVE_S
from ragbandit.shared.errors import NotReady, RagBanditError, StoreError
from ragbandit.shared.types import Decision, DecisionId, DeltaPiece, Outcome, StatusNote, TextPiece

AnswerEvent = TextPiece | DeltaPiece | StatusNote | Outcome

log = logging.getLogger("ragbandit.api")

#: seconds without an event after which a comment is sent. Proxies close silent connections, and only a failed write
#: shows that the client has gone.
PING_S: float = 2.0
PING: Final = b": ping\n\n"
#: seconds that a stream waits by default in addition to `budget.seconds`, because the question may wait for a worker
STREAM_WAIT_S: Final = 30.0
#: tasks that cancel answers; asyncio has only weak references to tasks, so these references keep them alive
_cancelling: set["asyncio.Task[None]"] = set()


@dataclass(kw_only=True, slots=True)
class AwaitedAnswer:
    """The answer that one request waits for."""

    request: Request
    #: decision that is answered; another arm's decision if the drawn arm failed before its first content
    decision: Decision
    waiting: "Future[Outcome]"
    limit_s: float
    #: whether pieces of the answer are sent while it is written
    live: bool
    #: whether only this request can ask for the answer, because the service chose the decision's id
    is_own: bool
    #: pieces of the answer if this process writes it; None if a worker writes it
    local: ReadStream | None = None

    async def outcome(self) -> Outcome | None:
        """Wait for the outcome; None if there is none within `limit_s` seconds. Cancels and raises like `events`."""
        changed, give_up = Waiter(self.request), asyncio.get_running_loop().time() + self.limit_s
        self.waiting.add_done_callback(lambda _: changed.notify())
        try:
            while not self.waiting.done():
                if not await changed.wait(until=give_up):
                    return None
            outcome = self.waiting.result()
            await self.follow(outcome.decision_id)
            return outcome
        except BaseException:
            self._abandon()
            raise

    async def events(self) -> AsyncIterator[Sequence[AnswerEvent]]:
        """Yields groups of events that arrived together; an empty group after PING_S seconds without an event.

        The texts of all pieces together are the answer. If `live` is False, or if the arm does not write in pieces, the
        answer is one piece. The last event is the Outcome, or there is none within `limit_s` seconds.

        The answer is cancelled if the client goes away, or if the iterator is closed early (use contextlib.aclosing);
        but only if `is_own` is True and no other request of this process waits for the answer.

        Raises CallerGone, TimeoutError if the service shuts down, and AnswerChanged if the worker died and the arm
        wrote another answer in its second run.
        """
        changed, now = Waiter(self.request), asyncio.get_running_loop().time
        self.waiting.add_done_callback(lambda _: changed.notify())
        stream = self.local or ReadStream(self.decision.id)
        try:
            stream = await self._open_stream(wake=changed.notify) or stream
            give_up = now() + self.limit_s
            while not self.waiting.done():
                events = stream.read()
                if events:
                    if stream.linked is not None:
                        await self.follow(stream.linked)
                    yield events
                if await changed.wait(until=min(give_up, now() + PING_S)):
                    continue
                if now() >= give_up:
                    return
                yield []
            outcome = self.waiting.result()
            await self.follow(outcome.decision_id)
            yield stream.finish(outcome)
        except BaseException:
            self._abandon()
            raise
        finally:
            streams = router_of(self.request).process.streams
            if stream is not self.local and streams is not None:
                streams.leave(stream)

    async def _open_stream(self, *, wake: Callable[[], None]) -> ReadStream | None:
        streams = router_of(self.request).process.streams
        if self.local is not None:
            self.local.attach(wake)
        elif self.live and streams is not None and not self.waiting.done():
            return await reads_of(self.request).run(partial(streams.subscribe, self.decision.id, wake=wake))
        return self.local

    async def follow(self, decision_id: DecisionId) -> None:
        """Switch to the decision `decision_id`. If the drawn arm fails, another arm answers under its own decision."""
        if decision_id == self.decision.id:
            return
        router = router_of(self.request)
        stored = await reads_of(self.request).run(lambda: router.store.decisions_by_id([decision_id]))
        decision, _ = stored[decision_id]
        if isinstance(decision, StoreError):
            raise decision
        limits = self.decision.query.limits  # the store keeps no limits with a query
        self.decision = replace(decision, query=replace(decision.query, limits=limits))
        failed = decision.query.continues.failed
        assert failed is not None
        self.request.app.state.metrics.failovers.labels(arm=failed.arm, reason=failed.reason).inc()

    def forget(self) -> None:
        """Stop waiting for the outcome."""
        router_of(self.request).process.answers.remove(self.decision.id, self.waiting)

    def _abandon(self) -> None:
        """Cancel the answer if it is not complete yet, since its client has stopped waiting."""
        if self.waiting.done():
            return
        request, decision, router = self.request, self.decision, router_of(self.request)
        request.app.state.metrics.unseen.inc()
        if not router.process.answers.abandon(decision.id, self.waiting, is_own=self.is_own):
            return

        async def cancel() -> None:
            try:
                await reads_of(request).run(lambda: router.cancel(decision.id))
            except RagBanditError as error:  # no harm: the answer is written and stored, though no client waits
                extra = {"action": "cancel", "decision": decision.id, "reason": str(error)}
                log.info("an answer that no client waits for could not be cancelled", extra=extra)

        task = asyncio.get_running_loop().create_task(cancel())
        _cancelling.add(task)
        task.add_done_callback(_cancelling.discard)


async def request_answer(
    request: Request, decision: Decision, *, live: bool, limit_s: float, is_own: bool
) -> AwaitedAnswer:
    """Ask for the answer to a decision. In the end, call `forget` of the AwaitedAnswer. Raises StoreError, NotReady."""
    router = router_of(request)
    answer = partial(AwaitedAnswer, request=request, decision=decision, limit_s=limit_s, live=live, is_own=is_own)
    inline = router.service.inline
    begun = None if inline is None else inline.begin(decision, live=live)
    if begun is not None:
        waiting, local = begun
        return answer(waiting=waiting, local=local)
    streams = router.process.streams
    if live and streams is not None:
        await reads_of(request).run(partial(streams.request_stream, decision.id))
    # This wait goes on if the caller goes away: the recovery loop would ask for a stored decision's answer anyway.
    try:
        waiting = await asyncio.wait_for(asyncio.wrap_future(router.process.answers.submit(decision)), SERVE_S)
    except TimeoutError as error:
        message = f"no worker could be asked within {SERVE_S:g} s; the decision {decision.id} stands"
        raise NotReady(message, remedy="send the same request with this id to get its answer") from error
    return answer(waiting=waiting)


class EventStream(Response):
    """A reply in server-sent events. Status and headers wait for the first event: before it the decision may change.

    events: yields the bytes to send at once; raises CallerGone if the caller has closed the connection.
    error_reply: makes the reply to an error before the first event; None if the edge makes that reply.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        answer: AwaitedAnswer,
        error_reply: Callable[[RagBanditError], Response] | None = None,
    ) -> None:
        self.status_code, self.background = 200, None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self.events, self.answer, self.error_reply = events, answer, error_reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False
        try:
            async with aclosing(self.events):  # type: ignore[type-var] # a generator
                async for data in self.events:
                    if not has_begun:
                        has_begun = True
                        await self._begin(send)
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            if not has_begun:
                await self._begin(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except CallerGone:
            return
        except RagBanditError as error:
            if self.error_reply is None:
                raise
            await self.error_reply(error)(scope, receive, send)
        finally:
            self.answer.forget()

    async def _begin(self, send: Send) -> None:
        self.headers.update(decision_headers(self.answer.decision))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})


def event_bytes(value: Any, *, name: str | None) -> bytes:
    head = "" if name is None else f"event: {name}\n"
    return b"%bdata: %b\n\n" % (head.encode(), json_of(value))


async def answer_events(answer: AwaitedAnswer, *, seconds: float) -> AsyncIterator[bytes]:
    """The events of /v1/answer; the last is "pending" if no outcome comes in time. seconds: time that deciding took."""
    decision = answer.decision
    pending = pending_json(decision, seconds=seconds)
    try:
        yield event_bytes(name="decision", value=route_json(decision, seconds=seconds))
        last: bytes = event_bytes(name="outcome", value=pending)
        async with aclosing(answer.events()) as events:  # type: ignore[type-var] # a generator
            async for group in events:
                if answer.decision is not decision:  # the drawn arm failed, and another arm answers
                    decision = answer.decision
                    yield event_bytes(name="decision", value=route_json(decision, seconds=seconds))
                if not group:
                    yield PING
                for event in group:
                    match event:
                        case TextPiece(text=text):
                            yield event_bytes(name="text", value={"text": text})
                        case StatusNote(text=text):
                            yield event_bytes(name="status", value={"text": text})
                        case Outcome():
                            saved = router_of(answer.request).process.savings.of(event.cost)
                            reply = answer_json(decision, event, seconds=seconds, saved=saved)
                            last = event_bytes(name="outcome", value=reply)
        yield last
    except TimeoutError:  # the service is shutting down
        yield event_bytes(name="outcome", value=pending)
    except RagBanditError as error:
        yield event_bytes(name="error", value={"decision_id": decision.id, **error_json(error)})

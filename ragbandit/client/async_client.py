"""Client for asyncio: every call is awaited."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar, Unpack, cast

import httpx

from ragbandit.client.arms import (
    ArmRun,
    Fallback,
    Report,
    RoutedArms,
    checked_functions,
    function_of,
    outcome_body,
    refusal,
    with_configuration,
)
from ragbandit.client.exchange import (
    AskOptions,
    Call,
    Connection,
    Judgement,
    Options,
    OutcomeFields,
    ReceivedReply,
    ReportFields,
    answer_call,
    away,
    check_size,
    item_list,
    new_id,
    not_sent,
    object_of,
    pause_after,
    post,
    quoted,
    refused,
    replies_of,
    request_of,
)
from ragbandit.client.replies.decisions import (
    AnswerReply,
    CancellationReply,
    ClientFeedbackReply,
    ClientOutcomeReply,
    ClientRouteReply,
    ErrorReply,
    LabelQueueReply,
    PendingReply,
    ReceiptReply,
    RecordReply,
    RouteReply,
)
from ragbandit.client.replies.status import StatusReply
from ragbandit.client.transport import AsyncTransport, EventReader, StreamEvent
from ragbandit.shared.errors import InvalidInput, NotReady, RagBanditError

log = logging.getLogger("ragbandit.client")

_Value = TypeVar("_Value")


class AsyncClient:
    """Client of one service for asyncio. It may be used from several event loops: each has connections of its own.

    url, api_key: of the service; None: RAGBANDIT_URL and RAGBANDIT_API_KEY. timeout_s: longest a call may take, retries
    included; connect_timeout_s, read_timeout_s: longest wait for a connection, and longest silence within a call
    (None: timeout_s). retries: further attempts where the connection broke, or the service said by 429 or 503 and
    Retry-After when to come back; of no more than retry_after_most_s. An attempt repeats the same id, so nothing is
    done twice. connections: at most, at one time. transport: for tests (httpx).

    default_arm: the arm that `route` names when the service is away or has not replied in route_timeout_s; such a reply
    is marked `degraded: true`, its outcome and feedback are not sent, and nothing is learned of it. None: it raises.

    Raises the error that the service raised, NotReady where none replied; InvalidInput for arguments that cannot be
    used.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float | None = None,
        retries: int = 2,
        retry_after_most_s: float = 2.0,
        connections: int = 100,
        default_arm: str | None = None,
        route_timeout_s: float = 1.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = Connection(
            url=url,
            api_key=api_key,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            retries=retries,
            retry_after_most_s=retry_after_most_s,
            connections=connections,
            route_timeout_s=route_timeout_s,
        )
        self._fallback = Fallback(default_arm)
        self._transport = AsyncTransport(self._connection, transport=transport)

    async def route(
        self, question: str, *, decision_id: str | None = None, **more: Unpack[Options]
    ) -> ClientRouteReply:
        """POST /v1/route. `more`: cost_weight, context, arms, budget, tenant, ... as in the HTTP body."""
        return await self._route(question, decision_id=decision_id, default_arm=self._fallback.default_arm, more=more)

    async def route_batch(self, items: Sequence[Mapping[str, object]]) -> list[RouteReply | ErrorReply]:
        """POST /v1/route/batch, each item as the body of /v1/route; a decision or {"error": ...} per item."""
        sent = item_list(items, path="/v1/route", key="decision_id")
        reply = await self._object(post("/v1/route/batch", {"items": sent}))
        return replies_of(reply, path="/v1/route/batch", count=len(sent))

    async def answer(
        self, question: str, *, decision_id: str | None = None, wait_s: float | None = None, **more: Unpack[Options]
    ) -> AnswerReply | PendingReply:
        """POST /v1/answer, as `route`; status "pending" if it takes longer than wait_s."""
        timeout_s = self._connection.timeout_s
        call = answer_call(question, decision_id=decision_id, wait_s=wait_s, more=more, timeout_s=timeout_s)
        return cast(AnswerReply | PendingReply, await self._object(call))

    async def answer_stream(
        self, question: str, *, decision_id: str | None = None, wait_s: float | None = None, **more: Unpack[Options]
    ) -> AsyncIterator[StreamEvent]:
        """POST /v1/answer?stream=true: its events while the arm writes; the last is `outcome`.

        The question is asked with the first event. timeout_s is here the longest silence; a loop that is left early
        closes the stream, which cancels the answer. Raises the error that the service raised, also in mid-answer, and
        NotReady for a stream that breaks off.
        """
        timeout_s = self._connection.timeout_s
        call = answer_call(question, decision_id=decision_id, wait_s=wait_s, more=more, timeout_s=timeout_s)
        call = replace(call, params={**(call.params or {}), "stream": "true"}, stream=True)
        opened = await self._exchange(call)
        reader = EventReader()
        try:
            async for chunk in opened.aiter_bytes():
                for event in reader.read(chunk):
                    yield event
        except httpx.RequestError as error:
            raise NotReady(f"the stream of the answer broke off: {type(error).__name__}") from error
        finally:
            await opened.aclose()
        reader.end()

    async def outcome(self, decision_id: str, **body: Unpack[OutcomeFields]) -> ClientOutcomeReply:
        """POST /v1/outcomes: answer, steps, cost, and status, stop_reason, error of one that failed."""
        return await self._outcome(decision_id, body)

    async def feedback(self, decision_id: str, **body: Unpack[Judgement]) -> ClientFeedbackReply:
        """POST /v1/feedback with one of label, rating, reward, event; and rater, source, feedback_id where known."""
        given = body.get("feedback_id")
        key = new_id() if given is None else given
        if self._fallback.has(decision_id):
            return not_sent(key)
        sent = {**body, "decision_id": decision_id, "feedback_id": key}
        return cast(ClientFeedbackReply, await self._object(post("/v1/feedback", sent)))

    async def feedback_batch(self, items: Sequence[Mapping[str, object]]) -> list[ReceiptReply | ErrorReply]:
        """POST /v1/feedback/batch; a receipt or {"error": ...} per item. What judges degraded decisions is not sent."""
        given = item_list(items, path="/v1/feedback", key="feedback_id")
        sent = [item for item in given if not self._fallback.has(item.get("decision_id"))]
        replies = iter(())
        if sent:
            reply = await self._object(post("/v1/feedback/batch", {"items": sent}))
            replies = iter(replies_of(reply, path="/v1/feedback/batch", count=len(sent)))
        return [
            not_sent(item["feedback_id"]) if self._fallback.has(item.get("decision_id")) else next(replies)
            for item in given
        ]

    def arms(
        self,
        functions: Mapping[str, Callable[[str], _Value | Awaitable[_Value]]],
        *,
        outcome_of: Report | None = None,
        default_arm: str | None = None,
    ) -> RoutedArms[Awaitable[ArmRun[_Value]]]:
        """Route among your own functions: `arms(question)` chooses one, runs it and reports its outcome.

        functions: for each arm that the service has with `run_by: caller`, a function of the question. outcome_of: from
        what a function returned to fields of /v1/outcomes (answer, steps, cost); None: text is the answer. Seconds are
        measured; where `reward.cost` charges something else, say that too: an outcome without it is refused.
        default_arm: instead of the client's.

        A function that is not `async def` runs in a thread, since it may block.

        The call takes decision_id, context, tenant as `route` does. It raises what the function raises, after reporting
        a failed outcome. Of a call that is cancelled nothing is reported, and nothing is learned.
        """
        checked = checked_functions(functions, default_arm=default_arm, waits=self._transport.WAITS)
        fallback = default_arm or self._fallback.default_arm

        async def run(question: str, **more: Unpack[AskOptions]) -> ArmRun[_Value]:
            reply = await self._choose(question, arms=list(checked), default_arm=fallback, more=more)
            key, began = reply["decision_id"], time.perf_counter()
            try:
                value: _Value = await self._transport.run(function_of(reply["arm"], checked), question)
                answer = {"answer": value} if isinstance(value, str) else {}
                fields = cast(ReportFields, answer if outcome_of is None else dict(outcome_of(value)))
            except Exception as error:
                await self.report(key, seconds=time.perf_counter() - began, error=error)
                raise
            seconds = time.perf_counter() - began
            return ArmRun(
                value=value,
                arm=reply["arm"],
                decision_id=key,
                degraded=reply.get("degraded", False),
                reported=await self.report(key, seconds=seconds, **fields),
                seconds=seconds,
            )

        return run

    async def report(
        self, decision_id: str, *, seconds: float, error: BaseException | None = None, **fields: Unpack[ReportFields]
    ) -> bool:
        """POST /v1/outcomes of an arm that has run: whether it is stored. What cannot be sent is logged, not raised.

        seconds: that the arm took. error: what it raised. fields: as for `outcome`.
        """
        try:
            reply = await self._outcome(decision_id, outcome_body(seconds=seconds, error=error, fields=fields))
        except RagBanditError as fault:
            message = "the outcome of decision %s is not stored, and nothing is learned of it: %s"
            log.error(message, decision_id, refusal(fault))
            return False
        return not reply.get("degraded", False)

    async def decision(self, decision_id: str) -> RecordReply:
        """GET /v1/decisions/{id}."""
        call = Call(method="GET", path=f"/v1/decisions/{quoted(decision_id)}")
        return cast(RecordReply, await self._object(call))

    async def label_queue(self, n: int = 20) -> LabelQueueReply:
        """GET /v1/label-queue: at most n answers whose label would teach most; n from 1 to 100."""
        return cast(LabelQueueReply, await self._object(Call(method="GET", path=f"/v1/label-queue?n={int(n)}")))

    async def cancel(self, decision_id: str) -> CancellationReply:
        """POST /v1/decisions/{id}/cancel; status "pending" while a worker has still to end it."""
        call = post(f"/v1/decisions/{quoted(decision_id)}/cancel", {})
        return cast(CancellationReply, await self._object(call))

    async def status(self) -> StatusReply:
        """GET /v1/status."""
        return cast(StatusReply, await self._object(Call(method="GET", path="/v1/status")))

    async def ready(self) -> bool:
        """True if /ready replies 200; False while nothing answers."""
        try:
            reply = await self._transport.opened().get("/ready", timeout=self._connection.timeout_s)
            return reply.status_code == 200
        except httpx.RequestError:
            return False

    @property
    def connection(self) -> Connection:
        """Where it calls, with which key and limits."""
        return self._connection

    @property
    def degraded(self) -> int:
        """Decisions that this client has made by `default_arm`, since it was opened."""
        return self._fallback.count

    async def aclose(self) -> None:
        """Close the connections (of this event loop); later calls raise InvalidInput."""
        await self._transport.aclose()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncClient({self._connection.shown_url!r})"

    async def _route(
        self, question: str, *, decision_id: str | None, default_arm: str | None, more: Mapping[str, object]
    ) -> ClientRouteReply:
        key = new_id() if decision_id is None else decision_id
        limit_s = None if default_arm is None else min(self._connection.route_timeout_s, self._connection.timeout_s)
        try:
            body = {"question": question, "decision_id": key, **more}
            reply = await self._object(post("/v1/route", body, limit_s=limit_s))
        except RagBanditError as error:
            if default_arm is None or not self._fallback.may_replace(error, arm=default_arm, arms=more.get("arms")):
                raise
            return self._fallback.reply(default_arm, decision_id=key, is_own=decision_id is not None, error=error)
        self._fallback.decided(key)
        return cast(ClientRouteReply, reply)

    async def _choose(
        self, question: str, *, arms: list[str], default_arm: str | None, more: Mapping[str, object]
    ) -> ClientRouteReply:
        """Route among these arms of the caller."""
        given = {"arms": arms, **more}
        decision_id = cast(str | None, given.pop("decision_id", None))
        try:
            return await self._route(question, decision_id=decision_id, default_arm=default_arm, more=given)
        except InvalidInput as error:
            raise with_configuration(error, arms=arms) from error

    async def _outcome(self, decision_id: str, body: Mapping[str, object]) -> ClientOutcomeReply:
        if self._fallback.has(decision_id):
            return ClientOutcomeReply(decision_id=decision_id, duplicate=False, degraded=True)
        return cast(ClientOutcomeReply, await self._object(post("/v1/outcomes", {"decision_id": decision_id, **body})))

    async def _object(self, call: Call) -> dict[str, Any]:
        return object_of(await self._exchange(call), path=call.path)

    async def _exchange(self, call: Call) -> Any:
        """The reply, or of a stream the open one. Raises what the service raised, or NotReady."""
        limits, attempts = self._connection, 0
        ends = time.monotonic() + (limits.timeout_s if call.limit_s is None else call.limit_s)
        while True:
            attempts += 1
            try:
                async with self._transport.until(ends):
                    received = await self._received(call, ends=ends)
            except (httpx.RequestError, TimeoutError) as error:
                failure, pause = away(error, call=call, connection=limits), pause_after(error, attempts=attempts)
                failure.__cause__ = error
            else:
                if 200 <= received.status < 300:
                    return received.opened or received
                failure = refused(received, path=call.path)
                pause = pause_after(received, attempts=attempts, most_s=limits.retry_after_most_s)
            if pause is None or attempts > limits.retries or time.monotonic() + pause >= ends:
                raise failure
            await self._transport.sleep(pause)

    async def _received(self, call: Call, *, ends: float) -> ReceivedReply:
        """What one attempt brings: the whole reply, or of a stream the open one. Raises httpx.RequestError."""
        http = self._transport.opened()
        request = request_of(call, http=http, ends=ends, connection=self._connection)
        body, response = bytearray(), await http.send(request, stream=True)
        if call.stream and response.is_success:
            return ReceivedReply(status=response.status_code, headers=response.headers, body=b"", opened=response)
        try:
            async for chunk in response.aiter_bytes():
                body += chunk
                check_size(len(body), call=call, ends=ends)
        finally:
            await response.aclose()
        return ReceivedReply(status=response.status_code, headers=response.headers, body=bytes(body))

"""Client for asyncio: every call is awaited."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar, Unpack, cast

import httpx

from ragbandit.client import exchange
from ragbandit.client.arms import (
    ArmRun,
    Fallback,
    Report,
    RoutedArms,
    copy_functions,
    function_of,
    is_degraded,
    outcome_fields,
    with_configuration,
)
from ragbandit.client.exchange import Call, Connection, ReceivedReply
from ragbandit.client.replies import decisions as replies
from ragbandit.client.replies.status import StatusReply, VerdictRequestReply
from ragbandit.client.transport import AnswerReader, AsyncTransport, StreamEvent
from ragbandit.shared.errors import InvalidInput, NotReady, RagBanditError

log = logging.getLogger("ragbandit.client")

_Value = TypeVar("_Value")


class AsyncTask:
    """The turns of one task, see `AsyncClient.task`. `route` and `answer` work as the client's methods."""

    def __init__(self, client: "AsyncClient", *, session_id: str, tenant: str | None) -> None:
        self.session_id = session_id
        self.tenant = tenant
        #: id of the newest turn; None before the first one
        self.decision_id: str | None = None
        self._client = client
        self._is_open = False

    async def route(
        self, question: str, *, decision_id: str | None = None, **more: Unpack[exchange.Options]
    ) -> replies.ClientRouteReply:
        """POST /v1/route: the arm of the next turn."""
        reply = await self._client.route(question, decision_id=decision_id, **self._options(more))
        self._note_turn(reply["decision_id"])
        return reply

    async def answer(
        self,
        question: str,
        *,
        decision_id: str | None = None,
        wait_s: float | None = None,
        **more: Unpack[exchange.Options],
    ) -> replies.AnswerReply | replies.PendingReply:
        """POST /v1/answer: a worker answers the next turn."""
        options = self._options(more)
        reply = await self._client.answer(question, decision_id=decision_id, wait_s=wait_s, **options)
        self._note_turn(reply["decision_id"])
        return reply

    async def feedback(self, **judgement: Unpack[exchange.Judgement]) -> replies.ClientFeedbackReply:
        """POST /v1/feedback: a judgement of the whole task. Raises InvalidInput before the first turn."""
        if self.decision_id is None:
            raise InvalidInput("the task has no turn yet", field="task", remedy="route a question first")
        return await self._client.feedback(self.decision_id, **judgement)

    async def __aenter__(self) -> "AsyncTask":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_open:
            return
        try:
            await self._client.end_session(self.session_id, tenant=self.tenant)
        except RagBanditError as error:
            if value is None:
                raise
            log.warning("the task %s is not ended: %s", self.session_id, error)  # the error of the block is raised

    def _options(self, more: exchange.Options) -> exchange.Options:
        return {**more, "session_id": self.session_id, "unit": "task", "tenant": self.tenant}

    def _note_turn(self, decision_id: str) -> None:
        self.decision_id = decision_id
        self._is_open = self._is_open or not is_degraded(decision_id)


class AsyncClient:
    """Client of one service for asyncio. It may be used from several event loops; each has its own connections.

    Methods raise the error that the service reports, NotReady if no service replies, and InvalidInput for arguments
    that cannot be used. Every attempt of a call sends the same id, so nothing is done twice.

    url: by default $RAGBANDIT_URL, else http://127.0.0.1:8100
    api_key: by default $RAGBANDIT_API_KEY
    timeout_s: time limit of a call, retries and waits included
    connect_timeout_s: longest wait for a free connection, and longest wait for the service to accept a new one
    retries: maximum number of further attempts. A call is repeated if the connection breaks, or after a 429 or 503
        with a Retry-After of at most 2 seconds
    connections: maximum number of simultaneous connections; further calls wait
    default_arm: the arm that `route` returns if the service cannot be reached, or does not reply within
        route_timeout_s; after three such questions in a row, at once for all but one question per 5 route_timeout_s,
        until the service replies. `route` also returns it if the service replies 429 or 5xx, or refuses all arms of the
        question to the key. Such a reply has `degraded: true`, its outcome and feedback are only counted, and nothing
        is learned from it. Without a default arm, `route` raises the error
    transport: replaces the network in tests (httpx)
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 5.0,
        retries: int = 2,
        connections: int = 100,
        default_arm: str | None = None,
        route_timeout_s: float = 1.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        #: address, key and limits of this client
        self.connection = Connection(
            url=url,
            api_key=api_key,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            retries=retries,
            connections=connections,
            route_timeout_s=route_timeout_s,
        )
        self._fallback = Fallback(default_arm, probe_s=5 * route_timeout_s)
        self._transport = AsyncTransport(self.connection, transport=transport)

    async def route(
        self, question: str, *, decision_id: str | None = None, **more: Unpack[exchange.Options]
    ) -> replies.ClientRouteReply:
        """POST /v1/route. more: cost_weight, context, arms, budget, tenant, ... as in the HTTP body."""
        key = exchange.new_id() if decision_id is None else decision_id
        limits, arms = self.connection, more.get("arms")
        limit_s = None if self._fallback.default_arm is None else min(limits.route_timeout_s, limits.timeout_s)
        call = exchange.post_call("/v1/route", {"question": question, "decision_id": key, **more}, limit_s=limit_s)
        try:
            if self._fallback.is_silent(arms=arms):
                raise NotReady("the service did not reply to the last questions") from TimeoutError()
            reply = await self._json_object(call)
        except RagBanditError as error:
            if not self._fallback.may_replace(error, arms=arms):
                raise
            return self._fallback.decide(decision_id=key, is_own=decision_id is not None, error=error)
        self._fallback.note_decision(key)
        return cast(replies.ClientRouteReply, reply)

    async def route_batch(self, items: Sequence[Mapping[str, object]]) -> list[replies.RouteReply | replies.ErrorReply]:
        """POST /v1/route/batch. An item is a body of /v1/route. Returns a decision or {"error": ...} per item."""
        questions = exchange.items_with_ids(items, path="/v1/route", key="decision_id")
        reply = await self._json_object(exchange.post_call("/v1/route/batch", {"items": questions}))
        return exchange.batch_entries(reply, path="/v1/route/batch", count=len(questions))

    async def answer(
        self,
        question: str,
        *,
        decision_id: str | None = None,
        wait_s: float | None = None,
        **more: Unpack[exchange.Options],
    ) -> replies.AnswerReply | replies.PendingReply:
        """POST /v1/answer, with the options of `route`. The status is "pending" if the arm needs more than wait_s."""
        timeout_s = self.connection.timeout_s
        call = exchange.answer_call(question, decision_id=decision_id, wait_s=wait_s, more=more, timeout_s=timeout_s)
        return cast(replies.AnswerReply | replies.PendingReply, await self._json_object(call))

    async def answer_stream(
        self,
        question: str,
        *,
        decision_id: str | None = None,
        wait_s: float | None = None,
        **more: Unpack[exchange.Options],
    ) -> AsyncIterator[StreamEvent]:
        """POST /v1/answer?stream=true. Yields events while the arm writes; the last one is `outcome`.

        The request is sent when the first event is requested. timeout_s limits the silence between events. Leaving the
        loop early closes the stream and cancels the answer. Also raises errors that the service reports during the
        answer, and NotReady if the stream breaks off.
        """
        timeout_s = self.connection.timeout_s
        call = exchange.answer_call(question, decision_id=decision_id, wait_s=wait_s, more=more, timeout_s=timeout_s)
        call = replace(call, params={**(call.params or {}), "stream": "true"}, stream=True)
        opened = await self._send(call)
        reader = AnswerReader()
        try:
            async for chunk in opened.aiter_bytes():
                for event in reader.read(chunk):
                    yield event
        except httpx.RequestError as error:
            raise NotReady(f"the stream of the answer broke off: {type(error).__name__}") from error
        finally:
            await opened.aclose()
        reader.end()

    async def outcome(self, decision_id: str, **body: Unpack[exchange.ReportedOutcome]) -> replies.ClientOutcomeReply:
        """POST /v1/outcomes with answer, steps and cost; for a failed run also status, stop_reason and error."""
        return await self._outcome(decision_id, body)

    async def feedback(self, decision_id: str, **body: Unpack[exchange.Judgement]) -> replies.ClientFeedbackReply:
        """POST /v1/feedback with label, rating, reward, event or retract.

        Optional: scale, rater, source, feedback_id.
        """
        feedback_id = body.get("feedback_id")
        if feedback_id is None:
            feedback_id = exchange.new_id()
        if self._fallback.withholds(decision_id):
            return exchange.unsent_receipt(feedback_id)
        fields = {**body, "decision_id": decision_id, "feedback_id": feedback_id}
        return cast(replies.ClientFeedbackReply, await self._json_object(exchange.post_call("/v1/feedback", fields)))

    async def end_session(
        self, session_id: str, *, tenant: str | None = None, **judgement: Unpack[exchange.Judgement]
    ) -> replies.SessionEndReply:
        """POST /v1/sessions/{session_id}/end: end the task of the conversation, with this judgement."""
        given = {name: value for name, value in judgement.items() if value is not None}
        if given:
            given.setdefault("feedback_id", exchange.new_id())
        fields = {"tenant": tenant, "feedback": given or None}
        path = f"/v1/sessions/{exchange.quote_id(session_id)}/end"
        return cast(replies.SessionEndReply, await self._json_object(exchange.post_call(path, fields)))

    def task(self, session_id: str | None = None, *, tenant: str | None = None) -> "AsyncTask":
        """A block whose turns are one task: all get the arm of the first one, and the task ends with the block.

        async with client.task() as task:
            reply = await task.route("Why does the build fail?")
            ...
            await task.feedback(rating=True, source="code")

        session_id: id of the conversation; by default a new one
        """
        return AsyncTask(self, session_id=session_id or exchange.new_id(), tenant=tenant)

    async def feedback_batch(
        self, items: Sequence[Mapping[str, object]]
    ) -> list[replies.ReceiptReply | replies.ErrorReply]:
        """POST /v1/feedback/batch, except for degraded decisions. Returns a receipt or {"error": ...} per item."""
        judgements = exchange.items_with_ids(items, path="/v1/feedback", key="feedback_id")
        withheld = [self._fallback.withholds(item.get("decision_id")) for item in judgements]
        sent = [item for item, is_withheld in zip(judgements, withheld, strict=True) if not is_withheld]
        receipts = iter(())
        if sent:
            reply = await self._json_object(exchange.post_call("/v1/feedback/batch", {"items": sent}))
            receipts = iter(exchange.batch_entries(reply, path="/v1/feedback/batch", count=len(sent)))
        return [
            exchange.unsent_receipt(item["feedback_id"]) if is_withheld else next(receipts)
            for item, is_withheld in zip(judgements, withheld, strict=True)
        ]

    def arms(
        self,
        functions: Mapping[str, Callable[[str], _Value | Awaitable[_Value]]],
        *,
        outcome_of: Report | None = None,
    ) -> RoutedArms[Awaitable[ArmRun[_Value]]]:
        """Route among your own functions: `arms(question)` chooses one, runs it and reports its outcome.

        The returned callable takes the options of `route` (decision_id, context, tenant, ...). If a function raises an
        error, a failed outcome is reported and the error is raised again. A cancelled call reports no outcome.

        A function that is not `async def` runs in a thread, since it may block.

        functions: arm -> function of the question; the service must have these arms with `run_by: caller`
        outcome_of: converts the return value of a function to fields of /v1/outcomes (answer, steps, cost). Seconds are
            measured. The service refuses the outcome if another cost term that `reward.cost` prices is missing. By
            default, a returned text is the answer
        """
        checked = copy_functions(functions, is_blocking=self._transport.IS_BLOCKING)

        async def run(question: str, **more: Unpack[exchange.AskOptions]) -> ArmRun[_Value]:
            more.setdefault("arms", list(checked))
            try:
                reply = await self.route(question, **more)
            except InvalidInput as error:
                raise with_configuration(error, arms=list(checked)) from error
            key, began = reply["decision_id"], time.perf_counter()
            try:
                value: _Value = await self._transport.run(function_of(reply["arm"], checked), question)
                answer = {"answer": value} if isinstance(value, str) else {}
                fields = cast(exchange.ReportFields, answer if outcome_of is None else dict(outcome_of(value)))
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
        self,
        decision_id: str,
        *,
        seconds: float,
        error: BaseException | None = None,
        **fields: Unpack[exchange.ReportFields],
    ) -> bool:
        """POST /v1/outcomes for a run of your own that took `seconds`, and failed if there is an `error`.

        Returns whether the outcome is stored. Errors of the request are only logged.
        """
        try:
            reply = await self._outcome(decision_id, outcome_fields(seconds=seconds, error=error, fields=fields))
        except RagBanditError as fault:
            message = "the outcome of decision %s is not stored, and nothing is learned from it: %s%s"
            hint = "; or return the cost of a run from `outcome_of`" if fault.field in ("steps", "cost") else ""
            log.error(message, decision_id, fault, hint)
            return False
        return not reply.get("degraded", False)

    async def decision(self, decision_id: str) -> replies.RecordReply:
        """GET /v1/decisions/{id}."""
        call = Call(method="GET", path=f"/v1/decisions/{exchange.quote_id(decision_id)}")
        return cast(replies.RecordReply, await self._json_object(call))

    async def label_queue(self, n: int = 20) -> replies.LabelQueueReply:
        """GET /v1/label-queue: at most `n` (1 to 100) answers that wait for a label."""
        return cast(
            replies.LabelQueueReply, await self._json_object(Call(method="GET", path=f"/v1/label-queue?n={int(n)}"))
        )

    async def label(self, item: str, *, right: bool) -> replies.LabelReply:
        """POST /v1/label-queue: say whether an answer of `label_queue` is right."""
        call = exchange.post_call("/v1/label-queue", {"item": item, "right": right})
        return cast(replies.LabelReply, await self._json_object(call))

    async def cancel(self, decision_id: str) -> replies.CancellationReply:
        """POST /v1/decisions/{id}/cancel. The status is "pending" until the worker has stopped the arm."""
        call = exchange.post_call(f"/v1/decisions/{exchange.quote_id(decision_id)}/cancel", {})
        return cast(replies.CancellationReply, await self._json_object(call))

    async def status(self) -> StatusReply:
        """GET /v1/status."""
        return cast(StatusReply, await self._json_object(Call(method="GET", path="/v1/status")))

    async def decide(
        self, *, budget: float | None = None, **terms: Unpack[exchange.DecideFields]
    ) -> VerdictRequestReply:
        """POST /v1/report/decide: plan a paired comparison, or buy it for at most `budget` dollars."""
        call = exchange.post_call("/v1/report/decide", {"budget": budget, **terms})
        return cast(VerdictRequestReply, await self._json_object(call))

    async def paired_request(self) -> VerdictRequestReply:
        """GET /v1/report/decide: the state of the newest paired comparison."""
        return cast(VerdictRequestReply, await self._json_object(Call(method="GET", path="/v1/report/decide")))

    async def ready(self) -> bool:
        """Whether GET /ready replies 200; False if the service cannot be reached."""
        try:
            reply = await self._transport.http_client().get("/ready", timeout=self.connection.timeout_s)
            return reply.status_code == 200
        except httpx.RequestError:
            return False

    @property
    def degraded(self) -> int:
        """Number of decisions that this client has made by `default_arm`."""
        return self._fallback.count

    @property
    def not_sent(self) -> int:
        """Number of outcomes and feedback that were not sent, because their decisions are degraded."""
        return self._fallback.withheld

    async def aclose(self) -> None:
        """Close the connections (of this event loop). Later calls raise InvalidInput."""
        await self._transport.aclose()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncClient({self.connection.shown_url!r})"

    async def _outcome(self, decision_id: str, body: Mapping[str, object]) -> replies.ClientOutcomeReply:
        if self._fallback.withholds(decision_id):
            return replies.ClientOutcomeReply(decision_id=decision_id, duplicate=False, degraded=True)
        call = exchange.post_call("/v1/outcomes", {"decision_id": decision_id, **body})
        return cast(replies.ClientOutcomeReply, await self._json_object(call))

    async def _json_object(self, call: Call) -> dict[str, Any]:
        return exchange.parse_object(await self._send(call), path=call.path)

    async def _send(self, call: Call) -> Any:
        """Send a call, with retries. Returns a ReceivedReply, or the open httpx.Response if `call.stream` is set."""
        limits = self.connection
        attempts = 0
        ends = time.monotonic() + (limits.timeout_s if call.limit_s is None else call.limit_s)
        while True:
            attempts += 1
            try:
                async with self._transport.until(ends):
                    received = await self._send_once(call, ends=ends)
            except (httpx.RequestError, TimeoutError) as error:
                failure = exchange.unreachable_error(error, call=call, connection=limits)
                failure.__cause__ = error
                pause = exchange.pause_after(error, attempts=attempts)
            else:
                if 200 <= received.status < 300:
                    return received.opened or received
                failure = exchange.error_of_reply(received, path=f"{call.path}{limits.route}")
                pause = exchange.pause_after(received, attempts=attempts)
            if pause is None or attempts > limits.retries or time.monotonic() + pause >= ends:
                raise failure
            await self._transport.sleep(pause)

    async def _send_once(self, call: Call, *, ends: float) -> ReceivedReply:
        """Send a call once, without a retry. Raises httpx.RequestError."""
        http = self._transport.http_client()
        request = exchange.build_request(call, http=http, ends=ends, connection=self.connection)
        response = await http.send(request, stream=True)
        if call.stream and response.is_success:
            return ReceivedReply(status=response.status_code, headers=response.headers, body=b"", opened=response)
        body = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                body += chunk
                exchange.check_size(len(body), call=call, ends=ends)
        finally:
            await response.aclose()
        return ReceivedReply(status=response.status_code, headers=response.headers, body=bytes(body))

"""Client for threads: every call waits for its reply.

Written by `make docs` from async_client.py.
"""

import functools
import logging
import time
from collections.abc import Iterator, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack, cast

import httpx

from ragbandit.client.arms import (
    ArmRun,
    Fallback,
    FeedbackField,
    Report,
    RoutedArms,
    checked_field,
    checked_functions,
    decision_id_of,
    function_of,
    outcome_body,
    outcome_fields,
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
    ReportFields,
    answer_call,
    away,
    item_list,
    json_object,
    new_id,
    not_sent,
    pause_after,
    post,
    quoted,
    refused,
    replies_of,
    value_of,
)
from ragbandit.client.replies.decisions import (
    AnswerReply,
    CancellationReply,
    ClientFeedbackReply,
    ClientOutcomeReply,
    ClientRouteReply,
    ErrorReply,
    PendingReply,
    ReceiptReply,
    RecordReply,
    RouteReply,
)
from ragbandit.client.replies.status import OverviewReply, StatusReply
from ragbandit.client.transport import SyncTransport, EventReader, StreamEvent
from ragbandit.shared.errors import InvalidInput, NotReady, RagBanditError

log = logging.getLogger("ragbandit.client")

_Value = TypeVar("_Value")
_Given = ParamSpec("_Given")


class Client:
    """Client of one service. Safe to use from several threads; `AsyncClient` has the same calls for asyncio.

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
        transport: httpx.BaseTransport | None = None,
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
        )
        self._fallback = Fallback(default_arm)
        self._route_timeout_s = route_timeout_s
        self._transport = SyncTransport(self._connection, transport=transport)

    def route(
        self, question: str, *, decision_id: str | None = None, **more: Unpack[Options]
    ) -> ClientRouteReply:
        """POST /v1/route. `more`: cost_weight, context, arms, budget, tenant, ... as in the HTTP body."""
        return self._route(question, decision_id=decision_id, default_arm=self._fallback.default_arm, more=more)

    def route_batch(self, items: Sequence[Mapping[str, object]]) -> list[RouteReply | ErrorReply]:
        """POST /v1/route/batch, each item as the body of /v1/route; a decision or {"error": ...} per item."""
        sent = item_list(items, path="/v1/route", key="decision_id")
        reply = self._object(post("/v1/route/batch", {"items": sent}))
        return replies_of(reply, path="/v1/route/batch", count=len(sent))

    def answer(
        self, question: str, *, decision_id: str | None = None, wait_s: float | None = None, **more: Unpack[Options]
    ) -> AnswerReply | PendingReply:
        """POST /v1/answer, as `route`; status "pending" if it takes longer than wait_s."""
        timeout_s = self._connection.timeout_s
        call = answer_call(question, decision_id=decision_id, wait_s=wait_s, more=more, timeout_s=timeout_s)
        return cast(AnswerReply | PendingReply, self._object(call))

    def answer_stream(
        self, question: str, *, decision_id: str | None = None, wait_s: float | None = None, **more: Unpack[Options]
    ) -> Iterator[StreamEvent]:
        """POST /v1/answer?stream=true: its events while the arm writes; the last is `outcome`.

        The question is asked with the first event. timeout_s is here the longest silence; a loop that is left early
        closes the stream, which cancels the answer. Raises the error that the service raised, also in mid-answer, and
        NotReady for a stream that breaks off.
        """
        timeout_s = self._connection.timeout_s
        call = answer_call(question, decision_id=decision_id, wait_s=wait_s, more=more, timeout_s=timeout_s)
        call = replace(call, params={**(call.params or {}), "stream": "true"}, stream=True)
        opened: httpx.Response = self._exchange(call)
        reader = EventReader()
        try:
            for chunk in opened.iter_bytes():
                for event in reader.read(chunk):
                    yield event
        except httpx.RequestError as error:
            raise NotReady(f"the stream of the answer broke off: {type(error).__name__}") from error
        finally:
            opened.close()
        reader.end()

    def outcome(self, decision_id: str, **body: Unpack[OutcomeFields]) -> ClientOutcomeReply:
        """POST /v1/outcomes: answer, steps, cost, and status, stop_reason, error of one that failed."""
        return self._outcome(decision_id, body)

    def feedback(self, decision_id: str, **body: Unpack[Judgement]) -> ClientFeedbackReply:
        """POST /v1/feedback with one of label, rating, reward, event; and rater, source, feedback_id where known."""
        given = body.get("feedback_id")
        key = new_id() if given is None else given
        if self._fallback.has(decision_id):
            return not_sent(key)
        sent = {**body, "decision_id": decision_id, "feedback_id": key}
        return cast(ClientFeedbackReply, self._object(post("/v1/feedback", sent)))

    def feedback_batch(self, items: Sequence[Mapping[str, object]]) -> list[ReceiptReply | ErrorReply]:
        """POST /v1/feedback/batch; a receipt or {"error": ...} per item. What judges degraded decisions is not sent."""
        given = item_list(items, path="/v1/feedback", key="feedback_id")
        sent = [item for item in given if not self._fallback.has(item.get("decision_id"))]
        replies = iter(())
        if sent:
            reply = self._object(post("/v1/feedback/batch", {"items": sent}))
            replies = iter(replies_of(reply, path="/v1/feedback/batch", count=len(sent)))
        return [
            not_sent(item["feedback_id"]) if self._fallback.has(item.get("decision_id")) else next(replies)
            for item in given
        ]

    def arms(
        self,
        functions: Mapping[str, Callable[[str], _Value]],
        *,
        outcome_of: Report | None = None,
        default_arm: str | None = None,
    ) -> RoutedArms[ArmRun[_Value]]:
        """Functions of yours to route among: `arms(question)` chooses one, runs it and reports its outcome.

        functions: for each arm that the service has with `run_by: caller`, a function of the question. outcome_of: from
        what a function returned to fields of /v1/outcomes (answer, steps, cost); None: text is the answer. Seconds are
        measured; where `reward.cost` charges something else, say that too: an outcome without it is refused.
        default_arm: instead of the client's.

        The call takes decision_id, context, tenant as `route` does. It raises what the function raises, after reporting
        a failed outcome.
        """
        checked = checked_functions(functions, default_arm=default_arm, waits=self._transport.WAITS)
        fallback = default_arm or self._fallback.default_arm

        def run(question: str, **more: Unpack[AskOptions]) -> ArmRun[_Value]:
            reply = self._choose(question, arms=list(checked), default_arm=fallback, more=more)
            key, began = reply["decision_id"], time.perf_counter()
            try:
                function = function_of(reply["arm"], checked)
                value: _Value = self._transport.run(function, question)
                fields = outcome_fields(value, outcome_of=outcome_of)
            except Exception as error:
                seconds = time.perf_counter() - began
                self._report(key, outcome_body(seconds=seconds, error=error, fields={}))
                raise
            seconds = time.perf_counter() - began
            return ArmRun(
                value=value,
                arm=reply["arm"],
                decision_id=key,
                degraded=reply.get("degraded", False),
                reported=self._report(key, outcome_body(seconds=seconds, fields=fields)),
                seconds=seconds,
            )

        return run

    def report(
        self, decision_id: str, *, seconds: float, error: BaseException | None = None, **fields: Unpack[ReportFields]
    ) -> bool:
        """POST /v1/outcomes of an arm that has run: whether it is stored. What cannot be sent is logged, not raised.

        seconds: that the arm took. error: what it raised. fields: as for `outcome`.
        """
        return self._report(decision_id, outcome_body(seconds=seconds, error=error, fields=fields))

    def feedback_from(
        self, kind: FeedbackField = "rating", **more: Unpack[Judgement]
    ) -> Callable[[Callable[_Given, _Value]], Callable[_Given, _Value]]:
        """A decorator: what the function returns is sent as feedback of this kind; of None nothing is sent.

        Its first argument is what `arms(...)`, `route` or `answer` returned, or a decision id. `more`: source, rater,
        scale as for `feedback`.
        """
        field = checked_field(kind)

        def decorate(
            function: Callable[_Given, _Value],
        ) -> Callable[_Given, _Value]:
            @functools.wraps(function)
            def judge(*arguments: _Given.args, **keywords: _Given.kwargs) -> _Value:
                decision_id = decision_id_of(*arguments)
                value: _Value = self._transport.run(function, *arguments, **keywords)
                if value is not None:
                    self.feedback(decision_id, **cast(Judgement, {**more, field: value}))
                return value

            return judge

        return decorate

    def decision(self, decision_id: str) -> RecordReply:
        """GET /v1/decisions/{id}."""
        call = Call(method="GET", path=f"/v1/decisions/{quoted(decision_id)}")
        return cast(RecordReply, self._object(call))

    def cancel(self, decision_id: str) -> CancellationReply:
        """POST /v1/decisions/{id}/cancel; status "pending" while a worker has still to end it."""
        call = post(f"/v1/decisions/{quoted(decision_id)}/cancel", {})
        return cast(CancellationReply, self._object(call))

    def status(self) -> StatusReply:
        """GET /v1/status."""
        return cast(StatusReply, self._object(Call(method="GET", path="/v1/status")))

    def overview(
        self, *, since: float | None = None, until: float | None = None, step: int = 3600
    ) -> OverviewReply:
        """GET /v1/overview. since, until: seconds since 1970, left out the last day; step: seconds."""
        given = {"step": step, "since": since, "until": until}
        params = {name: value for name, value in given.items() if value is not None}
        return cast(OverviewReply, self._object(Call(method="GET", path="/v1/overview", params=params)))

    def ready(self) -> bool:
        """True if /ready replies 200; False while nothing answers."""
        try:
            return self._transport.status("/ready") == 200
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

    def close(self) -> None:
        """Close the connections; later calls raise InvalidInput."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._connection.shown_url!r})"

    def _route(
        self, question: str, *, decision_id: str | None, default_arm: str | None, more: Mapping[str, object]
    ) -> ClientRouteReply:
        key = new_id() if decision_id is None else decision_id
        limit_s = None if default_arm is None else min(self._route_timeout_s, self._connection.timeout_s)
        try:
            body = {"question": question, "decision_id": key, **more}
            reply = self._object(post("/v1/route", body, limit_s=limit_s))
        except RagBanditError as error:
            if default_arm is None or not self._fallback.may_replace(error, arm=default_arm, arms=more.get("arms")):
                raise
            return self._fallback.reply(default_arm, decision_id=key, is_own=decision_id is not None, error=error)
        self._fallback.decided(key)
        return cast(ClientRouteReply, reply)

    def _choose(
        self, question: str, *, arms: list[str], default_arm: str | None, more: Mapping[str, object]
    ) -> ClientRouteReply:
        """Route among these arms of the caller."""
        given = {"arms": arms, **more}
        decision_id = cast(str | None, given.pop("decision_id", None))
        try:
            return self._route(question, decision_id=decision_id, default_arm=default_arm, more=given)
        except InvalidInput as error:
            raise with_configuration(error, arms=arms) from error

    def _outcome(self, decision_id: str, body: Mapping[str, object]) -> ClientOutcomeReply:
        if self._fallback.has(decision_id):
            return ClientOutcomeReply(decision_id=decision_id, duplicate=False, degraded=True)
        return cast(ClientOutcomeReply, self._object(post("/v1/outcomes", {"decision_id": decision_id, **body})))

    def _report(self, decision_id: str, body: Mapping[str, object]) -> bool:
        """Whether this outcome is stored. What cannot be reported is logged: the answer is there."""
        try:
            reply = self._outcome(decision_id, body)
        except RagBanditError as error:
            log.error(
                "the outcome of decision %s is not stored, and nothing is learned of it: %s",
                decision_id,
                refusal(error),
            )
            return False
        return not reply.get("degraded", False)

    def _object(self, call: Call) -> dict[str, Any]:
        return json_object(self._exchange(call), path=call.path)

    def _exchange(self, call: Call) -> Any:
        """The JSON value of the reply, or of a stream the open reply. Raises what the service raised, or NotReady."""
        limits, attempts = self._connection, 0
        ends = time.monotonic() + (limits.timeout_s if call.limit_s is None else call.limit_s)
        while True:
            attempts += 1
            try:
                received = self._transport.send(call, ends=ends)
            except httpx.RequestError as error:
                failure, pause = away(error, call=call, connection=limits), pause_after(error, attempts=attempts)
                failure.__cause__ = error
            else:
                if 200 <= received.status < 300:
                    return received.opened if call.stream else value_of(received, path=call.path)
                failure = refused(received, path=call.path)
                pause = pause_after(received, attempts=attempts, most_s=limits.retry_after_most_s)
            if pause is None or attempts > limits.retries or time.monotonic() + pause >= ends:
                raise failure
            self._transport.sleep(pause)

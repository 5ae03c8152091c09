"""Client for threads: every call waits for its reply."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import ParamSpec, TypeVar

import httpx

from ragbandit.client.arms import Arms, Judging, Report, checked_kind, judge, report
from ragbandit.client.calls import Calls
from ragbandit.client.connection import connection
from ragbandit.client.exchange import Attempt, Pause, Received, Steps
from ragbandit.client.replies.decisions import (
    AnswerReply,
    CancellationReply,
    ClientOutcomeReply,
    ClientRouteReply,
    PendingReply,
    RecordReply,
    RouteReply,
)
from ragbandit.client.replies.errors import ErrorReply
from ragbandit.client.replies.feedback import ClientFeedbackReply, ReceiptReply
from ragbandit.client.replies.overview import OverviewReply
from ragbandit.client.replies.status import StatusReply
from ragbandit.client.streams import EventReader, StreamEvent
from ragbandit.router.errors import InvalidInput, NotReady

__all__ = ["Client"]

_Result = TypeVar("_Result")
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
        made = connection(
            url=url,
            api_key=api_key,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            retries=retries,
            retry_after_most_s=retry_after_most_s,
            connections=connections,
        )
        self._calls = Calls(made, default_arm=default_arm, route_timeout_s=route_timeout_s)
        self._http = httpx.Client(
            base_url=made.url, headers=made.headers(), limits=made.limits(), transport=transport, follow_redirects=False
        )

    def route(self, question: str, *, decision_id: str | None = None, **more: object) -> ClientRouteReply:
        """POST /v1/route. `more`: context, arms, budget, tenant as in the HTTP body."""
        return self._run(self._calls.route(question, decision_id=decision_id, default_arm=None, more=more))

    def route_batch(self, items: Sequence[Mapping[str, object]]) -> list[RouteReply | ErrorReply]:
        """POST /v1/route/batch, each item as the body of /v1/route; a decision or {"error": ...} per item."""
        return self._run(self._calls.route_batch(items))

    def answer(
        self, question: str, *, decision_id: str | None = None, wait_s: float | None = None, **more: object
    ) -> AnswerReply | PendingReply:
        """POST /v1/answer; status "pending" if it takes longer than wait_s."""
        return self._run(self._calls.answer(question, decision_id=decision_id, wait_s=wait_s, more=more))

    def answer_stream(
        self, question: str, *, decision_id: str | None = None, wait_s: float | None = None, **more: object
    ) -> Iterator[StreamEvent]:
        """POST /v1/answer?stream=true: its events while the arm writes; the last is `outcome`.

        The question is asked with the first event. timeout_s is here the longest silence; a loop that is left early
        closes the stream, which cancels the answer. Raises the error that the service raised, also in mid-answer, and
        NotReady for a stream that breaks off.
        """
        opened: httpx.Response = self._run(
            self._calls.answer_stream(question, decision_id=decision_id, wait_s=wait_s, more=more)
        )
        reader = EventReader()
        try:
            for chunk in opened.iter_bytes():
                yield from reader.read(chunk)
        except httpx.RequestError as error:
            raise NotReady(f"the stream of the answer broke off: {type(error).__name__}") from error
        finally:
            opened.close()
        reader.end()

    def outcome(self, decision_id: str, **body: object) -> ClientOutcomeReply:
        """POST /v1/outcomes."""
        return self._run(self._calls.outcome(decision_id, body=body))

    def feedback(self, decision_id: str, **body: object) -> ClientFeedbackReply:
        """POST /v1/feedback with one of label, rating, reward, event; and rater, source, feedback_id where known."""
        return self._run(self._calls.feedback(decision_id, body=body))

    def feedback_batch(self, items: Sequence[Mapping[str, object]]) -> list[ReceiptReply | ErrorReply]:
        """POST /v1/feedback/batch; a receipt or {"error": ...} per item."""
        return self._run(self._calls.feedback_batch(items))

    def arms(
        self,
        functions: Mapping[str, Callable[[str], _Value]],
        *,
        outcome_of: Report | None = None,
        default_arm: str | None = None,
    ) -> Arms[_Value]:
        """Functions of yours to route among: `arms(question)` chooses one, runs it and reports its outcome.

        functions: for each arm that the service has with `run_by: caller`, a function of the question. outcome_of: from
        what a function returned to fields of /v1/outcomes (answer, steps, cost); None: text is the answer. Seconds are
        measured, steps are 1 where nobody says. default_arm: instead of the client's.
        """
        return Arms(
            self._calls,
            run=self._run,
            functions=functions,
            outcome_of=outcome_of,
            default_arm=default_arm,
            waits=True,
        )

    def report(self, decision_id: str, *, seconds: float, error: BaseException | None = None, **fields: object) -> bool:
        """POST /v1/outcomes of an arm that has run: whether it is stored. What cannot be sent is logged, not raised.

        seconds: that the arm took. error: what it raised. fields: as for `outcome`; steps is 1 where they do not say.
        """
        return self._run(report(self._calls, decision_id, seconds=seconds, error=error, fields=fields))

    def feedback_from(
        self, kind: Judging = "rating", **more: object
    ) -> Callable[[Callable[_Given, _Result]], Callable[_Given, _Result]]:
        """A decorator: what the function returns is sent as feedback of this kind; of None nothing is sent.

        Its first argument is what `arms(...)`, `route` or `answer` returned, or a decision id. `more`: source, rater,
        scale as for `feedback`.
        """
        checked = checked_kind(kind)

        def decorate(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
            @functools.wraps(function)
            def judged(*arguments: _Given.args, **keywords: _Given.kwargs) -> _Result:
                steps = judge(self._calls, function, kind=checked, arguments=arguments, keywords=keywords, more=more)
                result: _Result = self._run(steps)
                return result

            return judged

        return decorate

    def decision(self, decision_id: str) -> RecordReply:
        """GET /v1/decisions/{id}."""
        return self._run(self._calls.decision(decision_id))

    def cancel(self, decision_id: str) -> CancellationReply:
        """POST /v1/decisions/{id}/cancel; status "pending" while a worker has still to end it."""
        return self._run(self._calls.cancel(decision_id))

    def status(self) -> StatusReply:
        """GET /v1/status."""
        return self._run(self._calls.status())

    def overview(self, *, since: float | None = None, until: float | None = None, step: int = 3600) -> OverviewReply:
        """GET /v1/overview. since, until: seconds since 1970, left out the last day; step: seconds."""
        return self._run(self._calls.overview(since=since, until=until, step=step))

    def ready(self) -> bool:
        """True if /ready replies 200; False while nothing answers."""
        try:
            return self._opened().get("/ready", timeout=self._calls.connection.timeout_s).status_code == 200
        except httpx.RequestError:
            return False

    @property
    def degraded(self) -> int:
        """Decisions that this client has made by `default_arm`, since it was opened."""
        return self._calls.degraded

    def close(self) -> None:
        """Close the connections; later calls raise InvalidInput."""
        self._http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._calls.connection.shown_url!r})"

    def _opened(self) -> httpx.Client:
        if self._http.is_closed:
            raise InvalidInput("this client is closed", field="client", remedy="open another one")
        return self._http

    def _run(self, steps: Steps[_Result]) -> _Result:
        """Do what the steps ask for, and return what they return."""
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Attempt):
                        got: object = self._sent(step)
                    elif isinstance(step, Pause):
                        time.sleep(step.seconds)
                        got = None
                    else:
                        got = step.function(*step.arguments, **step.keywords)
                except Exception as error:  # the steps know what it means
                    step = steps.throw(error)
                else:
                    step = steps.send(got)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return] # of the generator's own type
        finally:
            steps.close()

    def _sent(self, attempt: Attempt) -> Received:
        http, call = self._opened(), attempt.call
        request = http.build_request(
            call.method,
            call.path,
            params=call.params,
            content=call.body,
            headers=call.headers(),
            timeout=attempt.timeout,
        )
        body, response = bytearray(), http.send(request, stream=True)
        if call.stream and response.is_success:
            return Received(status=response.status_code, headers=response.headers, body=b"", opened=response)
        try:
            for chunk in response.iter_bytes():
                body += chunk
                attempt.check(len(body))
        finally:
            response.close()
        return Received(status=response.status_code, headers=response.headers, body=bytes(body))

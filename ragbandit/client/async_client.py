"""Client for asyncio: every call is awaited."""

import asyncio
import functools
import inspect
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import httpx

from ragbandit.client.arms import AsyncArms, Judging, Report, checked_kind, judge, report
from ragbandit.client.calls import Calls
from ragbandit.client.connection import connection
from ragbandit.client.exchange import Attempt, Pause, Received, Steps, Work
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

__all__ = ["AsyncClient"]

_Result = TypeVar("_Result")
_Value = TypeVar("_Value")
_Given = ParamSpec("_Given")


class AsyncClient:
    """Client of one service for asyncio. The calls, arguments and errors of `Client`, each to be awaited.

    It may be used from several event loops: each has connections of its own, which `aclose` closes in the loop that
    awaits it. transport: for tests (httpx).
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
        self._transport = transport
        self._closed = False
        # A connection belongs to the event loop that opened it.
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    async def route(self, question: str, *, decision_id: str | None = None, **more: object) -> ClientRouteReply:
        """POST /v1/route. `more`: context, arms, budget, tenant as in the HTTP body."""
        return await self._run(self._calls.route(question, decision_id=decision_id, default_arm=None, more=more))

    async def route_batch(self, items: Sequence[Mapping[str, object]]) -> list[RouteReply | ErrorReply]:
        """POST /v1/route/batch, each item as the body of /v1/route; a decision or {"error": ...} per item."""
        return await self._run(self._calls.route_batch(items))

    async def answer(
        self, question: str, *, decision_id: str | None = None, wait_s: float | None = None, **more: object
    ) -> AnswerReply | PendingReply:
        """POST /v1/answer; status "pending" if it takes longer than wait_s."""
        return await self._run(self._calls.answer(question, decision_id=decision_id, wait_s=wait_s, more=more))

    async def answer_stream(
        self, question: str, *, decision_id: str | None = None, wait_s: float | None = None, **more: object
    ) -> AsyncIterator[StreamEvent]:
        """POST /v1/answer?stream=true: its events while the arm writes, see `Client.answer_stream`."""
        opened: httpx.Response = await self._run(
            self._calls.answer_stream(question, decision_id=decision_id, wait_s=wait_s, more=more)
        )
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

    async def outcome(self, decision_id: str, **body: object) -> ClientOutcomeReply:
        """POST /v1/outcomes."""
        return await self._run(self._calls.outcome(decision_id, body=body))

    async def feedback(self, decision_id: str, **body: object) -> ClientFeedbackReply:
        """POST /v1/feedback with one of label, rating, reward, event; and rater, source, feedback_id where known."""
        return await self._run(self._calls.feedback(decision_id, body=body))

    async def feedback_batch(self, items: Sequence[Mapping[str, object]]) -> list[ReceiptReply | ErrorReply]:
        """POST /v1/feedback/batch; a receipt or {"error": ...} per item."""
        return await self._run(self._calls.feedback_batch(items))

    def arms(
        self,
        functions: Mapping[str, Callable[[str], _Value | Awaitable[_Value]]],
        *,
        outcome_of: Report | None = None,
        default_arm: str | None = None,
    ) -> AsyncArms[_Value]:
        """Functions of yours to route among, as `Client.arms`; one that is not `async def` runs in a thread."""
        return AsyncArms(
            self._calls,
            run=self._run,
            functions=functions,
            outcome_of=outcome_of,
            default_arm=default_arm,
            waits=False,
        )

    async def report(
        self, decision_id: str, *, seconds: float, error: BaseException | None = None, **fields: object
    ) -> bool:
        """POST /v1/outcomes of an arm that has run: whether it is stored, see `Client.report`."""
        return await self._run(report(self._calls, decision_id, seconds=seconds, error=error, fields=fields))

    def feedback_from(
        self, kind: Judging = "rating", **more: object
    ) -> Callable[[Callable[_Given, Any]], Callable[_Given, Awaitable[Any]]]:
        """A decorator as `Client.feedback_from`, of a function or an `async def`; what it makes is to be awaited."""
        checked = checked_kind(kind)

        def decorate(function: Callable[_Given, Any]) -> Callable[_Given, Awaitable[Any]]:
            @functools.wraps(function)
            async def judged(*arguments: _Given.args, **keywords: _Given.kwargs) -> Any:
                steps = judge(self._calls, function, kind=checked, arguments=arguments, keywords=keywords, more=more)
                return await self._run(steps)

            return judged

        return decorate

    async def decision(self, decision_id: str) -> RecordReply:
        """GET /v1/decisions/{id}."""
        return await self._run(self._calls.decision(decision_id))

    async def cancel(self, decision_id: str) -> CancellationReply:
        """POST /v1/decisions/{id}/cancel; status "pending" while a worker has still to end it."""
        return await self._run(self._calls.cancel(decision_id))

    async def status(self) -> StatusReply:
        """GET /v1/status."""
        return await self._run(self._calls.status())

    async def overview(
        self, *, since: float | None = None, until: float | None = None, step: int = 3600
    ) -> OverviewReply:
        """GET /v1/overview. since, until: seconds since 1970, left out the last day; step: seconds."""
        return await self._run(self._calls.overview(since=since, until=until, step=step))

    async def ready(self) -> bool:
        """True if /ready replies 200; False while nothing answers."""
        try:
            return (await self._opened().get("/ready", timeout=self._calls.connection.timeout_s)).status_code == 200
        except httpx.RequestError:
            return False

    @property
    def degraded(self) -> int:
        """Decisions that this client has made by `default_arm`, since it was opened."""
        return self._calls.degraded

    async def aclose(self) -> None:
        """Close the connections of this event loop; later calls raise InvalidInput."""
        self._closed = True
        http = self._pools.pop(asyncio.get_running_loop(), None)
        if http is not None:
            await http.aclose()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncClient({self._calls.connection.shown_url!r})"

    def _opened(self) -> httpx.AsyncClient:
        if self._closed:
            raise InvalidInput("this client is closed", field="client", remedy="open another one")
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            made = self._calls.connection
            self._pools[loop] = httpx.AsyncClient(
                base_url=made.url,
                headers=made.headers(),
                limits=made.limits(),
                transport=self._transport,
                follow_redirects=False,
            )
        return self._pools[loop]

    async def _run(self, steps: Steps[_Result]) -> _Result:
        """Do what the steps ask for, and return what they return."""
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Attempt):
                        got: object = await self._sent(step)
                    elif isinstance(step, Pause):
                        await asyncio.sleep(step.seconds)
                        got = None
                    else:
                        got = await _done(step)
                except Exception as error:  # the steps know what it means
                    step = steps.throw(error)
                else:
                    step = steps.send(got)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return] # of the generator's own type
        finally:
            steps.close()

    async def _sent(self, attempt: Attempt) -> Received:
        try:
            async with asyncio.timeout(attempt.left_s):
                return await self._received(attempt)
        except TimeoutError as error:
            raise httpx.ReadTimeout("the reply was not whole in time") from error

    async def _received(self, attempt: Attempt) -> Received:
        http, call = self._opened(), attempt.call
        request = http.build_request(
            call.method,
            call.path,
            params=call.params,
            content=call.body,
            headers=call.headers(),
            timeout=attempt.timeout,
        )
        body, response = bytearray(), await http.send(request, stream=True)
        if call.stream and response.is_success:
            return Received(status=response.status_code, headers=response.headers, body=b"", opened=response)
        try:
            async for chunk in response.aiter_bytes():
                body += chunk
                attempt.check(len(body))
        finally:
            await response.aclose()
        return Received(status=response.status_code, headers=response.headers, body=bytes(body))


async def _done(work: Work) -> object:
    """The result of the user's function; one that is not `async def` runs in a thread, since it may block."""
    if inspect.iscoroutinefunction(work.function):
        return await work.function(*work.arguments, **work.keywords)
    result = await asyncio.to_thread(work.function, *work.arguments, **work.keywords)
    return await result if inspect.isawaitable(result) else result

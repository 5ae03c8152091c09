"""The parts of `Client` and `AsyncClient` that differ; the rest of `Client` is generated from `AsyncClient`."""

import asyncio
import inspect
import json
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import httpx

from ragbandit.client.exchange import Connection, ReceivedReply, error_of_reply
from ragbandit.shared.errors import InvalidInput, NotReady, RagBanditError
from ragbandit.shared.model_servers.event_reader import BrokenReply, EventReader

_Value = TypeVar("_Value")


class SyncTransport:
    """Connections for threads. transport: replaces the network in tests (httpx)."""

    #: whether the client calls functions of the user synchronously, so that `async def` functions are refused
    IS_BLOCKING: Final = True
    sleep = staticmethod(time.sleep)

    def __init__(self, connection: Connection, *, transport: httpx.BaseTransport | None) -> None:
        self._http = httpx.Client(**connection.pool(), transport=transport)

    def http_client(self) -> httpx.Client:
        """The HTTP client. Raises InvalidInput after `close`."""
        if self._http.is_closed:
            raise _closed()
        return self._http

    def until(self, ends: float) -> AbstractContextManager[object]:  # noqa: ARG002 - signature of AsyncTransport
        """A block without a time limit, since `check_size` checks the time after every read."""
        return nullcontext()

    def run(self, function: Callable[[str], _Value], question: str) -> _Value:
        """Call a function of the user. Raises InvalidInput if the function is async."""
        result = function(question)
        if inspect.iscoroutine(result):  # also from a function without `async def`
            result.close()
            message = "the arm is async, but Client calls functions synchronously"
            raise InvalidInput(message, field="arms", remedy="use AsyncClient")
        return result

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class AsyncTransport:
    """Connections for asyncio, one pool per event loop. transport: replaces the network in tests (httpx)."""

    IS_BLOCKING: Final = False
    sleep = staticmethod(asyncio.sleep)

    def __init__(self, connection: Connection, *, transport: httpx.AsyncBaseTransport | None) -> None:
        self._connection = connection
        self._transport = transport
        self._is_closed = False
        #: one client per event loop, since a connection works only in the loop that opened it
        self.pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    def http_client(self) -> httpx.AsyncClient:
        """The HTTP client of this event loop. Raises InvalidInput after `aclose`."""
        if self._is_closed:
            raise _closed()
        loop = asyncio.get_running_loop()
        if loop not in self.pools:
            self.pools[loop] = httpx.AsyncClient(**self._connection.pool(), transport=self._transport)
        return self.pools[loop]

    def until(self, ends: float) -> asyncio.Timeout:
        """A block that raises TimeoutError at `ends` by time.monotonic()."""
        return asyncio.timeout(max(ends - time.monotonic(), 0.001))

    async def run(self, function: Callable[[str], _Value | Awaitable[_Value]], question: str) -> _Value:
        """Call a function of the user. A function that is not `async def` runs in a thread, since it may block."""
        if inspect.iscoroutinefunction(function):
            return cast(_Value, await function(question))
        result = await asyncio.to_thread(function, question)
        return await result if inspect.isawaitable(result) else result

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        self._is_closed = True
        http = self.pools.pop(asyncio.get_running_loop(), None)
        if http is not None:
            await http.aclose()


def _closed() -> InvalidInput:
    return InvalidInput("this client is closed", field="client", remedy="open another one")


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamEvent:
    """One event of a streamed answer."""

    #: "decision", "status" (`data["text"]` is a note for the user), "text" (`data["text"]` is the next piece of the
    #: answer), or "outcome", the last event
    event: str
    #: fields of the event; "outcome" has the fields that `AsyncClient.answer` returns
    data: Mapping[str, Any]


class AnswerReader:
    """Reads the events of a streamed answer from its bytes."""

    def __init__(self) -> None:
        self._reader = EventReader()
        self._ended = False

    def read(self, chunk: bytes) -> Iterator[StreamEvent]:
        """Yield the events that end in this chunk of bytes. Raises the error of an `error` event, and RagBanditError if
        the stream is broken.
        """
        try:
            for value in self._reader.feed(chunk):
                if isinstance(value, dict):
                    yield self._event(value)
        except BrokenReply as error:
            raise RagBanditError(f"/v1/answer sent a broken stream: {error}") from error

    def end(self) -> None:
        """Call at the end of the stream. Raises NotReady if it contained no outcome."""
        if not self._ended:
            remedy = "the answer may still come: ask decision(id), or send the same id again"
            raise NotReady("the stream of the answer broke off", remedy=remedy)

    def _event(self, data: Mapping[str, Any]) -> StreamEvent:
        name = self._reader.name
        if name == "error":
            raise error_of_reply(
                ReceivedReply(status=500, headers={}, body=json.dumps(data).encode()), path="/v1/answer"
            )
        self._ended = self._ended or name == "outcome"
        return StreamEvent(event=name, data=data)

"""Transports: connections, a pause, and a function of the user, for threads and for asyncio.

All that differs between the two clients is here; the rest of `Client` is written from `AsyncClient`.
"""

import asyncio
import inspect
import json
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import httpx

from ragbandit.client.exchange import Connection, ReceivedReply, refused
from ragbandit.shared.errors import InvalidInput, NotReady, RagBanditError

_Value = TypeVar("_Value")


class SyncTransport:
    """Connections of threads. transport: for tests (httpx)."""

    #: functions of the user must not be `async def`
    WAITS: Final = True

    def __init__(self, connection: Connection, *, transport: httpx.BaseTransport | None) -> None:
        self._http = httpx.Client(**connection.pool(), transport=transport)

    def opened(self) -> httpx.Client:
        """What sends. Raises InvalidInput after `close`."""
        if self._http.is_closed:
            raise _closed()
        return self._http

    def until(self, ends: float) -> AbstractContextManager[object]:  # noqa: ARG002 - as of AsyncTransport
        """A block that nothing ends: between two reads the time is looked at."""
        return nullcontext()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def run(self, function: Callable[[str], _Value], question: str) -> _Value:
        """The result of a function of the user."""
        result = function(question)
        if inspect.iscoroutine(result):  # a function that does not look async may return a coroutine
            result.close()
            raise InvalidInput("the arm is async, and Client awaits nothing", field="arms", remedy="use AsyncClient")
        return result

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class AsyncTransport:
    """Connections of asyncio, from any number of event loops, one after another. transport: for tests (httpx)."""

    WAITS: Final = False

    def __init__(self, connection: Connection, *, transport: httpx.AsyncBaseTransport | None) -> None:
        self._connection = connection
        self._transport = transport
        self._is_closed = False
        #: a connection belongs to the event loop that opened it
        self.pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    def opened(self) -> httpx.AsyncClient:
        """What sends from this event loop. Raises InvalidInput after `aclose`."""
        if self._is_closed:
            raise _closed()
        loop = asyncio.get_running_loop()
        if loop not in self.pools:
            self.pools[loop] = httpx.AsyncClient(**self._connection.pool(), transport=self._transport)
        return self.pools[loop]

    def until(self, ends: float) -> asyncio.Timeout:
        """A block that is over by then, a time.monotonic(). It raises TimeoutError."""
        return asyncio.timeout(max(ends - time.monotonic(), 0.001))

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def run(self, function: Callable[[str], _Value | Awaitable[_Value]], question: str) -> _Value:
        """The result of a function of the user; one that is not `async def` runs in a thread, since it may block."""
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


#: longest event that is read, bytes
MAX_EVENT: Final = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamEvent:
    """One event of an answer that is being written."""

    #: decision: the decision; status: what the arm does, in `text`; text: the next piece, in `text`; outcome: the last,
    #: what `answer` would have returned
    event: str
    data: Mapping[str, Any]


class EventReader:
    """Events out of the bytes of a stream, wherever they are cut."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._ended = False

    def read(self, chunk: bytes) -> list[StreamEvent]:
        """The events that are whole with these bytes. Raises what an `error` event says."""
        self._rest += chunk
        *whole, rest = bytes(self._rest).replace(b"\r\n", b"\n").split(b"\n\n")
        self._rest = bytearray(rest)
        if len(rest) > MAX_EVENT:
            raise RagBanditError(f"/v1/answer sent an event of more than {MAX_EVENT} bytes")
        return [event for event in map(self._event, whole) if event is not None]

    def end(self) -> None:
        """The stream is over. Raises NotReady if it has broken off before its outcome."""
        if not self._ended:
            remedy = "the answer may still come: ask decision(id), or send the same id again"
            raise NotReady("the stream of the answer broke off", remedy=remedy)

    def _event(self, text: bytes) -> StreamEvent | None:
        fields: dict[bytes, bytes] = {}
        for line in text.split(b"\n"):
            key, _, value = line.partition(b":")
            fields[key] = value.removeprefix(b" ")
        if b"data" not in fields:  # a comment, which keeps the connection alive
            return None
        name = fields.get(b"event", b"message").decode("utf-8", "replace")
        try:
            data = json.loads(fields[b"data"])
        except ValueError as error:
            raise RagBanditError("/v1/answer sent an event that is not JSON") from error
        if name == "error":
            raise refused(ReceivedReply(status=500, headers={}, body=fields[b"data"]), path="/v1/answer")
        self._ended = self._ended or name == "outcome"
        return StreamEvent(event=name, data=data if isinstance(data, dict) else {})

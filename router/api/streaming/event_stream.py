"""Server-sent events: a reply that ends when its events end, with comments while there is nothing to say."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ragbandit.router.api.dependencies import CallerGone
from ragbandit.router.api.schemas.replies import plain
from ragbandit.router.api.streaming.answer_events import AnswerEvent

#: A comment goes out after that long without anything else, seconds. Proxies close connections that are silent; and a
#: client that has hung up looks like one that has only closed its sending side, until two writes to it have failed.
PING_S: float = 2.0
PING: Final = b": ping\n\n"


class EventStream(Response):
    """A reply of server-sent events that ends when they end.

    Starlette's own stream watches for the end of the connection while it sends; here what makes the events does, and
    raises CallerGone: one of them alone may wait for it.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], *, headers: Mapping[str, str]) -> None:
        self.events = events
        self.status_code = 200
        self.background = None
        given = {"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        self.init_headers(given)
        del self.headers["content-length"]

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send all of it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self.events) as events:  # type: ignore[type-var] # a generator
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event_of(value: Any, *, name: str | None) -> bytes:
    """An event of this name (None: of no name) with a value as JSON."""
    body = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {body}\n\n".encode("utf-8", "replace")


async def with_pauses(events: AsyncIterator[AnswerEvent]) -> AsyncIterator[AnswerEvent | None]:
    """The events, and None whenever none has come for PING_S seconds.

    They are made in a task of their own, one ahead at most: what takes them sets the pace. Raises what they raise.
    """
    queue: asyncio.Queue[AnswerEvent | BaseException | None] = asyncio.Queue(maxsize=1)

    async def make() -> None:
        try:
            async for event in events:
                await queue.put(event)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    task = asyncio.create_task(make())
    try:
        while True:
            try:
                async with asyncio.timeout(PING_S):
                    event = await queue.get()
            except TimeoutError:
                yield None
                continue
            if event is None:
                return
            if isinstance(event, BaseException):
                raise event
            yield event
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, CallerGone):
            await task


async def sent_at_once(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    """These events."""
    for part in parts:
        yield part

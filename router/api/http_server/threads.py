"""Threads of the HTTP side: blocking reads stay off the event loop, and probes never wait behind them."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from ragbandit.shared.errors import NotReady, Overloaded

Value = TypeVar("Value")


class Reads:
    """A few threads for blocking calls of requests. most: calls that may run or wait at a time; more are refused."""

    def __init__(self, *, threads: int, most: int, limit_s: float) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="ragbandit-reads")
        self._most, self._limit_s = most, limit_s
        self._open = 0

    async def run(self, work: Callable[[], Value]) -> Value:
        """What `work` returns. Raises Overloaded, and NotReady when it takes too long."""
        if self._open >= self._most:
            raise Overloaded(
                f"{self._open} reads are waiting already, so this one was refused", remedy="try again in a second"
            )
        self._open += 1
        try:
            future = self._executor.submit(work)
            return await _within(future, limit_s=self._limit_s)
        finally:
            self._open -= 1

    def close(self) -> None:
        """Take no more calls; what runs ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class SharedRead(Generic[Value]):
    """A blocking read on a thread of its own, for probes: whoever asks while one waits to begin gets that one's value.

    So at most one runs and one waits, however many probes come and however long the database takes.
    """

    def __init__(self, read: Callable[[], Value], *, name: str, limit_s: float) -> None:
        self._read, self._limit_s = read, limit_s
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"ragbandit-{name}")
        self._next: Future[Value] | None = None
        self._lock = threading.Lock()

    async def value(self) -> Value:
        """A value that was read after this call. Raises NotReady when it takes too long, and what `read` raises."""
        with self._lock:
            # One that runs may have read before the caller's last write.
            if self._next is None or self._next.running() or self._next.done():
                self._next = self._executor.submit(self._read)
            shared = self._next
        return await _within(shared, limit_s=self._limit_s, shared=True)

    def close(self) -> None:
        """Read no more; what runs ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)


async def _within(future: "Future[Value]", *, limit_s: float, shared: bool = False) -> Value:
    """The Future's value. shared: others wait for it too, so it goes on when this caller gives up."""
    wrapped = asyncio.wrap_future(future)
    try:
        return await asyncio.wait_for(asyncio.shield(wrapped) if shared else wrapped, limit_s)
    except TimeoutError as error:
        raise NotReady(f"the database did not reply within {limit_s:g} s", remedy="try again in a second") from error

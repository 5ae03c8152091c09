"""Reads large texts from outside in one thread, one at a time, so that they do not block the event loop, and only one
takes memory and processor time.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from threading import Lock
from typing import Any, Final, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Value = TypeVar("_Value")

#: size from which a text is large, bytes. Smaller texts are read on the event loop
LARGE: Final = 32_768
#: time after which a reading thread counts as stuck, seconds: ten times the longest time of a text within the caps
GUARD_S: float = 20.0


class ReadingStuck(Exception):
    """A text took longer than GUARD_S to read. The name must not end in Timeout, since such errors repeat the call."""


@dataclass(order=True, slots=True)
class _Work:
    #: the work with the smallest rank runs next, see `ReadingThread`
    rank: int
    number: int
    size: int = field(compare=False)
    run: Callable[[], Any] = field(compare=False)
    done: "Future[Any]" = field(compare=False, default_factory=Future)
    #: time.monotonic() at the begin of the work; None before it begins
    began: float | None = field(compare=False, default=None)
    #: whether a new thread has replaced the one that this work blocks
    is_left: bool = field(compare=False, default=False)

    @property
    def is_stuck(self) -> bool:
        return self.began is not None and time.monotonic() >= self.began + GUARD_S


class ReadingThread:
    """Runs one work at a time. A smaller work goes first, unless more bytes than the difference of both sizes were read
    since the larger work was added.

    Used on event loops. The thread starts with the first work.
    """

    def __init__(self) -> None:
        self._lock, self._numbers = Lock(), count()
        self._waiting: list[_Work] = []
        #: bytes of all works that were begun
        self._served = 0
        self._executor = _executor()

    async def read(
        self, size: int, read: Callable[_Given, _Value], *given: _Given.args, **more: _Given.kwargs
    ) -> _Value:
        """Call a function that reads `size` bytes. Raises its errors, and ReadingStuck. If the caller is cancelled,
        this call still waits for a function that has begun, since it may change the caller's values.
        """
        run = partial(copy_context().run, partial(read, *given, **more))
        with self._lock:
            work = _Work(rank=self._served + size, number=next(self._numbers), size=size, run=run)
            heappush(self._waiting, work)
            self._executor.submit(self._run_next)
        try:
            await self._wait_for(work)
        except asyncio.CancelledError:
            while not (work.done.cancel() or work.done.done() or self._replace_if_stuck(work)):
                with suppress(asyncio.CancelledError, ReadingStuck):
                    await self._wait_for(work)
            raise
        value: _Value = work.done.result()
        return value

    def _run_next(self) -> None:
        with self._lock:
            if not self._waiting:  # another thread has run the work
                return
            work = heappop(self._waiting)
            self._served += work.size
        work.began = time.monotonic()
        if not work.done.set_running_or_notify_cancel():
            return
        try:
            work.done.set_result(work.run())
        except BaseException as error:  # the caller gets the error
            work.done.set_exception(error)

    async def _wait_for(self, work: _Work) -> None:
        """Wait for the end of a work. Raises ReadingStuck, after the other works got a new thread."""
        waiting = asyncio.wrap_future(work.done)
        while not waiting.done():
            left_s = GUARD_S if work.began is None else work.began + GUARD_S - time.monotonic()
            await asyncio.wait([waiting], timeout=max(0.0, left_s))
            if not work.done.done() and self._replace_if_stuck(work):
                raise ReadingStuck(f"it took longer than {GUARD_S:g} s to read")
        if not waiting.cancelled():
            waiting.exception()  # otherwise asyncio logs the error

    def _replace_if_stuck(self, work: _Work) -> bool:
        """Whether a work is stuck. If so, the works that wait for the thread go to a new one."""
        with self._lock:
            if work.is_stuck and not work.is_left:
                work.is_left = True
                self._executor.shutdown(wait=False, cancel_futures=True)
                self._executor = _executor()
                for _ in self._waiting:
                    self._executor.submit(self._run_next)
            return work.is_left


def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="read")


#: the reading thread of this process
READING: Final = ReadingThread()

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
class _Job:
    #: the job with the smallest rank runs next, see `ReadingThread`
    rank: int
    number: int
    size: int = field(compare=False)
    run: Callable[[], Any] = field(compare=False)
    done: "Future[Any]" = field(compare=False, default_factory=Future)
    #: time.monotonic() at the begin of the job; None before it begins
    began: float | None = field(compare=False, default=None)
    #: whether a new thread has replaced the one that this job blocks
    is_left: bool = field(compare=False, default=False)

    @property
    def is_stuck(self) -> bool:
        return self.began is not None and time.monotonic() >= self.began + GUARD_S


class ReadingThread:
    """Runs one job at a time. A smaller job goes first, unless more bytes than the difference of both sizes were read
    since the larger job was added.

    Used on event loops. The thread starts with the first job.
    """

    def __init__(self) -> None:
        self._lock, self._numbers = Lock(), count()
        self._waiting: list[_Job] = []
        #: bytes of all jobs that were begun
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
            job = _Job(rank=self._served + size, number=next(self._numbers), size=size, run=run)
            heappush(self._waiting, job)
            self._executor.submit(self._run_next)
        try:
            await self._wait_for(job)
        except asyncio.CancelledError:
            while not (job.done.cancel() or job.done.done() or self._replace_if_stuck(job)):
                with suppress(asyncio.CancelledError, ReadingStuck):
                    await self._wait_for(job)
            raise
        value: _Value = job.done.result()
        return value

    def _run_next(self) -> None:
        with self._lock:
            if not self._waiting:  # another thread has run the job
                return
            job = heappop(self._waiting)
            self._served += job.size
        job.began = time.monotonic()
        if not job.done.set_running_or_notify_cancel():
            return
        try:
            job.done.set_result(job.run())
        except BaseException as error:  # the caller gets the error
            job.done.set_exception(error)

    async def _wait_for(self, job: _Job) -> None:
        """Wait for the end of a job. Raises ReadingStuck, after the other jobs got a new thread."""
        waiting = asyncio.wrap_future(job.done)
        while not waiting.done():
            left_s = GUARD_S if job.began is None else job.began + GUARD_S - time.monotonic()
            await asyncio.wait([waiting], timeout=max(0.0, left_s))
            if not job.done.done() and self._replace_if_stuck(job):
                raise ReadingStuck(f"it took longer than {GUARD_S:g} s to read")
        if not waiting.cancelled():
            waiting.exception()  # otherwise asyncio logs the error

    def _replace_if_stuck(self, job: _Job) -> bool:
        """Whether a job is stuck. If so, the jobs that wait for the thread go to a new one."""
        with self._lock:
            if job.is_stuck and not job.is_left:
                job.is_left = True
                self._executor.shutdown(wait=False, cancel_futures=True)
                self._executor = _executor()
                for _ in self._waiting:
                    self._executor.submit(self._run_next)
            return job.is_left


def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="read")


#: the reading thread of this process
READING: Final = ReadingThread()

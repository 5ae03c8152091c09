"""The event loop on which the arms of a process run, and the watch that ends a process whose loop is blocked."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from ragbandit.shared.processes.hung_threads import line_of_thread

log = logging.getLogger("ragbandit.worker")

Reply = TypeVar("Reply")

#: longest wait for a generator, a retriever or the event loop to close, seconds
CLOSE_S: Final = 5.0
#: time in which a cancelled coroutine ends, seconds
END_S: Final = 0.05


class LoopEnded(Exception):
    """The event loop of this process has ended, and the coroutine was not begun."""


class LoopWatch:
    """Finds out whether an event loop is blocked by code that never awaits, or has ended.

    thread: ident of the loop's thread. blocked_s: seconds without a response after which the loop counts as blocked.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, thread: int | None, blocked_s: float) -> None:
        self._loop, self._thread = loop, thread
        self.blocked_s = blocked_s

    def answers(self) -> bool:
        """Whether the loop runs a callback in time; False if it has ended."""
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # the loop is closed
            return False
        # Ten waits, since a pause of the whole process ends only one of them.
        return any(answered.wait(self.blocked_s / 10) for _ in range(10))

    def position(self) -> str:
        """The line of code that the loop's thread is running, as "file:line function"."""
        return line_of_thread(self._thread) or "its thread has ended"


class EventLoop:
    """An event loop on its own thread. Several threads may call `run` at the same time."""

    def __init__(self, *, blocked_s: float = 60.0) -> None:
        """blocked_s: see `LoopWatch`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="ragbandit-loop", daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread.start()
        self.watch = LoopWatch(self._loop, thread=self._thread.ident, blocked_s=blocked_s)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop):  # the Runner cancels all running tasks at the end
            self._loop.run_forever()

    @property
    def is_running(self) -> bool:
        """Whether the loop runs coroutines; False after `close`, or after an arm's task has ended the loop."""
        return self._thread.is_alive() and not self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, Reply], *, timeout_s: float | None = None) -> Reply:
        """Run the coroutine on the loop and wait for its result. Raises its error, LoopEnded, or TimeoutError after
        timeout_s.
        """
        tracked = self._track(work)
        try:
            waiting = asyncio.run_coroutine_threadsafe(tracked, self._loop)
        except RuntimeError as error:  # the loop is closed
            tracked.close()
            work.close()
            raise LoopEnded from error
        try:
            return waiting.result(timeout_s)
        except BaseException:
            if not waiting.done() and waiting.cancel():
                self._let_end()
            raise

    async def _track(self, work: Coroutine[Any, Any, Reply]) -> Reply:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)

    def _let_end(self) -> None:
        """Give a cancelled coroutine some time to end, since coroutines count their cost at their end."""
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(END_S), self._loop).result(2 * END_S)

    def interrupt(self) -> None:
        """Cancel all coroutines of `run`; their callers get CancelledError when they have ended. Takes no lock."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            if not task.cancelling():  # a second cancellation would cut off the end of a coroutine
                task.cancel()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            message = "a task did not end when it was cancelled; the process ends without it"
            log.warning(message, extra={"action": "close"})

"""The event loop of a worker process, on which all its arms run."""

import asyncio
import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

log = logging.getLogger("ragbandit.worker")

Reply = TypeVar("Reply")

#: longest wait for a generator, a retriever or the event loop to close, seconds
CLOSE_S = 5.0
#: time in which a cancelled coroutine ends, seconds
END_S = 0.05


class LoopWatch:
    """Finds out whether an event loop is blocked by code that never awaits. thread: ident of the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, thread: int | None) -> None:
        self._loop, self._thread = loop, thread

    def answers(self, *, within_s: float) -> bool:
        """Whether the loop runs a callback in time, or has ended. A stop of this process counts as a tenth of it."""
        answered = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(answered.set)
        return any(answered.wait(within_s / 10) for _ in range(10)) or not self._loop.is_running()

    def position(self) -> str:
        """The line of code that the loop's thread is running, as "file:line function"."""
        frame = sys._current_frames().get(self._thread or 0)  # noqa: SLF001 - the documented way to ask
        if frame is None:
            return "its thread has ended"
        call = traceback.extract_stack(frame)[-1]
        return f"{call.filename}:{call.lineno} {call.name}"


class EventLoop:
    """An event loop on its own thread. Several threads may call `run` at the same time."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="ragbandit-loop", daemon=True)
        self._lock = threading.Lock()
        self.awaited: set[Future[Any]] = set()
        self._thread.start()
        self.watch = LoopWatch(self._loop, thread=self._thread.ident)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop):  # the Runner cancels all running tasks at the end
            self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, Reply], *, timeout_s: float | None = None) -> Reply:
        """Run the coroutine on the loop and wait for its result. Raises its error, or TimeoutError after timeout_s."""
        with self._lock:  # `interrupt` then finds every coroutine that runs
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
            self.awaited.add(waiting)
        try:
            return waiting.result(timeout_s)
        except BaseException:
            if waiting.cancel() or waiting.cancelled():  # not if the coroutine itself raised the error
                self._let_end()
            raise
        finally:
            with self._lock:
                self.awaited.discard(waiting)

    def _let_end(self) -> None:
        """Give a cancelled coroutine some time to end, since it counts its cost at its end."""
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(END_S), self._loop).result(2 * END_S)

    def interrupt(self) -> None:
        """Cancel all coroutines; their calls of `run` raise CancelledError."""
        with self._lock:
            awaited = list(self.awaited)
        for waiting in awaited:
            waiting.cancel()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            message = "a task did not end when it was cancelled; the process ends without it"
            log.warning(message, extra={"action": "close"})

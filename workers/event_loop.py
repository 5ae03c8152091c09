"""Event loop in a thread of its own: HTTP clients and the like are bound to a loop and live across jobs."""

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

log = logging.getLogger("ragbandit.worker")

Reply = TypeVar("Reply")

#: a client that does not close within that long is left to the end of the process
CLOSE_S = 5.0


class EventLoop:
    """The loop and its thread. `run` may be called from many threads at once: their coroutines share the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ragbandit-loop", daemon=True)
        self._lock = threading.Lock()
        self.awaited: set[Future[Any]] = set()
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Reply], *, timeout_s: float | None = None) -> Reply:
        """The value that the coroutine returns, or the error it raises; TimeoutError after timeout_s.

        If the wait ends otherwise, the coroutine is cancelled.
        """
        with self._lock:  # from its first step on `interrupt` must find it
            waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
            self.awaited.add(waiting)
        try:
            return waiting.result(timeout_s)
        except BaseException:
            waiting.cancel()  # does nothing where the coroutine itself raised
            raise
        finally:
            with self._lock:
                self.awaited.discard(waiting)

    def answers(self, *, within_s: float) -> bool:
        """True if the loop gets to anything within that long; False where code that does not await blocks it."""
        answered = threading.Event()
        self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(within_s)

    def position(self) -> str:
        """The place where the loop's thread is now, as "file:line function", to name the code that blocks it."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - the documented way to ask
        if frame is None:
            return "its thread has ended"
        here = traceback.extract_stack(frame)[-1]
        return f"{here.filename}:{here.lineno} {here.name}"

    def interrupt(self) -> None:
        """Cancel every coroutine that somebody waits for in `run`; they raise CancelledError there."""
        with self._lock:
            awaited = list(self.awaited)
        for waiting in awaited:
            waiting.cancel()

    def close(self) -> None:
        """Cancel what still runs and end the thread. A second time does nothing."""
        if self._loop.is_closed():
            return
        try:
            self.run(_cancel_all(), timeout_s=CLOSE_S)
        except TimeoutError:
            log.warning(
                "a task did not end when it was cancelled; the process ends without it", extra={"action": "close"}
            )
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_all() -> None:
    """Cancel every other task of this loop and wait for them, and for the threads of its pool."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()

"""Work that outlasts a store that fails: it is repeated, and the outage is logged at both ends and now and then."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from ragbandit.router.telemetry.logs import Throttle
from ragbandit.shared.errors import QueueError, SnapshotError, StoreError
from ragbandit.shared.retries import back_off

Reply = TypeVar("Reply")

log = logging.getLogger("ragbandit.worker")

#: least time between two log lines of one outage, seconds
QUIET_S: Final = 60.0
#: first and longest pause between two attempts to do something that the store did not take, seconds
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
#: a thread that is to end is waited for that long, seconds
JOIN_S: Final = 5.0


class StoreOutage:
    """The outage of one kind of work. Safe to use from several threads.

    action: names the work in the log. failing: the line while it fails: what fails, what that means, what to do.
    restored: the line once it works again.
    """

    def __init__(self, *, action: str, failing: str, restored: str) -> None:
        self._action, self._failing, self._restored = action, failing, restored
        self._lock = threading.Lock()
        #: when it began (time.monotonic); None: it works
        self._since: float | None = None
        self.throttle = Throttle(QUIET_S)
        self._times = 0

    @property
    def lasts(self) -> bool:
        """True if the last attempt failed."""
        return self._since is not None

    def failed(self, error: BaseException) -> None:
        """Record an attempt that failed. It is logged at first, and every QUIET_S while that lasts."""
        with self._lock:
            now = time.monotonic()
            self._times += 1
            if self._since is None:
                self._since, self.throttle = now, Throttle(QUIET_S)
            if not self.throttle.lets_pass():
                return
            facts = {"action": self._action, "attempts": self._times, "for_s": round(now - self._since, 1)}
        log.error(self._failing, extra=facts | {"reason": f"{type(error).__name__}: {error}"})

    def ended(self) -> None:
        """Record an attempt that succeeded."""
        if not self.lasts:
            return
        with self._lock:
            if self._since is None:
                return
            lasted, self._since, self._times = time.monotonic() - self._since, None, 0
        log.info(self._restored, extra={"action": self._action, "outage_s": round(lasted, 1)})


class Routine:
    """A thread that does a chore again and again until it is closed. What fails is logged and repeated.

    chore: what it does, for the log and the thread's name. do: returns the seconds until the next time, None for
    every_s. at_end: done once after that.
    """

    def __init__(
        self,
        chore: str,
        do: Callable[[], float | None],
        *,
        every_s: float,
        at_end: Callable[[], object] | None = None,
    ) -> None:
        self._do, self._every_s, self._at_end = do, every_s, at_end
        self._outage = StoreOutage(
            action="housekeeping",
            failing=f"cannot {chore}; trying again, and nothing is lost. Make the database reachable",
            restored=f"can {chore} again",
        )
        self._woken = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"ragbandit: {chore}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Do the chore now."""
        self._woken.set()

    def stop(self) -> None:
        """End the thread when it has finished what it is at."""
        self._closing = True
        self._woken.set()

    def close(self) -> None:
        """End the thread; waits for at most JOIN_S."""
        self.stop()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        while not self._closing:
            wait_s = self._attempt(self._do)
            self._woken.wait(self._every_s if wait_s is None else wait_s)
            if not self._closing:
                self._woken.clear()
        if self._at_end is not None:
            self._attempt(self._at_end)

    def _attempt(self, work: Callable[[], Reply]) -> Reply | None:
        try:
            reply = work()
            self._outage.ended()
            return reply
        except QueueError:
            pass  # logged once per outage
        except BaseException as error:  # whatever a class of a user raises: this thread must live on
            self._outage.failed(error)
        return None


def insist(
    work: Callable[[], Reply],
    *,
    seconds: float,
    ending: threading.Event,
    failed: Callable[[StoreError | SnapshotError], object] | None = None,
) -> Reply:
    """The reply of `work`, which is repeated while the store fails: for so many seconds, and once when `ending` is set.

    failed: called with every error but the last. Raises the last one, StoreError or SnapshotError.
    """
    give_up, attempts = time.monotonic() + seconds, 0
    while True:
        last = ending.is_set() or time.monotonic() >= give_up
        try:
            return work()
        except (StoreError, SnapshotError) as error:
            if last:
                raise
            if failed is not None:
                failed(error)
        attempts += 1
        pause = back_off(attempts, base_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        ending.wait(min(pause, max(0.0, give_up - time.monotonic())))


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

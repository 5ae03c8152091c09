"""Work that continues after outages: repeated writes, threads that repeat a chore, and the log lines of an outage."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from ragbandit.router.telemetry.logs import Throttle
from ragbandit.shared.errors import QueueError, SnapshotError, StoreError
from ragbandit.shared.model_servers.outbound import back_off

Reply = TypeVar("Reply")

QUIET_S: Final = 60.0  #: seconds between two log lines of an outage
JOIN_S: Final = 5.0


class StoreOutage:
    """Logs the beginning, duration and end of an outage. action: name of the failing work. Thread-safe."""

    def __init__(self, *, action: str, failing: str, restored: str, log: str = "ragbandit.worker") -> None:
        self._action = action
        self.failing, self._restored = failing, restored
        self.level = logging.ERROR
        self._log = logging.getLogger(log)
        self._lock = threading.Lock()
        self._since: float | None = None
        self.throttle = Throttle(QUIET_S)
        self._times = 0

    @property
    def lasts(self) -> bool:
        return self._since is not None

    def note_failure(self, error: BaseException) -> None:
        """Record a failed attempt. The first failure is logged, and then one failure every QUIET_S."""
        with self._lock:
            now = time.monotonic()
            self._times += 1
            if self._since is None:
                self._since, self.throttle = now, Throttle(QUIET_S)
            if not self.throttle.lets_pass():
                return
            facts = {"action": self._action, "attempts": self._times, "for_s": round(now - self._since, 1)}
        self._log.log(self.level, self.failing, extra=facts | {"reason": f"{type(error).__name__}: {error}"})

    def note_success(self) -> None:
        """End the outage, if one lasts, and log how long it lasted."""
        if not self.lasts:
            return
        with self._lock:
            if self._since is None:
                return
            lasted = time.monotonic() - self._since
            self._since = None
            self._times = 0
        level = logging.DEBUG if self.level == logging.DEBUG else logging.INFO
        self._log.log(level, self._restored, extra={"action": self._action, "outage_s": round(lasted, 1)})


def retry_through_outage(
    work: Callable[[], Reply],
    *,
    seconds: float,
    ending: threading.Event,
    note_failure: Callable[[StoreError | SnapshotError], object] | None = None,
) -> Reply:
    """Call `work` until the store works, for at most `seconds`; once `ending` is set, the next error is raised."""
    give_up = time.monotonic() + seconds
    attempts = 0
    while True:
        is_last = ending.is_set() or time.monotonic() >= give_up
        try:
            return work()
        except (StoreError, SnapshotError) as error:
            if is_last:
                raise
            if note_failure is not None:
                note_failure(error)
        attempts += 1
        pause = back_off(attempts, base_s=0.5, longest_s=10.0)
        ending.wait(min(pause, max(0.0, give_up - time.monotonic())))


class Routine:
    """A thread that repeats `do` until it is closed. Exceptions are logged, and `do` is tried again.

    chore: the work in words, for the log. do: returns the seconds until its next run; None stands for `every_s`.
    at_end: called once, after the last run of `do`. at_once: whether the first run is at the start, not after `every_s`
    """

    def __init__(
        self,
        chore: str,
        do: Callable[[], float | None],
        *,
        every_s: float,
        at_end: Callable[[], object] | None = None,
        at_once: bool = True,
        outage: StoreOutage | None = None,
    ) -> None:
        self._do, self._at_end = do, at_end
        self._every_s, self._at_once = every_s, at_once
        self._outage = outage or StoreOutage(
            action="housekeeping",
            failing=f"cannot {chore}; trying again, and nothing is lost. Make the database reachable",
            restored=f"can {chore} again",
        )
        self._woken = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"ragbandit: {chore}", daemon=True)

    def start(self) -> "Routine":
        self._thread.start()
        return self

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._closing = True
        self._woken.set()

    def close(self) -> None:
        """End the thread, if it was started, and wait at most JOIN_S for it. It cannot be started afterwards."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        if not self._at_once:
            self._wait(self._every_s)
        while not self._closing:
            wait_s = self._attempt(self._do)
            self._wait(self._every_s if wait_s is None else wait_s)
        if self._at_end is not None:
            self._attempt(self._at_end)

    def _wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        if not self._closing:
            self._woken.clear()

    def _attempt(self, work: Callable[[], Reply]) -> Reply | None:
        try:
            reply = work()
            self._outage.note_success()
            return reply
        except QueueError:
            pass  # logged once per outage
        except BaseException as error:  # a user's class may raise anything, and the thread must continue
            self._outage.note_failure(error)
        return None

"""Polling: a thread that does the same work again and again, and at once when it is woken."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("ragbandit.polling")


class PollingThread:
    """Calls `work` every `every_s` seconds, and soon after `wake`; a call that fails is followed by the next one.

    The log has one line when calls begin to fail, and one when they succeed again.
    """

    def __init__(self, work: Callable[[], None], *, name: str, every_s: float) -> None:
        self._work = work
        self._every_s = every_s
        self._failing = False
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Do the work now instead of at the next interval."""
        self._wake.set()

    def close(self) -> None:
        """End the thread; waits for at most 5 s. Harmless if it never started."""
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._every_s)
            self._wake.clear()
            if self._closed.is_set():
                return
            self._attempt()

    def _attempt(self) -> None:
        try:
            self._work()
        except Exception as error:  # most often a StoreError; whatever it is, the next call may succeed
            if not self._failing:
                facts = {"action": "poll", "reason": str(error)}
                log.warning("polling the database failed; trying again every %g s", self._every_s, extra=facts)
            self._failing = True
            return
        if self._failing:
            log.info("polling the database works again", extra={"action": "poll"})
        self._failing = False

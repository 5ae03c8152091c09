"""Throttle: a line of the log that recurs is written at most once in so many seconds."""

import threading
import time
from collections.abc import Hashable


class Throttle:
    """Lets one of each kind through every `every_s` seconds. Safe to use from several threads."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._lock = threading.Lock()
        #: kind -> when one was let through last (time.monotonic)
        self._last: dict[Hashable, float] = {}

    def lets_pass(self, kind: Hashable = None) -> bool:
        """True for the first of its kind, and again when every_s have passed since the last one that passed.

        kind: of a small fixed set, since each one is kept.
        """
        with self._lock:
            now, last = time.monotonic(), self._last.get(kind)
            if last is not None and now < last + self.every_s:
                return False
            self._last[kind] = now
            return True

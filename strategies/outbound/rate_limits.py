"""Rate limits: a token bucket that fills steadily and may be overdrawn by callers that wait."""

import asyncio
import time


class RateLimit:
    """At most `per_minute` units a minute, a full minute's worth at once at the start; None is no limit.

    A token bucket: whoever takes more than is there owes it, and waits until it has flowed in. Callers are served in
    the order in which they came. All calls come from one event loop. per_minute is above 0.
    """

    def __init__(self, per_minute: float | None) -> None:
        self._capacity = per_minute
        self._level = per_minute or 0.0
        self._at = time.monotonic()

    async def take(self, amount: float) -> None:
        """Take so many units once they are there; more than a minute's worth counts as a minute's.

        A caller that is cancelled while it waits leaves its units to the others.
        """
        if self._capacity is None:
            return
        self._fill(self._capacity)
        amount = min(amount, self._capacity)
        self._level -= amount
        try:
            await asyncio.sleep(max(0.0, -self._level * 60.0 / self._capacity))
        except asyncio.CancelledError:
            self.give_back(amount)
            raise

    def give_back(self, amount: float) -> None:
        """Return what was taken and not used; a negative amount is used beyond what was taken."""
        if self._capacity is not None:
            self._fill(self._capacity)
            self._level = min(self._capacity, self._level + amount)

    def _fill(self, capacity: float) -> None:
        now = time.monotonic()
        self._level = min(capacity, self._level + (now - self._at) * capacity / 60.0)
        self._at = now

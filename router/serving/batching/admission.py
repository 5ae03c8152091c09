"""Admission: what a queue takes in. What would wait too long is refused at once, so that the rest is served in time.

The bound is the expected wait: batches ahead times the seconds that a full batch takes, by what was measured. A count
bounds the memory, and a share bounds one tenant while others ask too.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ragbandit.router.config.settings import ServerSettings
from ragbandit.shared.errors import Overloaded, TooManyRequests

#: batches that are not measured: the first ones load, connect and warm up
WARM_UP: Final = 3
#: weight of a batch that took longer than expected, and of one that took less: the expectation rises quickly
RISE, FALL = 0.5, 0.2
#: for how long a tenant that asked counts as one of several, seconds
TENANT_S: Final = 60.0
#: longest Retry-After, seconds
MAX_RETRY_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueLimits:
    """Bounds of one queue, as the settings of the section `server` say them."""

    max_wait_s: float = math.inf
    max_waiting: float = math.inf
    tenant_share: float = 1.0

    @classmethod
    def of(cls, server: ServerSettings) -> "QueueLimits":
        """The bounds in these settings."""
        return cls(max_wait_s=server.max_wait_s, max_waiting=server.max_waiting, tenant_share=server.tenant_share)


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueState:
    """State of one queue, and its counts since the start."""

    waiting: int
    #: of an item that would come now, seconds
    expected_wait_s: float
    #: items that were not taken in, by reason: "wait", "count", "tenant"
    refused: Mapping[str, int]
    #: items that were taken in and not worked on, by reason: "gone" (the caller left), "expired" (waited too long)
    dropped: Mapping[str, int]


class BatchTime:
    """Seconds of a batch by its size: a line through the last few batches mostly (weighted least squares).

    Batches are small while a queue fills, and a full one may take as long as a small one or many times as long: an
    average would not tell which.
    """

    def __init__(self) -> None:
        self._batches = 0
        self._size = self._seconds = 0.0
        # Weighted variance of the sizes, and their covariance with the seconds.
        self._spread = self._together = 0.0

    def record(self, seconds: float, *, size: int) -> None:
        """A batch of so many items took so long. The first WARM_UP batches are not counted."""
        self._batches += 1
        if self._batches <= WARM_UP:
            return
        if self._batches == WARM_UP + 1:
            self._size, self._seconds = float(size), seconds
            return
        weight = RISE if seconds > self.of(size) else FALL
        off_size, off_seconds = size - self._size, seconds - self._seconds
        self._size += weight * off_size
        self._seconds += weight * off_seconds
        self._spread = (1.0 - weight) * (self._spread + weight * off_size * off_size)
        self._together = (1.0 - weight) * (self._together + weight * off_size * off_seconds)

    def of(self, size: int) -> float:
        """Expected seconds of a batch of this size: 0 until one was counted; never below 0."""
        slope = max(0.0, self._together / self._spread) if self._spread > 1e-9 else 0.0
        # No batch takes less for more items, and the part that every batch takes is not below 0.
        slope = min(slope, self._seconds / self._size) if self._size else 0.0
        return self._seconds + slope * (size - self._size)


class Admission:
    """Who waits in one queue, and whether one more may. Not safe by itself: the queue's lock is held at every call.

    limit: most items in a batch.
    """

    def __init__(self, limits: QueueLimits, *, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._limit = limit
        self._clock = clock
        self._time = BatchTime()
        self._began: float | None = None
        self._running = 0
        self._waiting = 0
        self._by_tenant: dict[str, int] = {}
        # The tenant that asked last, and the last other one: the two that tell whether there are several.
        self._latest, self._other = ("", -math.inf), ("", -math.inf)
        self._refused = {"wait": 0, "count": 0, "tenant": 0}
        self._dropped = {"gone": 0, "expired": 0}

    def check_all(self) -> None:
        """Whether one more item may wait, whoever sends it; a refusal is counted. Raises Overloaded."""
        limits, waiting = self._limits, self._waiting
        if waiting >= limits.max_waiting:
            self._refused["count"] += 1
            raise self._refusal(Overloaded, f"{waiting} requests are waiting already", wait_s=self.expected_wait_s())
        # One may always wait: else a batch that takes long would keep everybody out until the queue is idle.
        wait_s = self.expected_wait_s()
        if waiting and wait_s > limits.max_wait_s:
            self._refused["wait"] += 1
            message = f"the expected wait is {wait_s:.1f} s, longer than server.max_wait_s ({limits.max_wait_s:g} s)"
            raise self._refusal(Overloaded, message, wait_s=wait_s)

    def check_tenant(self, tenant: str) -> None:
        """Whether one more item of this tenant may wait; a refusal is counted. Raises TooManyRequests."""
        now = self._clock()
        if tenant != self._latest[0]:
            self._other = self._latest
        self._latest = (tenant, now)
        mine, share = self._by_tenant.get(tenant, 0), self._limits.tenant_share
        if not mine or share >= 1.0 or now > self._other[1] + TENANT_S:
            return
        wait_s = self.expected_wait_s(mine)
        if mine >= share * self._limits.max_waiting or wait_s > share * self._limits.max_wait_s:
            self._refused["tenant"] += 1
            message = f"{mine} requests of the tenant {tenant!r} are waiting already, its share of the queue"
            raise self._refusal(TooManyRequests, message, wait_s=wait_s, field="tenant")

    def add(self, *, tenant: str = "") -> None:
        """One more waits."""
        self._waiting += 1
        self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + 1

    def remove(self, *, tenant: str = "", dropped: str | None = None) -> None:
        """One waits no more. dropped: why it is not worked on, "gone" or "expired"; None: it is in the next batch."""
        self._waiting -= 1
        left = self._by_tenant[tenant] - 1
        if left:
            self._by_tenant[tenant] = left
        else:
            del self._by_tenant[tenant]
        if dropped is not None:
            self._dropped[dropped] += 1

    def begin(self, size: int) -> None:
        """A batch of so many items begins."""
        self._began, self._running = self._clock(), size

    def end(self) -> None:
        """The batch is done."""
        assert self._began is not None
        self._time.record(self._clock() - self._began, size=self._running)
        self._began = None

    @property
    def waiting(self) -> int:
        """Items whose batch has not begun."""
        return self._waiting

    def expected_wait_s(self, ahead: int | None = None) -> float:
        """Seconds until the batch of an item begins. ahead: items before it; None: all that wait."""
        running_s = 0.0
        if self._began is not None:
            # One that is late is expected to be late as long again, by one batch at most: a stall of the database is
            # waited for, as long as the queue has room.
            batch_s = self._time.of(self._running)
            running_s = min(batch_s, abs(batch_s - (self._clock() - self._began)))
        full_batches = (self._waiting if ahead is None else ahead) // self._limit
        return running_s + full_batches * self._time.of(self._limit)

    def state(self) -> QueueState:
        """State and counts."""
        return QueueState(
            waiting=self._waiting,
            expected_wait_s=self.expected_wait_s(),
            refused=dict(self._refused),
            dropped=dict(self._dropped),
        )

    def _refusal(self, kind: type[Overloaded], message: str, *, wait_s: float, field: str | None = None) -> Overloaded:
        after_s = min(MAX_RETRY_S, max(1.0, math.ceil(wait_s)))
        remedy = f"try again in {after_s:g} s, with the same id"
        return kind(message, field=field, remedy=remedy, retry_after_s=after_s)

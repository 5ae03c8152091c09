"""Micro-batching: requests that arrive during a batch form the next batch, with one forward pass and one transaction.

With several callers, the next batch starts up to 3 ms later, so that callers that just got an answer can join it.
Otherwise the callers split into two groups that take turns, which costs a fifth of the throughput.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ragbandit.router.config.server import ServerSettings
from ragbandit.shared.errors import NotReady, Overloaded, TooManyRequests
from ragbandit.shared.types import Receipt

#: number of first batches that are not measured, because they load, connect and warm up
WARM_UP: Final = 3
#: weight of a batch that took longer than predicted, and of a faster one: predictions rise faster than they fall
RISE, FALL = 0.5, 0.2
#: seconds for which a tenant counts as active after a request
TENANT_S: Final = 60.0
MAX_RETRY_S: Final = 60.0
#: time limit of `close` for the items that wait, seconds
CLOSE_S: Final = 10.0
#: seconds between two checks by a closed queue whether its feeder's thread has ended
_FEEDER_POLL_S: Final = 0.05
_CLOSED: Final = "the service is shutting down"
#: how long a batch waits for the next items of callers that just got results: a share of the last batch's duration
GATHER_SHARE: Final = 0.05
#: longest such wait, seconds
MAX_GATHER_S: Final = 0.003


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueState:
    """State of one queue. Counts begin at the start of the process."""

    waiting: int
    expected_wait_s: float
    #: reason ("wait", "count" or "tenant") -> number of refused items
    refused: Mapping[str, int]
    #: reason ("gone": the caller left, "expired": waited too long) -> number of accepted items that were not served
    dropped: Mapping[str, int]


def combine_states(first: QueueState, second: QueueState) -> QueueState:
    """The state of two queues together."""

    def sums(counts: Mapping[str, int], other_counts: Mapping[str, int]) -> dict[str, int]:
        return {reason: counts[reason] + other_counts[reason] for reason in counts}

    return QueueState(
        waiting=first.waiting + second.waiting,
        expected_wait_s=max(first.expected_wait_s, second.expected_wait_s),
        refused=sums(first.refused, second.refused),
        dropped=sums(first.dropped, second.dropped),
    )


class BatchTime:
    """Predicts the seconds of a batch from its size, by weighted least squares on the latest batches.

    A mean would be wrong, because batches are small while a queue fills, and a full batch may take much longer.
    """

    def __init__(self) -> None:
        self._batches = 0
        self._size = self._seconds = 0.0
        # Weighted variance of the sizes, and their covariance with the seconds.
        self._spread = self._together = 0.0

    def record(self, seconds: float, *, size: int) -> None:
        self._batches += 1
        if self._batches <= WARM_UP:
            return
        if self._batches == WARM_UP + 1:
            self._size, self._seconds = float(size), seconds
            return
        weight = RISE if seconds > self.predict(size) else FALL
        off_size, off_seconds = size - self._size, seconds - self._seconds
        self._size += weight * off_size
        self._seconds += weight * off_seconds
        self._spread = (1.0 - weight) * (self._spread + weight * off_size * off_size)
        self._together = (1.0 - weight) * (self._together + weight * off_size * off_seconds)

    def predict(self, size: int) -> float:
        """Expected seconds of a batch of `size` items; 0 before the first measured batch."""
        slope = max(0.0, self._together / self._spread) if self._spread > 1e-9 else 0.0
        # Neither the slope nor the constant part of the line may be negative.
        slope = min(slope, self._seconds / self._size) if self._size else 0.0
        return self._seconds + slope * (size - self._size)


class TenantCounts(dict[str, int]):
    """Tenant -> number of its items, >= 1; tenants without items are removed."""

    def add(self, tenant: str, more: int) -> None:
        count = self.get(tenant, 0) + more
        if count:
            self[tenant] = count
        else:
            del self[tenant]


class ActiveTenants:
    """Records which tenants send requests. The queues of one service share this object. Thread-safe."""

    def __init__(self) -> None:
        # (tenant, time) of the latest request, and of the latest request by another tenant
        self._latest, self._other = ("", -math.inf), ("", -math.inf)
        self._lock = threading.Lock()

    def note(self, tenant: str, *, now: float) -> bool:
        """Record a request. Returns whether another tenant has been active during the last TENANT_S."""
        with self._lock:
            if tenant != self._latest[0]:
                self._other = self._latest
            self._latest = (tenant, now)
            return now <= self._other[1] + TENANT_S


Item = TypeVar("Item")
Result = TypeVar("Result")

#: time limit of an item's wait for its batch, seconds
SERVE_S = 60.0


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Item, Result]):
    item: Item
    future: "Future[Result]"
    tenant: str
    expires_at: float


class MicroBatcher(Generic[Item, Result]):
    """A thread that calls `work` with batches of items; `submit` returns a Future per item.

    work: returns a result or an exception per item, in order; if it raises, every item gets the exception. limit: most
    items in a batch. after: called with the results of a batch after its callers have them; must not raise. tenants:
    shared by the queues of one service. feeder: an earlier queue whose `work` submits its admitted items here.
    After `close`, this queue still accepts them until the feeder's thread has ended.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        *,
        name: str,
        limit: int,
        limits: ServerSettings,
        expire_s: float = SERVE_S,
        clock: Callable[[], float] = time.monotonic,
        after: Callable[[Sequence[Result | Exception]], object] | None = None,
        tenants: ActiveTenants | None = None,
        feeder: "MicroBatcher[Any, Any] | None" = None,
    ) -> None:
        self._work, self._after = work, after
        self._tenants, self._feeder = tenants or ActiveTenants(), feeder
        self._limit, self._limits = limit, limits
        self._expire_s, self._clock = expire_s, clock
        self._queue: deque[_Waiting[Item, Result]] = deque()
        self.batch_time = BatchTime()
        self._running: tuple[float, int] | None = None
        self._by_tenant = TenantCounts()
        self._refused = {"wait": 0, "count": 0, "tenant": 0}
        self._dropped = {"gone": 0, "expired": 0}
        self._closed = False
        #: number of callers at the end of the last batch
        self._callers = 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, item: Item, *, tenant: str = "", admitted: bool = False) -> "Future[Result]":
        """Submit an item. Raises Overloaded if it is refused (never if `admitted`), and NotReady after `close`."""
        with self._lock:
            if not admitted:
                self.admit(tenant)
            return self._add(item, tenant=tenant)

    def submit_all(self, items: Sequence[Item]) -> "list[Future[Result]]":
        """Submit all items if the first item is admitted, otherwise no item. Raises as `submit`."""
        with self._lock:
            self.admit("")
            return [self._add(item, tenant="") for item in items]

    def submit_each(
        self, items: Sequence[Item], *, tenants: Sequence[str], admitted: bool = False
    ) -> "list[Future[Result]]":
        """Submit each item that has room (every item if `admitted`); the Future of a refused item raises Overloaded.

        Raises Overloaded itself if the queue is full at the first item, and NotReady after `close`.
        """
        futures: list[Future[Result]] = []
        with self._lock:
            for item, tenant in zip(items, tenants, strict=True):
                try:
                    if not admitted:
                        self.admit(tenant)
                    futures.append(self._add(item, tenant=tenant))
                except Overloaded as error:
                    if not futures and not isinstance(error, TooManyRequests):
                        raise
                    futures.append(Future())
                    futures[-1].set_exception(error)
        return futures

    def is_full(self) -> bool:
        """Whether the queue accepts no further item from any tenant."""
        limits = self._limits
        with self._lock:
            waiting = len(self._queue)
            # One item may always wait. Otherwise all items would be refused during a slow batch, even if none waits.
            return waiting >= limits.max_waiting or (waiting > 0 and self._expected_wait_s() > limits.max_wait_s)

    def check_admission(self) -> None:
        """Raises Overloaded, and counts the refusal, if the queue is full."""
        with self._lock:
            if not self.is_full():
                return
            waiting, wait_s = len(self._queue), self._expected_wait_s()
            if waiting >= self._limits.max_waiting:
                self._refused["count"] += 1
                raise _refusal(Overloaded, f"{waiting} requests are waiting already", wait_s=wait_s)
            self._refused["wait"] += 1
            bound = f"server.max_wait_s ({self._limits.max_wait_s:g} s)"
            message = f"the expected wait is {wait_s:.1f} s, longer than {bound}"
            raise _refusal(Overloaded, message, wait_s=wait_s)

    def admit(self, tenant: str) -> None:
        """Raises NotReady, Overloaded, or TooManyRequests if the tenant's share of the queue is used up."""
        with self._lock:
            if self._closed:
                raise NotReady(_CLOSED)
            self.check_admission()
            is_shared = self._tenants.note(tenant, now=self._clock())
            waiting, share = self._by_tenant.get(tenant, 0), self._limits.tenant_share
            if not (waiting and share < 1.0 and is_shared):
                return
            wait_s = self._expected_wait_s(waiting)
            if waiting >= share * self._limits.max_waiting or wait_s > share * self._limits.max_wait_s:
                self._refused["tenant"] += 1
                message = f"{waiting} requests of the tenant {tenant!r} are waiting already, its share of the queue"
                raise _refusal(TooManyRequests, message, wait_s=wait_s, field="tenant")

    def alive(self) -> bool:
        return self._thread.is_alive()

    def state(self) -> QueueState:
        with self._lock:
            return QueueState(
                waiting=len(self._queue),
                expected_wait_s=self._expected_wait_s(),
                refused=dict(self._refused),
                dropped=dict(self._dropped),
            )

    def close(self, *, timeout_s: float = CLOSE_S) -> None:
        """Refuse new items, and wait at most `timeout_s` for the end of those that were admitted."""
        with self._lock:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _expected_wait_s(self, ahead: int | None = None) -> float:
        """Seconds until the batch of a new item begins. ahead: number of queued items before it; None for all."""
        running_s = 0.0
        if self._running is not None:
            # A batch that is late by x seconds is expected to end in x more seconds, at most in the time of a whole
            # batch. So requests are not refused during a stall of the database while the queue has room.
            began, size = self._running
            batch_s = self.batch_time.predict(size)
            running_s = min(batch_s, abs(batch_s - (self._clock() - began)))
        full_batches = (len(self._queue) if ahead is None else ahead) // self._limit
        return running_s + full_batches * self.batch_time.predict(self._limit)

    def _add(self, item: Item, *, tenant: str) -> "Future[Result]":
        if self._has_ended():  # checked under the lock, so that no item is added after the last batch
            raise NotReady(_CLOSED)
        waiting = _Waiting(item, Future[Result](), tenant, self._clock() + self._expire_s)
        self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + 1
        self._queue.append(waiting)
        self._changed.notify()
        return waiting.future

    def _has_ended(self) -> bool:
        """Whether the queue accepts no further item, not even from its feeder."""
        return self._closed and (self._feeder is None or not self._feeder.alive())

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            if batch:
                began, size = self._running = self._clock(), len(batch)
                self._serve(batch)
                batch.clear()  # frees the conversations of its items before the wait for the next batch
                with self._lock:
                    seconds = self._clock() - began
                    self.batch_time.record(seconds, size=size)
                    self._running = None
                    if self._callers > 1:
                        self._gather(min(GATHER_SHARE * seconds, MAX_GATHER_S))

    def _gather(self, longest_s: float) -> None:
        """Wait a moment for the callers of the last batch to submit their next items."""
        callers = min(self._callers, self._limit)
        if callers > 1:
            self._changed.wait_for(lambda: len(self._queue) >= callers or self._closed, longest_s)

    def _next_batch(self) -> "list[_Waiting[Item, Result]] | None":
        """Take the next items whose callers still wait. Returns None if the queue is closed and empty."""
        batch: list[_Waiting[Item, Result]] = []
        expired: list[_Waiting[Item, Result]] = []
        with self._lock:
            while not (self._queue or self._has_ended()):
                self._changed.wait(_FEEDER_POLL_S if self._closed else None)
            if not self._queue:
                return None
            now = self._clock()
            while self._queue and len(batch) < self._limit:
                first = self._queue.popleft()
                self._by_tenant.add(first.tenant, -1)
                if not first.future.set_running_or_notify_cancel():
                    self._dropped["gone"] += 1
                elif first.expires_at < now:
                    self._dropped["expired"] += 1
                    expired.append(first)
                else:
                    batch.append(first)
        message = f"the request was not served within {self._expire_s:g} s, and was dropped"
        for late in expired:  # outside the lock, because the Future calls its callbacks here
            late.future.set_exception(NotReady(message, remedy="try again with the same id"))
        return batch

    def _serve(self, batch: "list[_Waiting[Item, Result]]") -> None:
        results: Sequence[Result | Exception]
        try:
            results = self._work([waiting.item for waiting in batch])
            if len(results) != len(batch):  # without this check, some callers would wait for ever
                raise ValueError(f"{len(results)} results for {len(batch)} items")
        except Exception as error:
            results = [error] * len(batch)
        self._callers = len(batch) + len(self._queue)
        for waiting, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                waiting.future.set_exception(result)
            else:
                waiting.future.set_result(result)
        if self._after is not None:
            self._after(results)


def _refusal(kind: type[Overloaded], message: str, *, wait_s: float, field: str | None = None) -> Overloaded:
    after_s = min(MAX_RETRY_S, max(1.0, math.ceil(wait_s)))
    remedy = f"try again in {after_s:g} s, with the same id"
    return kind(message, field=field, remedy=remedy, retry_after_s=after_s)


def make_write_queue(
    write: Callable[[Sequence[Item]], Sequence[Result | Exception]],
    *,
    name: str,
    wake: Callable[[], None],
    limits: ServerSettings,
) -> MicroBatcher[Item, Result]:
    """Make the queue for outcomes or for feedback. wake: called after new items, to wake the learner."""

    def notify(results: Sequence[Result | Exception]) -> None:
        for result in results:
            if result is True or (isinstance(result, Receipt) and not result.duplicate):
                wake()
                return

    return MicroBatcher(write, name=name, limit=500, limits=limits, after=notify)


async def result_on_loop(future: "Future[Result]") -> Result:
    """Wait for the result on an event loop. If the waiting task is cancelled, the item stays in its queue."""
    loop = asyncio.get_running_loop()
    waiting = loop.create_future()  # `asyncio.wrap_future` takes three times as many calls

    def end() -> None:
        if not waiting.done():
            waiting.set_result(None)

    def wake(_: object) -> None:
        try:  # noqa: SIM105 - `suppress` would take longer than the call
            loop.call_soon_threadsafe(end)
        except RuntimeError:  # the event loop is closed already
            pass

    future.add_done_callback(wake)
    await waiting
    return future.result()


def reply_of(future: "Future[Result]", *, timeout_s: float) -> Result:
    """Wait for the result. Raises the Future's exception, or NotReady after `timeout_s`."""
    try:
        return future.result(timeout_s)
    except FutureTimeout as error:
        future.cancel()  # drops the item, unless its batch has begun
        remedy = "send it again with the same id: nothing is stored twice"
        message = f"no reply within {timeout_s:g} s, so it is not known whether the request is stored"
        raise NotReady(message, remedy=remedy) from error

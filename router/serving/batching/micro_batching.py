"""Micro-batching: requests that arrive at the same time share one forward pass and one transaction.

There is no batching delay: the first request is served at once, and all that arrive meanwhile form the next batch.
A single request pays one hand-over between threads; under load the batches grow by themselves. What would wait too
long is refused when it comes (`admission`), and what nobody waits for any more is dropped before any work is done.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from ragbandit.router.serving.batching.admission import Admission, QueueLimits, QueueState
from ragbandit.shared.errors import NotReady, Overloaded

Item = TypeVar("Item")
Result = TypeVar("Result")

#: longest wait for a batch to be served, seconds
SERVE_S = 60.0


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Item, Result]):
    """An item that waits for its batch."""

    item: Item
    future: "Future[Result]"
    tenant: str
    #: when it is too late for it (time.monotonic)
    expires_at: float


class MicroBatcher(Generic[Item, Result]):
    """A thread that calls `work` with batches of items; `submit` returns a Future per item.

    `work` returns one result or one exception per item, in order. If it raises, every item of the batch gets the
    exception. limit: most items in a batch. limits: of the queue. expire_s: an item that has waited longer is dropped.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        *,
        name: str,
        limit: int,
        limits: QueueLimits | None = None,
        expire_s: float = SERVE_S,
    ) -> None:
        self._work = work
        self._limit = limit
        self._expire_s = expire_s
        self._queue: deque[_Waiting[Item, Result]] = deque()
        self._admission = Admission(limits or QueueLimits(), limit=limit)
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; what was handed over before is served now."""
        self._thread.start()

    def submit(self, item: Item, *, tenant: str = "", admitted: bool = False) -> "Future[Result]":
        """Hand an item over. Raises Overloaded if it would wait too long, NotReady after `close`.

        admitted: it was admitted before, by `check_admission`.
        """
        return self.submit_all([item], tenant=tenant, admitted=admitted)[0]

    def submit_all(self, items: Sequence[Item], *, tenant: str = "", admitted: bool = False) -> "list[Future[Result]]":
        """Hand items over, all or none of them: admitted as the first one is. Raises as `submit`."""
        expires_at = time.monotonic() + self._expire_s
        waiting = [_Waiting(item, Future[Result](), tenant, expires_at) for item in items]
        with self._changed:  # so that no item slips in after the last batch
            if self._closed:
                raise NotReady("the service is shutting down")
            if not admitted:
                self._admission.check_all()
                self._admission.check_tenant(tenant)
            for each in waiting:
                self._admission.add(tenant=tenant)
                self._queue.append(each)
            self._changed.notify()
        return [each.future for each in waiting]

    def submit_each(self, items: Sequence[Item], *, tenants: Sequence[str]) -> "list[Future[Result]]":
        """Hand items over, each admitted for itself: the Future of one that is refused raises why.

        Raises as `submit` if not even the first may wait.
        """
        expires_at = time.monotonic() + self._expire_s
        waiting = [
            _Waiting(item, Future[Result](), tenant, expires_at) for item, tenant in zip(items, tenants, strict=True)
        ]
        refused: list[tuple[Future[Result], Overloaded]] = []
        with self._changed:
            if self._closed:
                raise NotReady("the service is shutting down")
            if waiting:
                self._admission.check_all()
            for at, each in enumerate(waiting):
                try:
                    if at:
                        self._admission.check_all()
                    self._admission.check_tenant(each.tenant)
                except Overloaded as error:
                    refused.append((each.future, error))
                    continue
                self._admission.add(tenant=each.tenant)
                self._queue.append(each)
            self._changed.notify()
        for future, refusal in refused:  # without the lock: a Future calls its callbacks here
            future.set_exception(refusal)
        return [each.future for each in waiting]

    def check_admission(self) -> None:
        """Raises Overloaded if whatever came now would wait too long."""
        with self._changed:
            self._admission.check_all()

    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def depth(self) -> int:
        """Items waiting for the next batch."""
        return self._admission.waiting

    def state(self) -> QueueState:
        """State of the queue, and its counts."""
        with self._changed:
            return self._admission.state()

    def close(self, *, timeout_s: float = 10.0) -> None:
        """Serve what has been handed over, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            if batch:
                self._serve(batch)
                with self._changed:
                    self._admission.end()

    def _next_batch(self) -> "list[_Waiting[Item, Result]] | None":
        """The next items that somebody still waits for; None: closed, and nothing is left."""
        batch: list[_Waiting[Item, Result]] = []
        expired: list[_Waiting[Item, Result]] = []
        with self._changed:
            while not self._queue:
                if self._closed:
                    return None
                self._changed.wait()
            now = time.monotonic()
            while self._queue and len(batch) < self._limit:
                first = self._queue.popleft()
                if not first.future.set_running_or_notify_cancel():
                    self._admission.remove(tenant=first.tenant, dropped="gone")
                elif first.expires_at < now:
                    self._admission.remove(tenant=first.tenant, dropped="expired")
                    expired.append(first)
                else:
                    self._admission.remove(tenant=first.tenant)
                    batch.append(first)
            if batch:
                self._admission.begin(len(batch))
        for late in expired:  # without the lock: a Future calls its callbacks here
            late.future.set_exception(
                NotReady(f"not served within {self._expire_s:g} s, and dropped", remedy="try again with the same id")
            )
        return batch

    def _serve(self, batch: "list[_Waiting[Item, Result]]") -> None:
        try:
            results = self._work([each.item for each in batch])
            if len(results) != len(batch):  # else some callers would wait for ever
                raise ValueError(f"{len(results)} results for {len(batch)} items")
        except Exception as error:
            for each in batch:
                each.future.set_exception(error)
            return
        for each, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                each.future.set_exception(result)
            else:
                each.future.set_result(result)

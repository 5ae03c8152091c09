"""Micro-batching: requests that arrive at the same time share one forward pass and one transaction.

There is no batching delay: the first request is served at once, and all that arrive meanwhile form the next batch.
A single request pays one hand-over between threads; under load the batches grow by themselves.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from ragbandit.router.errors import NotReady

__all__ = ["MicroBatcher"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class MicroBatcher(Generic[Item, Result]):
    """A thread that calls `work` with batches of items; `submit` returns a Future per item.

    `work` returns one result or one exception per item, in order. If it raises, every item of the batch gets the
    exception. limit: most items in a batch.
    """

    def __init__(
        self, work: Callable[[Sequence[Item]], Sequence[Result | Exception]], *, name: str, limit: int
    ) -> None:
        self._work = work
        self._limit = limit
        self._queue: queue.SimpleQueue[tuple[Item, Future[Result]] | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; what was handed over before is served now."""
        self._thread.start()

    def submit(self, item: Item) -> "Future[Result]":
        """Hand an item over. Raises NotReady after `close`."""
        future: Future[Result] = Future()
        with self._lock:  # so that no item slips in behind the closing mark
            if self._closed.is_set():
                raise NotReady("the service is shutting down")
            self._queue.put((item, future))
        return future

    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def depth(self) -> int:
        """Items waiting for the next batch."""
        return self._queue.qsize()

    def close(self, *, timeout_s: float = 10.0) -> None:
        """Serve what has been handed over, then end the thread."""
        with self._lock:
            if not self._closed.is_set():
                self._closed.set()
                self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = [first], False
            while len(batch) < self._limit:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    last = True
                    break
                batch.append(more)
            self._serve(batch)
            if last:
                return

    def _serve(self, batch: list[tuple[Item, "Future[Result]"]]) -> None:
        live = [(item, future) for item, future in batch if future.set_running_or_notify_cancel()]
        if not live:
            return
        try:
            results = self._work([item for item, _ in live])
            if len(results) != len(live):  # else some callers would wait for ever
                raise ValueError(f"{len(results)} results for {len(live)} items")
        except Exception as error:
            for _, future in live:
                future.set_exception(error)
            return
        for (_, future), result in zip(live, results, strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

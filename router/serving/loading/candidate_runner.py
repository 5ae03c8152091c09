"""Candidate runner: asks one candidate version on a thread of its own, within a time limit."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError as FutureTimeout, wait
from queue import SimpleQueue
from typing import Any, Final

from ragbandit.shared.errors import NotReady, PolicyFault

log = logging.getLogger("ragbandit.versions")

FAULTS_IN_A_ROW: Final = 5

_Work = Callable[[], Any]


class CandidateRunner:
    """A candidate's own thread. The deciding thread calls `submit` and `result`, another thread `load_in_time`."""

    def __init__(self, name: str, *, limit_s: float) -> None:
        self.name, self.limit_s = name, limit_s
        self.faults = 0
        #: reason of the fault in the last batch; "" if the last batch succeeded
        self.last_fault = ""
        self._in_a_row = 0
        self._out_until = -1.0
        self._work: SimpleQueue[tuple[_Work, Future[Any]] | None] = SimpleQueue()
        self._pending: Future[Any] | None = None
        self._loading: Future[Any] | None = None
        self._busy_with = f"still busy with an earlier batch after more than {limit_s * 1000:g} ms"
        threading.Thread(target=self._run, name=f"ragbandit-{name}", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        return any(future is not None and not future.done() for future in (self._pending, self._loading))

    def load_in_time(self, load: _Work, *, wait_s: float) -> Any:
        """Run `load` on the candidate's thread; returns its result. Raises NotReady after `wait_s`; then call again."""
        if self._loading is None:
            if self.is_busy:
                raise NotReady(self._busy_with)
            self._loading = self._enqueue(load)
            wait([self._loading], wait_s)
        if not self._loading.done():
            raise NotReady(f"the candidate has not been loaded within {wait_s:g} s, and loading goes on")
        loading, self._loading = self._loading, None
        return loading.result()[1]

    def submit(self, work: _Work) -> "Future[Any] | str":
        """Start a batch, and return its Future; or return why not: the candidate is skipped, or still busy."""
        if self.is_busy:
            return self.note_failure(self._busy_with)
        if self._in_a_row >= FAULTS_IN_A_ROW and time.monotonic() < self._out_until:
            return f"left out after {self._in_a_row} faults in a row, the last one: {self.last_fault}"
        self._pending = self._enqueue(work)
        return self._pending

    def result(self, pending: "Future[Any]") -> Any:
        """Wait at most `limit_s` for the result of a batch. Raises PolicyFault if the batch failed or took longer."""
        try:
            took_s, result = pending.result(self.limit_s)
        except FutureTimeout:
            raise PolicyFault(self.note_failure(f"no pmf within {self.limit_s * 1000:g} ms")) from None
        except Exception as error:  # a failing candidate must not fail the callers' questions
            raise PolicyFault(self.note_failure(f"{type(error).__name__}: {error}")) from error
        if took_s > self.limit_s:
            raise PolicyFault(
                self.note_failure(f"took {took_s * 1000:.0f} ms, and {self.limit_s * 1000:g} are allowed")
            )
        return result

    def note_success(self) -> None:
        if self._in_a_row >= FAULTS_IN_A_ROW:
            log.info("a candidate gives pmfs again", extra={"action": "candidate", "version": self.name})
        self._in_a_row, self.last_fault = 0, ""

    def close(self) -> None:
        self._work.put(None)

    def note_failure(self, reason: str) -> str:
        self.faults += 1
        self._in_a_row += 1
        self.last_fault = reason
        if self._in_a_row >= FAULTS_IN_A_ROW and time.monotonic() >= self._out_until:
            self._out_until = time.monotonic() + 30.0
            fields = {"action": "candidate", "version": self.name, "times": self.faults, "reason": reason}
            log.error("a candidate fails: it is skipped, and the champion decides alone", extra=fields)
        return reason

    def _enqueue(self, work: _Work) -> "Future[Any]":
        pending: Future[Any] = Future()
        self._work.put((work, pending))
        return pending

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            work, pending = job
            began = time.monotonic()
            try:
                result = work()
                pending.set_result((time.monotonic() - began, result))
            except Exception as error:
                pending.set_exception(error)
            except BaseException as error:  # a candidate must not end the process
                pending.set_exception(PolicyFault(f"{type(error).__name__}: {error}"))

"""Candidate runner: asks a candidate on a thread of its own, so that one that hangs holds up no decision.

A candidate that fails FAULTS_IN_A_ROW times is left out for LEFT_OUT_S, then tried once more. One that hangs has its
thread to itself and is not asked again before it comes back: there is one thread for each candidate, never more.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from queue import SimpleQueue
from typing import Any, Final

from ragbandit.shared.errors import PolicyFault

log = logging.getLogger("ragbandit.versions")

#: after so many faults one after the other a candidate is left out
FAULTS_IN_A_ROW: Final = 5
#: for so long, seconds
LEFT_OUT_S: Final = 30.0

_Work = Callable[[], Any]


def as_fault(error: BaseException) -> Exception:
    """The error as one that ends no thread: a candidate may raise SystemExit as well."""
    return error if isinstance(error, Exception) else PolicyFault(f"{type(error).__name__}: {error}")


class CandidateRunner:
    """The thread of one candidate. `submit` and `result` are called by one thread.

    limit_s: the longest that it may take for a batch.
    """

    def __init__(self, name: str, *, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self.limit_s, self.clock = name, limit_s, clock
        #: since the start of this process
        self.faults = 0
        #: why it could not be used the last time; "": it could
        self.last_fault = ""
        self._in_a_row = 0
        self._out_until = -1.0
        self._work: SimpleQueue[tuple[_Work, Future[Any]] | None] = SimpleQueue()
        self._pending: Future[Any] | None = None
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether it is still at a batch."""
        return self._pending is not None and not self._pending.done()

    def submit(self, work: _Work) -> "Future[Any] | str":
        """Begin the work; or why it is not begun: it is left out, or still at the batch before."""
        if self.busy:
            return self.failed(f"still busy with an earlier batch after more than {self.limit_s * 1000:g} ms")
        if self._in_a_row >= FAULTS_IN_A_ROW and self.clock() < self._out_until:
            return f"left out after {self._in_a_row} faults in a row, the last one: {self.last_fault}"
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"ragbandit-{self.name}", daemon=True)
            self._thread.start()
        self._pending = Future()
        self._work.put((work, self._pending))
        return self._pending

    def result(self, pending: "Future[Any]") -> Any:
        """What came of it. Raises PolicyFault: it failed, or has not come within the limit from now on."""
        try:
            took_s, result = pending.result(self.limit_s)
        except FutureTimeout:
            raise PolicyFault(self.failed(f"no pmf within {self.limit_s * 1000:g} ms")) from None
        except Exception as error:  # a candidate must never cost a caller the answer
            raise PolicyFault(self.failed(f"{type(error).__name__}: {error}")) from error
        if took_s > self.limit_s:
            raise PolicyFault(self.failed(f"took {took_s * 1000:.0f} ms, and {self.limit_s * 1000:g} are allowed"))
        return result

    def succeeded(self) -> None:
        """What it gave could be used."""
        if self._in_a_row >= FAULTS_IN_A_ROW:
            log.info("a candidate gives pmfs again", extra={"action": "candidate", "version": self.name})
        self._in_a_row, self.last_fault = 0, ""

    def close(self) -> None:
        """End the thread once it has come back; nobody waits for it."""
        self._work.put(None)

    def failed(self, reason: str) -> str:
        """What it gave could not be used; the reason."""
        self.faults += 1
        self._in_a_row += 1
        self.last_fault = reason
        if self._in_a_row >= FAULTS_IN_A_ROW and self.clock() >= self._out_until:
            self._out_until = self.clock() + LEFT_OUT_S
            facts = {"action": "candidate", "version": self.name, "times": self.faults, "reason": reason}
            log.error("a candidate fails: it is left out, and the champion decides alone", extra=facts)
        return reason

    def _run(self) -> None:
        while (taken := self._work.get()) is not None:
            work, pending = taken
            began = time.monotonic()
            try:
                result = work()
            except BaseException as error:  # one that asks the process to end asks in vain
                pending.set_exception(as_fault(error))
            else:
                pending.set_result((time.monotonic() - began, result))

"""Live versions: immutable values that the thread which decides reads, and another one replaces as a whole."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, TimeoutError as FutureTimeout, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.base import Policy
from ragbandit.shared.errors import NotReady, PolicyFault
from ragbandit.shared.types import ArmName, PolicyControl, PolicyVersion, RunBy

log = logging.getLogger("ragbandit.versions")

#: number of consecutive faults after which a candidate is skipped
FAULTS_IN_A_ROW: Final = 5
#: time for which it is skipped, seconds
LEFT_OUT_S: Final = 30.0

_Work = Callable[[], Any]


class CandidateRunner:
    """The thread of one candidate. `submit` and `result` are called by one thread, `loaded` by another.

    limit_s: the longest that it may take for a batch.
    """

    def __init__(self, name: str, *, limit_s: float) -> None:
        self.name, self.limit_s = name, limit_s
        #: since the start of this process
        self.faults = 0
        #: why it could not be used the last time; "": it could
        self.last_fault = ""
        self._in_a_row = 0
        self._out_until = -1.0
        self._work: SimpleQueue[tuple[_Work, Future[Any]] | None] = SimpleQueue()
        self._pending: Future[Any] | None = None
        self._loading: Future[Any] | None = None
        self._busy_with = f"still busy with an earlier batch after more than {limit_s * 1000:g} ms"
        threading.Thread(target=self._run, name=f"ragbandit-{name}", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether it is still at a batch, or being loaded."""
        return any(one is not None and not one.done() for one in (self._pending, self._loading))

    def loaded(self, load: _Work, *, wait_s: float) -> Any:
        """The result of `load`, which runs on this thread. Raises its exception, and NotReady while it runs; then try
        again. wait_s: longest wait in the first call.
        """
        if self._loading is None:
            if self.busy:
                raise NotReady(self._busy_with)
            self._loading = self._begin(load)
            wait([self._loading], wait_s)
        if not self._loading.done():
            raise NotReady(f"it has not been loaded within {wait_s:g} s, and is waited for")
        loading, self._loading = self._loading, None
        return loading.result()[1]

    def submit(self, work: _Work) -> "Future[Any] | str":
        """Begin the work; or why it is not begun: it is left out, or still at the batch before."""
        if self.busy:
            return self.failed(self._busy_with)
        if self._in_a_row >= FAULTS_IN_A_ROW and time.monotonic() < self._out_until:
            return f"left out after {self._in_a_row} faults in a row, the last one: {self.last_fault}"
        self._pending = self._begin(work)
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
        if self._in_a_row >= FAULTS_IN_A_ROW and time.monotonic() >= self._out_until:
            self._out_until = time.monotonic() + LEFT_OUT_S
            facts = {"action": "candidate", "version": self.name, "times": self.faults, "reason": reason}
            log.error("a candidate fails: it is left out, and the champion decides alone", extra=facts)
        return reason

    def _begin(self, work: _Work) -> "Future[Any]":
        pending: Future[Any] = Future()
        self._work.put((work, pending))
        return pending

    def _run(self) -> None:
        while (taken := self._work.get()) is not None:
            work, pending = taken
            began = time.monotonic()
            try:
                result = work()
                pending.set_result((time.monotonic() - began, result))
            except Exception as error:
                pending.set_exception(error)
            except BaseException as error:  # a request that the process end is not granted
                pending.set_exception(PolicyFault(f"{type(error).__name__}: {error}"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """The policy in use. Replaced as a whole; its `learn` is never called here."""

    policy: Policy
    version: str
    last_seq: int
    #: the configuration, with what the version of the policy changes that decides
    settings: Settings
    #: the configured policy is being learned again from the ledger; this one decides until it is there
    rebuilding: bool = False
    #: outcomes learned by arm, for the cold-start floor, where the policy in use has not counted them itself
    learned: Mapping[ArmName, int] | None = None

    @property
    def seen(self) -> Mapping[ArmName, int]:
        """Outcomes learned by arm."""
        return self.policy.seen if self.learned is None else self.learned


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A version in shadow or canary, as it can be asked here."""

    version: PolicyVersion
    #: None if it is not loaded
    serving: Serving | None
    #: why it is not loaded
    unloaded: str | None
    runner: CandidateRunner
    #: arms that it offers and the champion does not
    added: tuple[ArmName, ...] = ()

    @property
    def fault(self) -> str | None:
        """Why it cannot be asked; None where it can."""
        rebuilding = self.serving is not None and self.serving.rebuilding
        return self.unloaded or ("its ledger is being learned again" if rebuilding else None)

    def added_for(self, run_by: RunBy) -> tuple[ArmName, ...]:
        """Its own arms for a question that our workers answer, or the caller's own stack."""
        workers = () if self.serving is None else self.serving.settings.worker_arms
        return tuple(arm for arm in self.added if run_by == "caller" or arm in workers)


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveVersions:
    """The kill switch and the candidates of one revision."""

    control: PolicyControl
    #: the canary first, then those in shadow, the oldest first
    candidates: tuple[Candidate, ...] = ()

    @property
    def asks(self) -> bool:
        """Whether candidates are asked: not while the kill switch is on."""
        return bool(self.candidates) and self.control.killed is None

    @property
    def added(self) -> tuple[ArmName, ...]:
        """Arms that only candidates offer."""
        return tuple(dict.fromkeys(arm for one in self.candidates for arm in one.added))

    def added_for(self, run_by: RunBy) -> tuple[ArmName, ...]:
        """Those of them that fit a question that our workers answer, or the caller's own stack."""
        return tuple(dict.fromkeys(arm for one in self.candidates for arm in one.added_for(run_by)))


#: where no version was ever made
NOTHING_LIVE: Final = LiveVersions(control=PolicyControl(revision=0))

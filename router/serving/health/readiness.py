"""Readiness: tries every part that routing needs, each on its own thread. Callers within RETRY_S share the results."""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from ragbandit.router.learning.status import Status
from ragbandit.router.queue.presence import QueueWork, WorkerState
from ragbandit.router.serving.health.circuit_breaker import ArmHealth
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.serving.overview import Earned
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease, delete_expired
from ragbandit.shared.errors import RagBanditError, StoreError

OK = "ok"
REDIS = "redis"
#: seconds for which a result is used again
RETRY_S = 1.0
#: longest wait for a result, seconds
REPLY_S = 2.0
#: seconds after a failed write for which the database counts as failed: a full disk may take the small trial row
FAULT_S = 5.0
_ROW = "ready:"


class TrialWrites:
    """Tries the database by writing a row, since reads may work on a full disk and on a dead connection."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lease = Lease(database=database, name=f"{_ROW}{uuid.uuid4().hex}")
        self._first = True

    def write(self) -> None:
        """Write the row. Raises StoreError, also within FAULT_S seconds after another write of this process failed."""
        self._lease.acquire(holder="ready", lease_s=RETRY_S)
        if self._first:
            delete_expired(self._database, prefix=_ROW, expired_s=3600.0)  # left by processes that have ended
            self._first = False
        failed = self._database.failed_write
        if failed is not None and time.monotonic() < failed.at + FAULT_S:
            raise StoreError(f"the last write failed: {failed.reason}")


def _start_check(check: Callable[[], object]) -> "Future[str]":
    """Run a check on a new thread. Returns the Future of OK, or of the reason why the check failed."""
    result: Future[str] = Future()
    result.set_running_or_notify_cancel()  # a caller that stops waiting must not cancel the Future for others

    def run() -> None:
        try:
            check()
            state = OK
        except RagBanditError as error:
            state = str(error)
        except Exception as error:  # otherwise the Future would never be done
            state = f"{type(error).__name__}: {error}"
        result.set_result(state)

    threading.Thread(target=run, name="ragbandit-ready", daemon=True).start()
    return result


class Readiness:
    """The state of several parts, by name. checks: part -> function that raises an error if the part does not work.

    alive: whether the router's thread runs, for the part "router". serving: the policy in use, for the part "policy",
    which is listed only while another policy decides.
    """

    def __init__(
        self,
        checks: Mapping[str, Callable[[], object]],
        *,
        alive: Callable[[], bool],
        serving: Callable[[], ServedPolicy] | None = None,
    ) -> None:
        self._checks = checks
        self._alive, self._serving = alive, serving
        #: part -> (time.monotonic() when the last try began, result)
        self._tries: dict[str, tuple[float, Future[str]]] = {}
        self._lock = threading.Lock()

    def start_checks(self) -> "tuple[list[Future[str]], float]":
        """Start tries that are due. Returns (Futures to wait for before `states` is read, longest wait in seconds)."""
        now = time.monotonic()
        with self._lock:
            for name, check in self._checks.items():
                last = self._tries.get(name)
                if last is None or (last[1].done() and now > last[0] + RETRY_S):
                    self._tries[name] = now, _start_check(check)
            tries = [(began + REPLY_S - now, result) for began, result in self._tries.values()]
        waiting = {result: seconds for seconds, result in tries if seconds > 0 and not result.done()}
        return list(waiting), max(waiting.values(), default=0.0)

    def states(self) -> dict[str, str]:
        router = OK if self._alive() else "its thread has ended, so no question is decided: restart the service"
        states = {"router": router} | dict.fromkeys(self._checks, OK)
        for name, (began, result) in list(self._tries.items()):
            states[name] = result.result() if result.done() else f"no reply for {time.monotonic() - began:.1f} s"
        serving = None if self._serving is None else self._serving()
        if serving is not None and serving.rebuilding:
            states["policy"] = f"rebuilding: {serving.version} decides until the policy is learned again"
        return states


@dataclass(frozen=True, kw_only=True, slots=True)
class LagPercentiles:
    """Milliseconds until a router's policy has learned a feedback, over the last n feedbacks; None if n is 0."""

    p50: float | None
    p99: float | None
    n: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterState:
    """State of one router and of its ledger at one time. Counts begin at the start of the process."""

    ledger: Status
    label: str
    algorithm: str
    #: version of the snapshot in use, and seq of the last update that this snapshot has learned
    serving: str
    serving_last_seq: int
    #: whether another policy decides while the configured one is learned again from the ledger
    rebuilding: bool
    arms: tuple[ArmHealth, ...]
    faults: int
    fail_opens: int
    #: notifications to workers and learner that did not reach Redis; recovery repeats them
    failed_notifications: int
    feedback_to_policy_ms: LagPercentiles
    earned: Earned
    #: waiting jobs per queue, workers, and their work per queue; each is None if Redis cannot be reached
    jobs: Mapping[str, int] | None
    workers: Sequence[WorkerState] | None
    work: Mapping[str, QueueWork] | None
    #: "ok", or why this process cannot use Redis, as in /ready
    redis: str


def lag_percentiles(lags_s: Sequence[float]) -> LagPercentiles:
    if not lags_s:
        return LagPercentiles(p50=None, p99=None, n=0)
    p50, p99 = np.percentile(lags_s, [50, 99]) * 1000
    return LagPercentiles(p50=float(p50), p99=float(p99), n=len(lags_s))

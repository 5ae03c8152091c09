"""Router state: one frozen value that HTTP and the metrics show; the command line shows its ledger part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ragbandit.router.learning.status import Status
from ragbandit.router.queue.presence import QueueWork, WorkerState
from ragbandit.router.serving.health.circuit_breaker import ArmHealth
from ragbandit.router.serving.overview import Earned


@dataclass(frozen=True, kw_only=True, slots=True)
class LagPercentiles:
    """Milliseconds from feedback to a router's policy, over the last thousand feedbacks; None where there are none."""

    p50: float | None
    p99: float | None
    n: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterState:
    """State of one router and of the ledger behind it, read at one time."""

    #: of the ledger, from the database
    ledger: Status
    #: name of the ledger
    label: str
    #: registry name of the policy
    algorithm: str
    #: version of the snapshot in use, and the last update that it has learned
    serving: str
    serving_last_seq: int
    #: the configured policy is being learned again from the ledger, and another one decides meanwhile
    rebuilding: bool
    #: of the arms on offer, as of the last poll of the outcomes
    arms: tuple[ArmHealth, ...]
    #: since the start: decisions made by the fallback because the policy broke its contract
    faults: int
    #: since the start: questions that were offered all arms because none of theirs was healthy
    fail_opens: int
    #: since the start: snapshots taken over, and snapshots that could not be used
    swaps: int
    snapshots_refused: int
    #: since the start: notifications of workers and learner that did not reach Redis; recovery repeats them
    failed_notifications: int
    feedback_to_policy_ms: LagPercentiles
    #: requests waiting for the next batch
    route_queue: int
    #: by the arms
    earned: Earned
    #: jobs waiting, by queue; None if Redis cannot be reached
    jobs: Mapping[str, int] | None
    #: the registered workers, and what all of them have done, by queue; None if Redis cannot be reached
    workers: Sequence[WorkerState] | None
    work: Mapping[str, QueueWork] | None
    #: "ok", or what this process cannot do with Redis, or met there that is not ours; as the part of /ready
    redis: str


def percentiles(lags_s: Sequence[float]) -> LagPercentiles:
    """Percentiles of these lags, given in seconds."""
    if not lags_s:
        return LagPercentiles(p50=None, p99=None, n=0)
    p50, p99 = np.percentile(lags_s, [50, 99]) * 1000
    return LagPercentiles(p50=float(p50), p99=float(p99), n=len(lags_s))

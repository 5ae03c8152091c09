"""The runs that are active in this process."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ragbandit.router.storage.jobs.answers import ClaimedDecision
from ragbandit.shared.types import ArmName, Decision, DecisionId, Json


@dataclass(kw_only=True, slots=True)
class ActiveRun:
    decision_id: DecisionId
    #: number of earlier runs of the decision
    tries: int
    #: arm that runs; None if the decision is not read yet, or only its answer is scored
    arm: ArmName | None = None
    #: the chat request as received, for arms that forward it
    chat: Mapping[str, Json] = field(default_factory=dict)
    #: completed when the run should stop
    stop: "Future[None]" = field(default_factory=Future)
    #: done when the decision is stored; None if it was stored before the run
    committed: "Future[Decision] | None" = None

    async def is_stored(self) -> bool:
        """Whether the decision is stored; waits until that is known."""
        if self.committed is None:
            return True
        if not self.committed.done():
            with suppress(Exception):  # the caller gets the error
                await asyncio.wrap_future(self.committed)
        return self.committed.exception() is None


class ActiveRuns:
    """Claimed decisions that this process is running or scoring. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[DecisionId, ActiveRun] = {}

    def begin(self, run: ActiveRun) -> ActiveRun:
        with self._lock:
            self._runs[run.decision_id] = run
        return run

    def begin_claimed(self, job: ClaimedDecision) -> ActiveRun:
        return self.begin(ActiveRun(decision_id=job.decision_id, tries=job.tries, arm=job.arm, chat=job.chat))

    @contextmanager
    def ending(self, run: ActiveRun) -> Iterator[None]:
        """Remove the run at the end of the block."""
        try:
            yield
        finally:
            with self._lock:
                del self._runs[run.decision_id]

    def stop(self, decision_id: DecisionId) -> bool:
        """Stop the run of this decision. Returns False if none runs here, or if the run was stopped before."""
        with self._lock:
            run = self._runs.get(decision_id)
            if run is None or run.stop.done():
                return False
            run.stop.set_result(None)
            return True

    def ids(self) -> list[DecisionId]:
        with self._lock:
            return list(self._runs)

    def most_tries(self) -> int:
        with self._lock:
            return max((run.tries for run in self._runs.values()), default=0)

    def arms(self) -> list[ArmName]:
        """The arms of all runs whose arm is known, sorted; an arm with several runs is repeated."""
        with self._lock:
            return sorted(run.arm for run in self._runs.values() if run.arm is not None)

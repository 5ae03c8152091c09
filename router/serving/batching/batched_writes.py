"""Batched writes: outcomes and feedback of concurrent callers are committed together, then the learner is notified."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from ragbandit.router.serving.batching.admission import QueueLimits, QueueState
from ragbandit.router.serving.batching.micro_batching import MicroBatcher
from ragbandit.router.storage.decisions import DecisionStore
from ragbandit.router.storage.vote_limits import VoteLimit
from ragbandit.router.types import Feedback, Outcome, Receipt

__all__ = ["BatchedWrites"]

#: most rows in one transaction
MAX_BATCH = 500


class BatchedWrites:
    """Commits outcomes and feedback in batches.

    notify_learner: called after a commit that brought something new. limits: of each of the two queues.
    """

    def __init__(
        self, store: DecisionStore, *, notify_learner: Callable[[], None], limits: QueueLimits | None = None
    ) -> None:
        self._store = store
        self._notify_learner = notify_learner
        self._feedback: MicroBatcher[tuple[Feedback, VoteLimit | None], Receipt] = MicroBatcher(
            self._add_feedback, name="ragbandit-feedback", limit=MAX_BATCH, limits=limits
        )
        self._outcomes: MicroBatcher[Outcome, bool] = MicroBatcher(
            self._add_outcomes, name="ragbandit-outcomes", limit=MAX_BATCH, limits=limits
        )

    def start(self) -> None:
        """Start the two threads."""
        self._feedback.start()
        self._outcomes.start()

    def submit_outcome(self, outcome: Outcome) -> "Future[bool]":
        """Hand an outcome over; the Future is False if this very outcome was stored before. Raises Overloaded."""
        return self._outcomes.submit(outcome)

    def submit_feedback(self, feedback: Feedback, *, limit: VoteLimit | None = None) -> "Future[Receipt]":
        """Hand feedback over; the Future is its Receipt, or raises why it is beyond the limit. Raises Overloaded."""
        return self._feedback.submit((feedback, limit))

    def submit_feedback_batch(self, items: Sequence[Feedback]) -> "list[Future[Receipt]]":
        """Hand feedback over, all of it or nothing; a Receipt for each. Raises Overloaded."""
        return self._feedback.submit_all([(item, None) for item in items])

    def check_feedback(self) -> None:
        """Raises Overloaded if feedback that came now would wait too long."""
        self._feedback.check_admission()

    def check_outcomes(self) -> None:
        """Raises Overloaded if an outcome that came now would wait too long."""
        self._outcomes.check_admission()

    def queues(self) -> Mapping[str, QueueState]:
        """State of the two queues, by name."""
        return {"feedback": self._feedback.state(), "outcomes": self._outcomes.state()}

    def depth(self) -> int:
        """Outcomes and feedback waiting for the next batch."""
        return self._feedback.depth() + self._outcomes.depth()

    def close(self) -> None:
        """Commit what was handed over, then end the threads."""
        self._feedback.close()
        self._outcomes.close()

    def _add_feedback(self, batch: Sequence[tuple[Feedback, VoteLimit | None]]) -> Sequence[Receipt | Exception]:
        limits = {item.id: limit for item, limit in batch if limit is not None}
        results = self._store.add_feedback([item for item, _ in batch], limits=limits)
        if any(isinstance(result, Receipt) and not result.duplicate for result in results):
            self._notify_learner()
        return results

    def _add_outcomes(self, batch: Sequence[Outcome]) -> Sequence[bool | Exception]:
        results = self._store.add_outcomes(batch)
        if True in results:
            self._notify_learner()
        return results

"""Writes of feedback and of outcomes: those that arrive together share one transaction, and the learner is told."""

from collections.abc import Sequence
from typing import Final

from ragbandit.router.queue.notifier import Notifier
from ragbandit.router.serving.batching.admission import QueueLimits
from ragbandit.router.serving.batching.micro_batching import MicroBatcher
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.shared.types import Feedback, Outcome, Receipt

#: most outcomes, or items of feedback, in one transaction
MAX_WRITES: Final = 500


def feedback_writes(
    store: DecisionStore, *, notifier: Notifier, limits: QueueLimits
) -> MicroBatcher[Feedback, Receipt]:
    """The queue of feedback."""

    def add(batch: Sequence[Feedback]) -> Sequence[Receipt | Exception]:
        results = store.add_feedback(batch)
        if any(isinstance(result, Receipt) and not result.duplicate for result in results):
            notifier.notify_learner()
        return results

    return MicroBatcher(add, name="ragbandit-feedback", limit=MAX_WRITES, limits=limits)


def outcome_writes(store: DecisionStore, *, notifier: Notifier, limits: QueueLimits) -> MicroBatcher[Outcome, bool]:
    """The queue of outcomes that callers report."""

    def add(batch: Sequence[Outcome]) -> Sequence[bool | Exception]:
        results = store.add_outcomes(batch)
        if True in results:
            notifier.notify_learner()
        return results

    return MicroBatcher(add, name="ragbandit-outcomes", limit=MAX_WRITES, limits=limits)

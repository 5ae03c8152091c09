"""A worker's decisions: it claims them from the queue, and their callers wait in other processes."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from ragbandit.router.queue.stream_writer import AnswerWriter
from ragbandit.router.storage.jobs.answers import ClaimedDecision
from ragbandit.shared.types import Decision, DecisionId, Outcome
from ragbandit.workers.running.answer_job import AnswerJob
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.event_loop import LoopEnded
from ragbandit.workers.running.runner import Delivery, Runner
from ragbandit.workers.setup.loading import full_arms


def next_answer(context: Context) -> Callable[[], None] | None:
    """Claim the next decision. Returns the function that answers it; None if none waits, or none may be claimed now.

    Called by one thread at a time. A process whose event loop has ended claims nothing until it ends itself.
    """
    runs, queue, second_runs = context.active_runs, context.queue, context.second_runs
    if context.loop is None or not context.loop.is_running or runs.most_tries() > 0:
        return None
    # Skip questions whose generator is at its limit: a slow generator delays only its own arms.
    full = full_arms(context.arms, running=runs.arms())
    claimed = None
    if second_runs.are_due(queue):
        if runs.running_ids():
            second_runs.hold()
            return None
        claimed = queue.claim(has_run=True, except_arms=full)
        if claimed is None:
            second_runs.forget()
    claimed = claimed or queue.claim(has_run=False, except_arms=full)
    if claimed is None and not runs.running_ids():
        claimed = queue.claim(has_run=True, except_arms=full)
    run = None if claimed is None else runs.begin(claimed)
    return None if run is None else partial(answer, context, run)


def answer(context: Context, run: ClaimedDecision) -> None:
    """Answer a decision that this process has claimed, and wait for its end."""
    assert context.loop is not None
    with context.second_runs.running() if run.tries else nullcontext():
        try:
            context.loop.run(Runner(context, delivery=RemoteDelivery(context)).answer(run))
        except LoopEnded:
            with context.active_runs.ending(run):
                context.queue.give_back(run.decision_id)
            raise


class RemoteDelivery(Delivery[AnswerWriter]):
    """Delivers answers to other processes: pieces and notifications through Redis, outcomes through the store."""

    def __init__(self, context: Context) -> None:
        self._streams = context.streams

    async def begin(self, job: AnswerJob, _earlier: AnswerWriter | None, /) -> AnswerWriter | None:
        streams, decision = self._streams, job.decision
        if streams is None:
            return None
        failed = decision.query.continues.failed  # the reader waits for the first decision of the chain
        first = None if failed is None else DecisionId(failed.first)
        opened = partial(streams.open, first or decision.id, linked=decision.id if first else None)
        return await job.context.in_thread(opened)

    def end(self, writer: AnswerWriter) -> None:
        if self._streams is not None:
            self._streams.end(writer)

    async def keep(self, job: AnswerJob, outcome: Outcome, *, successor: Decision | None) -> bool:
        return await job.context.in_thread(partial(job.store, outcome, successor=successor))

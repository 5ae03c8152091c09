"""The source of a worker: decisions of the queue, whose callers wait in other processes."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from ragbandit.router.queue.stream_writer import AnswerWriter
from ragbandit.shared.model_servers.failures import link_of
from ragbandit.shared.processes.steady_clock import steady_clock
from ragbandit.shared.types import Decision, Outcome
from ragbandit.workers.running.answer_job import AnswerJob
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.runner import Runner
from ragbandit.workers.running.runs import ActiveRun
from ragbandit.workers.setup.loading import full_arms

#: time for which a question whose run ended a process waits behind other questions, seconds. Then a worker
#: waits until its runs end, and runs the question by itself
AGAIN_S: Final = 10.0


def next_answer(context: Context) -> Callable[[], None] | None:
    """Claim the next decision. Returns the function that answers it; None if no decision waits."""
    runs = context.active_runs
    if runs.most_tries() > 0 or (runs.ids() and _is_overdue(context)):
        return None
    # Skip questions whose generator is at its limit: a slow generator delays only its own arms.
    full = full_arms(context.arms, running=runs.arms())
    claimed = None if _is_overdue(context) else context.queue.claim(again=False, without=full)
    if claimed is None and not runs.ids():
        claimed = context.queue.claim(again=True, without=full)
    run = None if claimed is None else runs.begin_claimed(claimed)
    return None if run is None else partial(answer, context, run)


def _is_overdue(context: Context) -> bool:
    """Whether a question whose run ended a process waits for longer than AGAIN_S. Looked up once a second."""
    now = time.monotonic()
    if now >= context.looked_again_at + 1.0:
        context.looked_again_at = now
        context.is_overdue = context.queue.waits_again(since=steady_clock().now() - AGAIN_S)
    return context.is_overdue


def answer(context: Context, run: ActiveRun) -> None:
    """Answer a decision that this process has claimed, and wait for its end."""
    assert context.loop is not None
    context.loop.run(Runner(context, callers=_RemoteCallers(context)).answer(run))


class _RemoteCallers:
    """Callers in other processes: they get pieces and news through Redis, and the outcome from the store."""

    def __init__(self, context: Context) -> None:
        self._streams = context.streams

    async def begin(self, job: AnswerJob, _earlier: AnswerWriter | None, /) -> AnswerWriter | None:
        streams, decision = self._streams, job.decision
        if streams is None:
            return None
        first = link_of(decision.query.request).get("first")  # the reader waits for the first decision of the chain
        opened = partial(streams.open, first or decision.id, linked=decision.id if first else None)
        return await job.context.step(opened)

    def end(self, writer: AnswerWriter) -> None:
        if self._streams is not None:
            self._streams.end(writer)

    async def keep(self, job: AnswerJob, outcome: Outcome, *, successor: Decision | None) -> bool:
        return await job.context.step(partial(job.keep, outcome, successor=successor))

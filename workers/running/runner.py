"""The runner: runs claimed decisions on one event loop, in a worker as in a service that runs arms itself.

A source claims decisions for it: the queue in a worker (queued.py), the decisions of this process in a service
(inline.py). Each source also has the `Delivery` to the callers that wait.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from ragbandit.router.serving.checks.reports import unrun_outcome
from ragbandit.router.storage.jobs.answers import ClaimedDecision
from ragbandit.shared.model_servers.failures import SUCCESSOR
from ragbandit.shared.types import Decision, Outcome
from ragbandit.strategies.answer_stream import AnswerReader
from ragbandit.workers.running.answer_job import AnswerJob, load_job, load_version_arm
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.event_loop import CLOSE_S, END_S

log = logging.getLogger("ragbandit.worker")


class PieceSender(AnswerReader, Protocol):
    """Sends the pieces of an answer to its readers."""

    #: whether a reader was sent a piece of the answer
    has_content: bool


Writer = TypeVar("Writer", bound=PieceSender)


class Abandoned(Exception):
    """The arm ignores its cancellation: its run goes on, and nobody waits for it."""


async def _run_at_most(seconds: float, work: Coroutine[Any, Any, Outcome], *, on_end: Callable[[], object]) -> Outcome:
    """Await a run, and cancel it after `seconds`. Raises Abandoned if it goes on; its end calls on_end."""
    run = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([run], timeout=seconds)
        if done:
            return run.result()
    except asyncio.CancelledError:
        run.cancel()
        await asyncio.wait([run], timeout=CLOSE_S)  # the run counts its cost
        raise
    run.cancel()
    await asyncio.wait([run], timeout=END_S)
    if run.done() and not run.cancelled():
        return run.result()

    def end(run: asyncio.Task[Outcome]) -> None:
        if not run.cancelled():
            run.exception()  # so that asyncio does not log the error
        on_end()

    run.add_done_callback(end)
    raise Abandoned


class Delivery(Protocol[Writer]):
    """Delivers answers to the callers that wait: `LocalDelivery` (inline.py) and `RemoteDelivery` (queued.py).

    The runner calls the methods on its event loop.
    """

    async def begin(self, job: AnswerJob, writer: Writer | None, /) -> Writer | None:
        """The writer of this run; None without a reader. writer: writer of the failed run before it, if any."""

    def end(self, writer: Writer) -> None:
        """No further piece of this run comes."""

    async def keep(self, job: AnswerJob, outcome: Outcome, *, successor: Decision | None) -> bool:
        """Store the outcome, and notify waiting callers. Returns whether it is the first. Raises StoreError."""


class Runner(Generic[Writer]):
    """Runs decisions from the drawn arm to the stored outcome, and the decisions that replace failed ones."""

    def __init__(self, context: Context, *, delivery: Delivery[Writer]) -> None:
        self._context = context
        self._delivery = delivery

    async def answer(self, run: ClaimedDecision, *, job: AnswerJob | None = None, writer: Writer | None = None) -> None:
        """Run a claimed decision. If this raises, its claim expires, and the decision is tried again.

        A run that is cancelled because this process ends is not counted, and the decision is queued again.
        job: None if it must be read from the store.
        """
        following: ClaimedDecision | None = run
        while following is not None:
            with self._context.active_runs.ending(following):
                job = job or await self._context.in_thread(partial(load_job, self._context, following))
                if job is None:
                    return
                with job.log_fields():
                    following, writer = await self._run_job(job, writer=writer)
            job = None

    async def _run_job(self, job: AnswerJob, *, writer: Writer | None) -> tuple[ClaimedDecision | None, Writer | None]:
        """Returns (the run of the arm that takes over or None, the writer of this run or None)."""
        context = self._context
        try:
            outcome = job.outcome_without_run()
            if outcome is None:
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # the process began to end before the arm was asked
                    raise asyncio.CancelledError
                outcome, writer = await self._run_arm(job, writer=writer)
        except asyncio.CancelledError:
            if not context.ending.is_set():
                raise  # the arm cancelled its own run
            await context.in_thread(job.give_back)
            return None, writer
        except Abandoned:
            outcome = job.outcome_of_abandoned()
        successor = await context.in_thread(partial(job.successor, outcome)) if job.hands_over(outcome) else None
        if successor is not None:
            outcome = replace(outcome, made_by={**outcome.made_by, SUCCESSOR: successor.id})
        is_new = await self._delivery.keep(job, outcome, successor=successor)
        if is_new:
            log.info("answered", extra=job.log_extra | {"status": outcome.status})
        if successor is None or not is_new:
            return None, writer
        return await context.in_thread(partial(job.next_run, successor)), writer

    async def _run_arm(self, job: AnswerJob, *, writer: Writer | None) -> tuple[Outcome, Writer | None]:
        context, decision = self._context, job.decision
        arm = context.arms.get(decision.arm) or await context.in_thread(
            partial(load_version_arm, context, decision.arm)
        )
        if arm is None:  # the arm was removed from the configuration after the draw
            error = f"this worker has no arm {decision.arm!r}"
            return unrun_outcome(decision.id, now=time.time(), stop_reason="unknown_arm", error=error), writer
        writer = await self._delivery.begin(job, writer)
        try:
            settle = partial(context.threads.submit, job.settle_rest)
            return await _run_at_most(job.longest_s, job.run_arm(arm, reader=writer), on_end=settle), writer
        finally:
            if writer is not None:
                self._delivery.end(writer)
                job.has_content = writer.has_content

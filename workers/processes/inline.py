"""Decisions that a service runs itself; their callers wait in the same process.

Arms that only wait for servers run on the event loop of the HTTP service. They need no worker and no Redis. The
transaction that stores a decision also claims it. If the process dies, the decision runs once more (apart.py).
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Final

from ragbandit.router.queue.stream_reader import ReadStream
from ragbandit.router.serving.batching import SERVE_S, result_on_loop
from ragbandit.router.serving.pending import InlineRuns
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.jobs.answers import ClaimedDecision
from ragbandit.router.storage.rows.outcome_rows import storable
from ragbandit.router.telemetry.routines import Routine
from ragbandit.router.telemetry.tracing import Tracing
from ragbandit.shared.errors import RagBanditError, StoreError
from ragbandit.shared.types import Decision, DecisionId, Outcome
from ragbandit.workers.chores import start_chores
from ragbandit.workers.processes.apart import AnswersApart
from ragbandit.workers.running.answer_job import AnswerJob
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.event_loop import LoopWatch
from ragbandit.workers.running.runner import Delivery, Runner
from ragbandit.workers.running.runs import ActiveRuns
from ragbandit.workers.setup.generators import WorkerArm

log = logging.getLogger("ragbandit.worker")

#: time without a response after which the event loop of the service counts as blocked, seconds
BLOCKED_S = 15.0
#: longest wait for the claims to be released when the process ends, seconds
CLOSE_S: Final = 5.0


class InlineAnswers(InlineRuns):
    """Runs arms on the event loop of a service."""

    def __init__(self, router: Router, *, arms: Mapping[str, WorkerArm]) -> None:
        self._router, self._most = router, router.settings.workers.inline
        self._context = Context(
            settings=router.settings, store=router.store, ledger=router.ledger, jobs=router.process.jobs
        )
        self._context.arms = self._context.loader.load(arms)
        self._context.active_runs = ActiveRuns(forget_s=SERVE_S)
        self._runner = Runner(self._context, delivery=LocalDelivery(router))
        sent = router.settings.model_dump(mode="json")
        self._apart = AnswersApart(sent, arms=list(self._context.arms), queue=self._context.queue)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._routines: list[Routine] = []

    def start(self, tracing: Tracing) -> None:
        """Begin to take decisions. Call this on the event loop of the service."""
        self._context.tracing = tracing
        self._loop = asyncio.get_running_loop()
        self._context.watch = LoopWatch(self._loop, thread=threading.get_ident(), blocked_s=BLOCKED_S)
        apart = self._apart
        self._routines = [
            *start_chores(self._context),
            Routine("look for decisions that no process runs", self._take_waiting, every_s=0.5).start(),
            Routine("answer again what ended a process", apart.start_if_due, every_s=1.0, at_end=apart.end).start(),
        ]
        self._router.service.inline = self

    def claim(self, decisions: Sequence[Decision]) -> Mapping[DecisionId, str]:
        candidates = [
            decision.id for decision in decisions if decision.run_by == "worker" and decision.arm in self._context.arms
        ]
        claimed = self._context.active_runs.claim(candidates, most=self._most)
        return dict.fromkeys(claimed, self._context.queue.process.key)

    def unclaim(self, ids: Iterable[DecisionId]) -> None:
        self._context.active_runs.unclaim(ids)

    def begin(self, decision: Decision, *, live: bool) -> tuple["Future[Outcome]", ReadStream | None] | None:
        run = ClaimedDecision(
            decision_id=decision.id, tries=0, arm=decision.arm, conversation=decision.query.conversation
        )
        if self._context.ending.is_set() or self._context.active_runs.begin(run, if_claimed=True) is None:
            return None
        waiting = self._router.process.answers.expect_outcome(decision)
        stream = ReadStream(decision.id) if live else None
        job = AnswerJob(self._context, decision=decision, run=run)
        self._spawn(run, job=job, writer=stream)
        return waiting, stream

    def stop(self, decision_id: DecisionId) -> bool:
        return self._context.active_runs.stop(decision_id)

    def close(self) -> None:
        self._context.ending.set()
        if self._loop is not None and not self._loop.is_closed() and self._loop.is_running():
            try:
                asyncio.run_coroutine_threadsafe(self._end_runs(), self._loop).result(CLOSE_S)
            except TimeoutError:  # not raised: the caller must still close the database
                log.warning("a generator or retriever is not closed; the process ends", extra={"action": "close"})
        self._give_back()
        for routine in self._routines:
            routine.close()

    def _give_back(self) -> None:
        """Queue the decisions again that were claimed and have not begun."""
        runs = self._context.active_runs
        for key in set(runs.claimed_ids()).difference(runs.running_ids()):
            with contextlib.suppress(StoreError):  # otherwise the claim expires
                self._context.queue.give_back(key)

    async def _end_runs(self) -> None:
        """Cancel the runs, wait for their ends, and close generators and retrievers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0)), *self._tasks], timeout=CLOSE_S / 2)
        for arm in self._context.arms.values():
            await arm.generator.close()
            await arm.retriever.close()

    def _take_waiting(self) -> None:
        """Claim decisions that no process has run, because the services were busy."""
        context, loop = self._context, self._loop
        while loop is not None and len(context.active_runs.claimed_ids()) < self._most and not context.ending.is_set():
            claimed = context.queue.claim(has_run=False, within=list(context.arms))
            if claimed is None:
                return
            run = context.active_runs.begin(claimed)
            if run is not None:
                loop.call_soon_threadsafe(self._spawn, run)

    def _spawn(self, run: ClaimedDecision, job: AnswerJob | None = None, writer: ReadStream | None = None) -> None:
        task = asyncio.get_running_loop().create_task(self._runner.answer(run, job=job, writer=writer))
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        if self._context.ending.is_set():  # the process began to end after the claim: give the decision back
            task.get_loop().call_soon(task.cancel)

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not self._context.ending.is_set():
            message = "an answer failed; its claim runs out, and it is tried again"
            log.error(message, extra={"action": "job"}, exc_info=error)


class LocalDelivery(Delivery[ReadStream]):
    """Delivers answers to callers in this process: pieces through memory, outcomes through Futures."""

    def __init__(self, router: Router) -> None:
        self._process, self._store = router.process, router.store

    async def begin(self, job: AnswerJob, writer: ReadStream | None, /) -> ReadStream | None:
        if writer is not None and job.decision.id != writer.decision_id:  # the failed decision's writer goes on
            writer.linked = job.decision.id
        return writer

    def end(self, writer: ReadStream) -> None:
        pass

    async def keep(self, job: AnswerJob, outcome: Outcome, *, successor: Decision | None) -> bool:
        """Store the outcome, without a successor in one batch with concurrent outcomes, and deliver it to callers."""
        if outcome.status == "failed":
            self._process.note_failure()
        is_new = False
        if successor is None:
            answer = storable(outcome.answer)
            if answer != outcome.answer:  # callers get the text that is stored
                outcome = replace(outcome, answer=answer)
            try:
                is_new = await result_on_loop(self._process.outcomes.submit(outcome, admitted=True))
            except RagBanditError:  # the answer was paid for, so storing it is tried for long
                is_new = await job.context.in_thread(partial(job.store, outcome, successor=None))
            else:
                if is_new:
                    self._process.answers.deliver({outcome.decision_id: outcome})
                    return True
        else:
            is_new = await job.context.in_thread(partial(job.store, outcome, successor=successor))
        self._process.answers.deliver(
            await job.context.in_thread(partial(self._store.outcomes_by_id, [outcome.decision_id]))
        )
        return is_new

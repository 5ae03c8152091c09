"""Answers in the process of the HTTP service, by arms that only wait for servers: they need no worker and no Redis.

The transaction that stores a decision also claims it. If the process dies, the decision runs once more, apart.
"""

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Final

from ragbandit.router.queue.stream_reader import LocalWriter, ReadStream
from ragbandit.router.serving.batching import SERVE_S
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.rows.outcome_rows import storable
from ragbandit.router.telemetry.routines import Routine
from ragbandit.router.telemetry.tracing import Tracing
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import Decision, DecisionId, Outcome
from ragbandit.workers.running import housekeeping
from ragbandit.workers.running.apart import AnswersApart
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.event_loop import LoopWatch
from ragbandit.workers.running.runs import ActiveRun, ActiveRuns
from ragbandit.workers.running.tasks import AnswerJob, end_if_blocked, job_of
from ragbandit.workers.setup.generators import WorkerArm

log = logging.getLogger("ragbandit.worker")

#: time without a response after which the event loop of the service counts as blocked, seconds
HELD_S = 15.0
#: longest wait for the claims to be released when the process ends, seconds
CLOSE_S: Final = 5.0


class InlineAnswers:
    """Runs arms on the event loop of a service. Implements router.serving.pending.InlineRuns."""

    def __init__(self, router: Router, *, arms: Mapping[str, WorkerArm]) -> None:
        self._router, self._most = router, router.settings.workers.inline
        self._context = Context(
            settings=router.settings,
            store=router.store,
            ledger=router.ledger,
            jobs=router.process.jobs,  # type: ignore[arg-type] # without Redis every call of it fails
        )
        self._context.arms = self._context.loader.load(arms)
        sent = router.settings.model_dump(mode="json")
        self._apart = AnswersApart(sent, arms=list(self._context.arms), queue=self._context.queue)
        self._context.active_runs = ActiveRuns(forget_s=SERVE_S)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._routines: list[Routine] = []

    def start(self, tracing: Tracing) -> None:
        """Begin to take decisions. Call this on the event loop of the service."""
        self._context.tracing = tracing
        self._loop = asyncio.get_running_loop()
        self._routines = [
            *housekeeping.routines_of(self._context),
            Routine("look for decisions that no process runs", self._take_waiting, every_s=0.5).start(),
            Routine("answer again what ended a process", self._apart.look, every_s=1.0, at_end=self._apart.end).start(),
            Routine("watch the event loop", partial(self._watch, thread=threading.get_ident()), every_s=1.0).start(),
        ]
        self._router.process.run_inline(self)

    def claim(self, decisions: Sequence[Decision]) -> Mapping[DecisionId, str]:
        candidates = [
            decision.id for decision in decisions if decision.run_by == "worker" and decision.arm in self._context.arms
        ]
        claimed = self._context.active_runs.claim(candidates, most=self._most)
        return dict.fromkeys(claimed, self._context.queue.process.key)

    def unclaim(self, ids: Iterable[DecisionId]) -> None:
        self._context.active_runs.unclaim(ids)

    def begin(self, decision: Decision, *, live: bool) -> tuple["Future[Outcome]", ReadStream | None] | None:
        run = ActiveRun(decision_id=decision.id, tries=0, arm=decision.arm, conversation=decision.query.conversation)
        if self._context.ending.is_set() or self._context.active_runs.begin(run, if_claimed=True) is None:
            return None
        waiting = self._router.process.answers.expect(decision)
        stream = ReadStream(decision.id) if live else None
        job = AnswerJob(self._context, decision=decision, run=run)
        self._spawn(run, job=job, writer=None if stream is None else LocalWriter(stream))
        return waiting, stream

    def stop(self, decision_id: DecisionId) -> bool:
        return self._context.active_runs.stop(decision_id)

    def close(self) -> None:
        self._context.ending.set()
        if self._loop is not None and not self._loop.is_closed() and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(CLOSE_S)
        for routine in self._routines:
            routine.close()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait([asyncio.ensure_future(asyncio.sleep(0)), *self._tasks], timeout=CLOSE_S / 2)
        for arm in self._context.arms.values():
            await arm.generator.close()
            await arm.retriever.close()

    def _take_waiting(self) -> None:
        """Claim decisions that no process has run, because the services were busy."""
        context, loop = self._context, self._loop
        while loop is not None and len(context.active_runs.held()) < self._most and not context.ending.is_set():
            claimed = context.queue.claim(again=False, within=list(context.arms))
            if claimed is None:
                return
            run = context.active_runs.begin_claimed(claimed)
            if run is not None:
                loop.call_soon_threadsafe(self._spawn, run)

    def _watch(self, *, thread: int) -> None:
        if self._loop is not None and not self._context.ending.is_set():
            end_if_blocked(self._context, watch=LoopWatch(self._loop, thread=thread), within_s=HELD_S)

    def _spawn(self, run: ActiveRun, job: AnswerJob | None = None, writer: LocalWriter | None = None) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(run, job=job, writer=writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, run: ActiveRun, *, job: AnswerJob | None, writer: LocalWriter | None) -> None:
        """Run a claimed decision and, if it fails, the decisions that replace it. job: None if it must be loaded."""
        following: ActiveRun | None = run
        while following is not None:
            with self._context.active_runs.ending(following):
                try:
                    job = job or await asyncio.to_thread(job_of, self._context, following)
                    following = None if job is None else await self._answer_once(job, writer=writer)
                except Exception:
                    message = "an answer failed; its claim runs out, and it is tried again"
                    log.exception(message, extra={"action": "job"})
                    following = None
            job = None

    async def _answer_once(self, job: AnswerJob, *, writer: LocalWriter | None) -> ActiveRun | None:
        if writer is not None and job.run.decision_id != writer.decision_id:
            writer.link(job.decision.id)
        try:
            outcome = job.unrun()
            if outcome is None:
                arm = self._context.arms[job.decision.arm]
                with job.bound():
                    async with asyncio.timeout(job.longest_s):
                        outcome = await job.work(arm, reader=writer)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.to_thread(job.give_back))
            await asyncio.shield(asyncio.to_thread(job.book_lost))
            raise
        except TimeoutError:
            await asyncio.to_thread(job.book_lost)
            raise
        job.has_content = writer is not None and writer.has_content
        if outcome.status == "failed":
            self._router.process.note_failure()
        if job.hands_over(outcome):
            following = await asyncio.to_thread(job.finish, outcome)
            await self._deliver_stored(job.decision.id)
            return following
        await self._keep(job, outcome)
        return None

    async def _keep(self, job: AnswerJob, outcome: Outcome) -> None:
        """Commit the outcome in one batch with concurrent outcomes, then deliver it to waiting callers."""
        outcome = replace(outcome, answer=storable(outcome.answer))  # callers get the text that is stored
        try:
            is_new = await asyncio.wrap_future(self._router.process.batchers["outcomes"].submit(outcome, admitted=True))
        except RagBanditError:  # the answer was paid for, so `finish` tries again for a long time
            await asyncio.to_thread(job.finish, outcome)
            is_new = False
        if is_new:
            self._router.process.answers.deliver({outcome.decision_id: outcome})
            log.info("answered", extra=job.log_extra | {"status": outcome.status})
        else:
            await self._deliver_stored(outcome.decision_id)

    async def _deliver_stored(self, decision_id: DecisionId) -> None:
        stored = await asyncio.to_thread(self._router.store.outcomes_by_id, [decision_id])
        self._router.process.answers.deliver(stored)

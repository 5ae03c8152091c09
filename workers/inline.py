"""Answers in the service's own process: arms that only wait for servers need no worker and no Redis.

A decision is claimed in the transaction that stores it, and run on the service's event loop by the code that workers
run. If the process dies, another one takes the decision over, as from a worker. Outcomes of concurrent answers are
committed together.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.streams import LocalWriter, ReadStream
from ragbandit.router.serving.batching import SERVE_S
from ragbandit.router.serving.router import Router
from ragbandit.router.telemetry.routines import Routine
from ragbandit.router.telemetry.tracing import Tracing
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import ArmName, Decision, DecisionId, Outcome
from ragbandit.strategies.arms.cascade import Cascade
from ragbandit.strategies.arms.external import CallableArm
from ragbandit.strategies.registry import ARMS, generates, registered_name, retrieves
from ragbandit.strategies.run import Strategy
from ragbandit.workers import housekeeping
from ragbandit.workers.context import ActiveRun, Context
from ragbandit.workers.tasks import AnswerJob, job_of
from ragbandit.workers.wiring.generators import WorkerArm, make_strategies, worker_arms

log = logging.getLogger("ragbandit.worker")

#: how often decisions are looked for that no process runs, seconds
LOOK_S: Final = 0.5
#: longest wait for runs to be given back when the process ends, seconds
CLOSE_S: Final = 5.0


def inline_arms(settings: Settings) -> dict[str, WorkerArm]:
    """The arms that the service's own process can run: they compute nothing and only wait for servers.

    Raises ConfigError.
    """
    if settings.workers.inline == 0:
        return {}
    made = make_strategies(settings, worker_arms(settings))
    named = {name: made[ArmName(name)] for name in worker_arms(settings)}
    return {name: arm for name, (arm, strategy) in named.items() if _only_waits(strategy, arm=arm, settings=settings)}


def _only_waits(strategy: Strategy, *, arm: WorkerArm, settings: Settings) -> bool:
    if isinstance(strategy, CallableArm | Cascade) or registered_name(type(strategy)) not in ARMS:
        return False
    generator, retriever = settings.named_generators[arm.generator], settings.named_retrievers[arm.retriever]
    if generates(strategy) and generator.name != "openai":
        return False
    is_server = retriever.name == "elasticsearch" and retriever.search == "words" and retriever.rerank is None
    return is_server or not retrieves(strategy)


class InlineAnswers:
    """Runs arms on the event loop of a service. See router.serving.pending.InlineRuns.

    Call `start` on that loop, before the first question.
    """

    def __init__(self, router: Router, *, arms: Mapping[str, WorkerArm]) -> None:
        """Raises ConfigError if an arm cannot be loaded."""
        self._router, self._most = router, router.settings.workers.inline
        self._context = Context(
            settings=router.settings,
            store=router.store,
            ledger=router.ledger,
            jobs=router.jobs,  # type: ignore[arg-type] # without Redis, one that only fails
        )
        self._context.arms = self._context.loader.load(arms)
        self._lock = threading.Lock()
        #: claimed decisions that have not begun -> when they were claimed (time.monotonic)
        self._claimed: dict[DecisionId, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._routines: list[Routine] = []

    def start(self, tracing: Tracing) -> None:
        """Begin to take questions. tracing: of the service."""
        self._context.tracing = tracing
        self._loop = asyncio.get_running_loop()
        self._routines = [
            *housekeeping.routines_of(self._context),
            Routine("look for decisions that no process runs", self._take_waiting, every_s=LOOK_S).start(),
        ]
        self._router.run_inline(self)

    def claim(self, decisions: Sequence[Decision]) -> Mapping[DecisionId, str]:
        """Choose the decisions that are to be run here: each with the key of this process."""
        ours = [each.id for each in decisions if each.run_by == "worker" and each.arm in self._context.arms]
        now = time.monotonic()
        with self._lock:
            for key in [key for key, since in self._claimed.items() if since < now - SERVE_S]:
                del self._claimed[key]  # its caller has gone; its claim has run out
            room = max(0, self._most - len(self._claimed) - len(self._context.active_runs.ids()))
            self._claimed.update(dict.fromkeys(ours[:room], now))
        return dict.fromkeys(ours[:room], self._context.queue.process.key)

    def unclaim(self, ids: Iterable[DecisionId]) -> None:
        """These decisions were not stored, or another request made them."""
        with self._lock:
            for key in ids:
                self._claimed.pop(key, None)

    def begin(self, decision: Decision, *, live: bool) -> tuple["Future[Outcome]", ReadStream | None] | None:
        """Run a decision that was claimed here; None if it was not, or has begun."""
        with self._lock:
            if self._claimed.pop(decision.id, None) is None or self._context.ending.is_set():
                return None
        run = ActiveRun(decision_id=decision.id, tries=0, arm=decision.arm, chat=decision.query.chat)
        self._context.active_runs.begin(run)
        waiting = self._router.answers.expect(decision)
        stream = ReadStream(decision.id, wake=lambda: None) if live else None
        job = AnswerJob(self._context, decision=decision, run=run)
        self._spawn(run, job=job, writer=None if stream is None else LocalWriter(stream))
        return waiting, stream

    def stop(self, decision_id: DecisionId) -> bool:
        """Stop this run; False if it is not here."""
        return self._context.active_runs.stop(decision_id)

    def close(self) -> None:
        """Give back what runs here, and close the arms' connections."""
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
        """Claim decisions of our arms that no process runs: their service has died, or had no room."""
        context, loop = self._context, self._loop
        while loop is not None and len(context.active_runs.ids()) < self._most and not context.ending.is_set():
            claimed = context.queue.claim(within=list(context.arms))
            if claimed is None:
                return
            run = ActiveRun(decision_id=claimed.decision_id, tries=claimed.tries, arm=claimed.arm, chat=claimed.chat)
            context.active_runs.begin(run)
            loop.call_soon_threadsafe(self._spawn, run)

    def _spawn(self, run: ActiveRun, job: AnswerJob | None = None, writer: LocalWriter | None = None) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(run, job=job, writer=writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, run: ActiveRun, *, job: AnswerJob | None, writer: LocalWriter | None) -> None:
        """Run a claimed decision, and those that answer in its place. job: of the decision, if it is known."""
        following: ActiveRun | None = run
        while following is not None:
            with self._context.active_runs.ending(following):
                try:
                    job = job or await asyncio.to_thread(job_of, self._context, following)
                    following = None if job is None else await self._answer_once(job, writer=writer)
                except Exception:
                    log.exception(
                        "an answer failed; its claim runs out, and it is tried again", extra={"action": "job"}
                    )
                    following = None
            job = None

    async def _answer_once(self, job: AnswerJob, *, writer: LocalWriter | None) -> ActiveRun | None:
        """As AnswerJob.run_here, without blocking the event loop."""
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
            raise
        job.has_content = writer is not None and writer.has_content
        if outcome.status == "failed":
            self._router.note_failure()
        if job.hands_over(outcome):
            following = await asyncio.to_thread(job.finish, outcome)
            await self._deliver_stored(job.decision.id)
            return following
        await self._keep(job, outcome)
        return None

    async def _keep(self, job: AnswerJob, outcome: Outcome) -> None:
        """Commit the outcome together with those of other answers, then deliver it to its callers."""
        try:
            new = await asyncio.wrap_future(self._router.batchers["outcomes"].submit(outcome, admitted=True))
        except RagBanditError:  # the answer was paid for: it is kept for as long as it takes
            await asyncio.to_thread(job.finish, outcome)
            new = False
        if new:
            self._router.answers.deliver({outcome.decision_id: outcome})
            log.info("answered", extra=job.facts | {"status": outcome.status})
        else:
            await self._deliver_stored(outcome.decision_id)

    async def _deliver_stored(self, decision_id: DecisionId) -> None:
        """Deliver the stored outcome to its callers."""
        stored = await asyncio.to_thread(self._router.store.outcomes_by_id, [decision_id])
        self._router.answers.deliver(stored)

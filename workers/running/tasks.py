"""Jobs of the queue `answer`: run the drawn arm of a decision, and store its outcome."""

import contextlib
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import Any

from ragbandit.router.api.security.budgets import stopped_until
from ragbandit.router.config.settings import DEFAULT
from ragbandit.router.rollouts.overview import settings_of
from ragbandit.router.serving.checks.questions import capped
from ragbandit.router.serving.checks.reports import unrun_outcome
from ragbandit.router.serving.failover import may_hand_over, next_decision, other_arms
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.access.shared_secrets import DRAWS, shared_secret
from ragbandit.router.storage.access.spending import book, spenders_of
from ragbandit.router.storage.decisions.turns import TOOL_TURN
from ragbandit.router.storage.policy_versions import versions_of
from ragbandit.router.storage.rows.conversion import query_hash
from ragbandit.router.telemetry import conventions as names
from ragbandit.router.telemetry.logs import bound
from ragbandit.router.telemetry.tracing import REQUEST_ID, Attribute, Tracing, carrier_of, trace_id_of
from ragbandit.shared.errors import RagBanditError, StoreError
from ragbandit.shared.model_servers.failures import SUCCESSOR, link_of
from ragbandit.shared.processes.steady_clock import steady_clock
from ragbandit.shared.types import CANCELLED, ArmName, Decision, Outcome
from ragbandit.strategies.answer_stream import AnswerReader
from ragbandit.strategies.arms.basic import Model
from ragbandit.strategies.arms.http import Http
from ragbandit.strategies.base import Account, Generator, Hit, Request, Retriever
from ragbandit.strategies.outcome import CANCELLED_ERROR, run_strategy
from ragbandit.strategies.run import NO_SPANS, NoteCompletion, NoteHits, Spans, provider_of
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.event_loop import LoopWatch
from ragbandit.workers.running.retries import insist
from ragbandit.workers.running.runs import ActiveRun
from ragbandit.workers.setup.generators import worker_arms
from ragbandit.workers.setup.loading import LoadedArm, full_arms

log = logging.getLogger("ragbandit.worker")

#: A question fails after this number of runs without an outcome: its runs probably end their processes. The second run
#: is alone in its process, so that no other question fails with it.
MAX_TRIES = 2
#: time for which a question whose run ended a process waits behind other questions, seconds. Then a worker
#: waits until its runs end, and runs the question by itself
AGAIN_S = 10.0
#: seconds after its time budget at which a run is abandoned, because the arm blocks or ignores its cancellation
MARGIN_S = 5.0
#: time without a response after which the event loop counts as blocked, seconds
PING_S = 5.0
#: time for which the storing of an outcome is tried again while the database fails, seconds
KEEP_S = 600.0


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
    """Run the drawn arm of a decision that this process has claimed, and store its Outcome. If this raises, the claim
    expires and the decision is tried again. A run that is interrupted by the end of this process is not counted.
    """
    following: ActiveRun | None = run
    while following is not None:
        with context.active_runs.ending(following):
            job = job_of(context, following)
            following = None if job is None else job.run_here()


def job_of(context: Context, run: ActiveRun) -> "AnswerJob | None":
    """The job of a claimed decision; None if the decision is answered or unreadable. Raises StoreError."""
    task = context.store.answer_task(run.decision_id)
    if task is None or task.answered:
        context.queue.drop(run.decision_id)
        return None
    if isinstance(task.decision, StoreError):
        error = str(task.decision)
        extra = {"action": "answer", "decision": run.decision_id, "reason": error}
        log.error("the row of a decision cannot be read; the decision fails", extra=extra)
        outcome = unrun_outcome(run.decision_id, now=time.time(), stop_reason="unreadable", error=error)
        context.store.add_outcome(outcome)
        return None
    run.arm = task.decision.arm
    return AnswerJob(context, decision=task.decision, run=run, cancelled=task.cancelled)


class AnswerJob:
    """One run of a decision, from the drawn arm to the stored Outcome. cancelled: whether the caller cancelled it."""

    def __init__(self, context: Context, *, decision: Decision, run: ActiveRun, cancelled: bool = False) -> None:
        self.context = context
        self.decision = decision
        self.run = run
        self._budget = capped(decision.query.budget, limits=context.settings.budget)
        self._cancelled = cancelled
        #: arms that may answer if the drawn arm fails, the best first
        self._others: list[ArmName] = []
        self.has_content = False
        #: cost of the run, however it ends
        self.account = Account()

    @property
    def longest_s(self) -> float:
        assert self._budget.seconds is not None  # the settings have a number
        return self._budget.seconds + MARGIN_S

    @property
    def log_extra(self) -> dict[str, str]:
        return {"action": "answer", "decision": self.decision.id, "arm": self.decision.arm}

    def bound(self) -> contextlib.AbstractContextManager[None]:
        """A block in which all log lines contain the ids of the request, the decision and the trace."""
        request, trace = self.decision.query.request.get(REQUEST_ID), trace_id_of(self.decision.query.request)
        return bound(request=request if isinstance(request, str) else None, decision=self.decision.id, trace=trace)

    def run_here(self) -> ActiveRun | None:
        with self.bound():
            try:
                outcome = self.unrun() or self._run_arm()
            except CancelledError:
                if not self.context.ending.is_set():
                    raise  # the arm cancelled itself
                self.give_back()
                self.book_lost()
                return None
            except TimeoutError:
                self.book_lost()
                raise
            return self.finish(outcome)

    def book_lost(self) -> None:
        """Charge the dollars of a run that ends without an outcome, since the question runs again."""
        query, database = self.decision.query, self.context.store.database
        spenders, dollars = spenders_of(query.tenant, key=query.api_key), self.account.cost.dollars
        try:
            book(database, spenders, dollars=dollars, now=time.time())
        except StoreError as error:
            extra = {**self.log_extra, "dollars": dollars, "reason": str(error)}
            log.warning("the cost of an interrupted run is not counted in the budgets", extra=extra)

    def give_back(self) -> None:
        self.context.queue.give_back(self.decision.id)
        self.context.notifier.request_answers([self.decision.id])
        log.info("not answered, since this process ends; another one takes it", extra=self.log_extra)

    def unrun(self) -> Outcome | None:
        """The outcome of a decision that was cancelled or tried too often; None if it should run."""
        decision, tries = self.decision, self.run.tries
        if self._cancelled:
            return unrun_outcome(decision.id, now=time.time(), stop_reason=CANCELLED, error=CANCELLED_ERROR)
        if tries < MAX_TRIES:
            return None
        extra = {**self.log_extra, "tries": tries}
        log.error("workers died or ran out of time over a question; it fails and is not tried again", extra=extra)
        arm = self.context.arms.get(decision.arm)
        made_by = {} if arm is None else arm.made_by(self._budget)
        error = f"{tries} workers died or ran out of time over this question with the arm {decision.arm!r}"
        return unrun_outcome(decision.id, now=time.time(), stop_reason="worker_died", error=error, made_by=made_by)

    def hands_over(self, outcome: Outcome) -> bool:
        return bool(self._others) and not self.has_content and may_hand_over(self.decision, outcome)

    def finish(self, outcome: Outcome) -> ActiveRun | None:
        """Store the Outcome; blocks. Returns the next run if another arm takes over in this process."""
        context = self.context
        successor = self._successor(outcome)
        if successor is not None:
            outcome = replace(outcome, made_by={**outcome.made_by, SUCCESSOR: successor.id})
        new = self._keep(outcome, successor=successor)
        context.notifier.attempt(lambda: context.jobs.publish(f"outcome:{self.decision.id}"))
        if new:
            log.info("answered", extra=self.log_extra | {"status": outcome.status})
            context.notifier.notify_learner()
        return self._claimed(successor) if successor is not None and new else None

    def _successor(self, outcome: Outcome) -> Decision | None:
        """A new decision by which another arm answers the question; None if no arm takes over."""
        if not self.hands_over(outcome):
            return None
        decision, now = self.decision, time.time()
        settings, database = self.context.settings, self.context.store.database
        try:
            if stopped_until(decision.query, tenants=settings.tenants, database=database, now=now) is not None:
                return None
            scopes = {} if decision.query.api_key is None else KeyStore(database).scopes(decision.query.api_key)
            allowed = scopes.get("arms")
            arms = [arm for arm in self._others if not isinstance(allowed, list) or arm in allowed]
            healths = self.context.health.read(arms, now=now)
            secret = shared_secret(database, name=DRAWS, now=now)
        except StoreError:
            return None  # no other arm takes over; `_keep` waits for the store
        unhealthy = [health.arm for health in healths if health.state != "closed"]
        return next_decision(
            decision,
            outcome,
            arms=arms,
            unhealthy=unhealthy,
            conversation=self.run.conversation,
            limits=settings.budget,
            passing=self.context.passing,
            worker_arms=self.context.worker_arms,
            secret=secret,
        )

    def _claimed(self, successor: Decision) -> ActiveRun | None:
        """Claim this decision and return its run; None if another process should run it."""
        context = self.context
        extra = self.log_extra | {"action": "failover", "next": successor.arm}
        extra["reason"] = str(link_of(successor.query.request)["reason"])
        log.warning("an arm failed before its first content; another one answers in its place", extra=extra)
        is_here = successor.arm in context.arms and not context.ending.is_set()
        claimed = context.queue.claim(only=successor.id) if is_here else None
        if claimed is None:
            context.notifier.request_answers([successor.id])
            return None
        return context.active_runs.begin_claimed(claimed)

    def _run_arm(self) -> Outcome:
        context, decision = self.context, self.decision
        arm = context.arms.get(decision.arm) or arm_of_version(context, decision.arm)
        if arm is None:  # the arm was removed from the configuration after the draw
            error = f"this worker has no arm {decision.arm!r}"
            return unrun_outcome(decision.id, now=time.time(), stop_reason="unknown_arm", error=error)
        assert context.loop is not None
        streams = context.streams
        writer = None
        if streams is not None:
            first = link_of(decision.query.request).get("first")  # the reader waits for the first decision of the chain
            writer = streams.open(first or decision.id, linked=decision.id if first else None)
        try:
            return context.loop.run(self.work(arm, reader=writer), timeout_s=self.longest_s)
        except TimeoutError:
            end_if_blocked(context, watch=context.loop.watch, within_s=PING_S)
            raise
        finally:
            if streams is not None and writer is not None:
                streams.end(writer)
                self.has_content = writer.has_content

    def work(self, arm: LoadedArm, *, reader: AnswerReader | None) -> Coroutine[Any, Any, Outcome]:
        """The run of the arm, traced as a span. reader: receives the answer while it is generated."""
        context, decision = self.context, self.decision
        conversation = self.run.conversation
        if isinstance(arm.strategy, Model | Http):
            self._others = other_arms(
                decision,
                conversation=conversation,
                worker_arms=context.worker_arms,
                passing=context.passing,
                attempts=context.settings.server.failover,
            )
        work = run_strategy(
            arm.strategy,
            query=replace(decision.query, id=decision.id, conversation=conversation),
            budget=self._budget,
            retriever=arm.retriever,
            generator=arm.generator,
            named=arm.named,
            stop=self.run.stop,
            reader=reader,
            source_chars=context.settings.log.source_chars,
            spans=_ArmSpans(context.tracing) if context.tracing.enabled else NO_SPANS,
            has_successor=bool(self._others) and TOOL_TURN not in decision.query.request,
            unsupported=context.unsupported.of(self._generator, now=time.time()),
            account=self.account,
        )
        work = self._noting_unsupported(work)
        return traced_run(context.tracing, work, decision=decision, attempt=self.run.tries + 1)

    @property
    def _generator(self) -> str:
        """Name of the arm's generator in the settings."""
        return str(self.context.worker_arms.get(self.decision.arm, {}).get("generator", DEFAULT))

    async def _noting_unsupported(self, work: Awaitable[Outcome]) -> Outcome:
        """Await the run, and note the parameters that its server reported as not supported."""
        outcome, query = await work, self.decision.query
        fields: Any = outcome.reply.get("unsupported")
        if fields:
            sign = query.tenant, query.api_key, query_hash(query, run_by=self.decision.run_by)
            self.context.unsupported.note(self._generator, fields, sign=sign, now=time.time())
        return outcome

    def _keep(self, outcome: Outcome, *, successor: Decision | None) -> bool:
        """Store the outcome, trying for KEEP_S because it was paid for. Returns whether the decision had none."""
        context, key = self.context, self.decision.id

        def warn(error: Exception) -> None:
            extra = {"action": "keep", "decision": key, "reason": str(error)}
            log.warning("cannot write an outcome to the database; trying again", extra=extra)

        try:
            keep = partial(context.store.add_outcome, outcome, successor=successor)
            return insist(keep, seconds=KEEP_S, ending=context.ending, failed=warn)
        except StoreError:
            # If this process does not end, the try counts, so that an outcome that the database never accepts is not
            # paid for again and again.
            if context.ending.is_set():
                with contextlib.suppress(StoreError):
                    context.queue.give_back(key)
            raise


def arm_of_version(context: Context, name: ArmName) -> LoadedArm | None:
    """Load an arm that only a policy version has, when it is first drawn; None if no version has it."""
    with context.store.database.read() as connection:
        versions = versions_of(connection, base=context.store.label)
    for version in reversed(versions):
        offered = version.changes.get("arms")
        if not isinstance(offered, Mapping) or name not in offered:
            continue
        try:
            arms = context.loader.load({name: worker_arms(settings_of(context.settings, version))[name]})
        except (RagBanditError, KeyError) as error:
            extra = {"action": "answer", "arm": name, "version": version.name, "reason": str(error)}
            log.error("the arm of a version cannot be made here: its questions fail", extra=extra)
            return None
        context.arms = {**context.arms, **arms}
        return arms[name]
    return None


def end_if_blocked(context: Context, *, watch: LoopWatch, within_s: float) -> None:
    """Exit if the loop is blocked, because nothing on it can be cancelled. A supervisor starts a new process."""
    if watch.answers(within_s=within_s):
        return
    extra = {"action": "blocked", "arms": ",".join(dict.fromkeys(context.active_runs.arms())), "at": watch.position()}
    log.critical(
        "an arm blocks the event loop, so this process ends; make the arm await what it waits for", extra=extra
    )
    context.store.database.close()
    logging.shutdown()
    os._exit(1)  # sys.exit would wait for threads that wait for the blocked loop


async def traced_run(tracing: Tracing, work: Awaitable[Outcome], *, decision: Decision, attempt: int) -> Outcome:
    """Await the run within a span, and return its outcome. attempt: from 1. The first run is a child of the decision's
    span. Later runs begin a new trace with a link to the decision, because the caller's trace may be over.
    """
    if not tracing.enabled:
        return await work
    carrier = carrier_of(decision.query.request)
    attributes: dict[str, Attribute | None] = {
        names.OPERATION: "invoke_workflow",
        names.WORKFLOW: decision.arm,
        names.SPAN_KIND: "CHAIN",
        names.CONVERSATION: decision.query.own_session,
        names.DECISION_ID: decision.id,
        names.DECISION_ARM: decision.arm,
        names.ATTEMPT: attempt,
    }
    parent, link = (carrier, None) if attempt <= 1 else (None, carrier)
    with tracing.span(f"invoke_workflow {decision.arm}", attributes=attributes, parent=parent, link=link) as span:
        outcome = await work
        span.set(
            {
                names.STATUS: outcome.status,
                names.STOP_REASON: outcome.stop_reason,
                names.STEPS: outcome.steps,
                names.PASSAGES: outcome.cost.passages,
                names.DOLLARS: outcome.cost.dollars,
            }
        )
        if outcome.status == "failed":
            span.fail(outcome.stop_reason or "failed")
    return outcome


class _ArmSpans(Spans):
    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    @contextlib.contextmanager
    def searching(self, query: str, *, k: int, retriever: Retriever) -> Iterator[NoteHits]:
        texts = self._tracing.texts_in_spans
        attributes: dict[str, Attribute | None] = {
            names.OPERATION: "retrieval",
            names.DATA_SOURCE: retriever.name,
            names.TOP_K: k,
            names.SPAN_KIND: "RETRIEVER",
            names.QUERY_TEXT: query if texts else None,
        }
        with self._tracing.span(f"retrieval {retriever.name}", kind="client", attributes=attributes) as span:

            def note(hits: Sequence[Hit]) -> None:
                documents = [{"id": hit.passage.id, "score": hit.score, "content": hit.passage.text} for hit in hits]
                span.set({names.PASSAGES: len(hits), names.DOCUMENTS: json.dumps(documents) if texts else None})

            yield note

    @contextlib.contextmanager
    def generating(self, request: Request, *, purpose: str, generator: Generator) -> Iterator[NoteCompletion]:
        texts, prompt = self._tracing.texts_in_spans, request.prompt
        history = [(turn.role, turn.text) for turn in prompt.history]
        turns = [("system", prompt.instructions), *history, ("user", prompt.body)]
        attributes: dict[str, Attribute | None] = {
            names.OPERATION: "chat",
            names.PROVIDER: provider_of(generator),
            names.REQUEST_MODEL: generator.name,
            names.REQUEST_MAX_TOKENS: request.max_tokens,
            names.PURPOSE: purpose,
            names.SPAN_KIND: "LLM",
            names.INPUT_MESSAGES: _messages(turns) if texts else None,
        }
        with self._tracing.span(f"chat {generator.name}", kind="client", attributes=attributes) as span:
            yield lambda done: span.set(
                {
                    names.REQUEST_STREAM: None if done.first_s is None else True,
                    names.FIRST_CHUNK: done.first_s,
                    names.REASONING_TOKENS: done.reasoning_tokens,
                    names.INPUT_TOKENS: done.prompt_tokens,
                    names.OUTPUT_TOKENS: done.completion_tokens,
                    names.FINISH_REASONS: [done.finish],
                    names.OUTPUT_MESSAGES: _messages([("assistant", done.text)]) if texts else None,
                }
            )


def _messages(turns: Sequence[tuple[str, str]]) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in turns])

"""One run of a decision: the call of its arm, the outcome, and the arm that takes over."""

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from ragbandit.router.operation.budgets import stopped_until
from ragbandit.router.rollouts.version_settings import settings_of
from ragbandit.router.serving.checks.questions import cap_budget
from ragbandit.router.serving.checks.reports import unrun_outcome
from ragbandit.router.serving.failover import may_hand_over, replacement_arms, replacement_decision
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.access.reservations import no_reservation, settle
from ragbandit.router.storage.access.shared_secrets import DRAWS, shared_secret
from ragbandit.router.storage.access.spending import spenders_of
from ragbandit.router.storage.access.turn_sums import spending_row, turn_spenders
from ragbandit.router.storage.jobs.answers import ClaimedDecision
from ragbandit.router.storage.policy_versions import versions_of
from ragbandit.router.telemetry.logs import log_fields
from ragbandit.router.telemetry.routines import retry_through_outage
from ragbandit.router.telemetry.tracing import trace_id_of
from ragbandit.shared.errors import RagBanditError, StoreError
from ragbandit.shared.types import ABANDONED, CANCELLED, DIED, NOT_PERMITTED, ArmName, Decision, Outcome
from ragbandit.strategies.answer_stream import AnswerReader
from ragbandit.strategies.arms.basic import Model
from ragbandit.strategies.arms.http import Http
from ragbandit.strategies.base import Account
from ragbandit.strategies.outcome import CANCELLED_ERROR, run_strategy
from ragbandit.strategies.run import NO_SPANS
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.spans import ArmSpans, run_in_span
from ragbandit.workers.setup.generators import worker_arms
from ragbandit.workers.setup.loading import LoadedArm

log = logging.getLogger("ragbandit.worker")

#: a question fails after this many of its runs have ended their processes. The second run is alone in its process, so
#: that no other question fails with it
MAX_TRIES: Final = 2
#: seconds after its time budget at which a run is abandoned, because the arm ignores its cancellation
MARGIN_S: Final = 5.0
#: time for which the storing of an outcome is tried again while the database fails, seconds
KEEP_S: Final = 600.0


def load_job(context: Context, run: ClaimedDecision) -> "AnswerJob | None":
    """The job of a claimed decision; None if the decision is answered or unreadable. Raises StoreError."""
    found = context.store.decision_to_answer(run.decision_id)
    if found is None:
        context.queue.drop(run.decision_id)
        return None
    decision, cancelled = found
    if isinstance(decision, StoreError):
        error = str(decision)
        extra = {"action": "answer", "decision": run.decision_id, "reason": error}
        log.error("the row of a decision cannot be read; the decision fails", extra=extra)
        outcome = unrun_outcome(run.decision_id, now=time.time(), stop_reason="unreadable", error=error)
        context.store.add_outcome(outcome)
        return None
    if context.settings.conversation.limited:
        with context.store.database.connection() as connection:
            context.expected.refresh(connection)
    return AnswerJob(context, decision=decision, run=run, cancelled=cancelled)


class AnswerJob:
    """One run of a decision. `give_back`, `store` and `next_run` raise StoreError; all methods but `run_arm` may block.

    cancelled: whether the caller cancelled the decision.
    """

    def __init__(self, context: Context, *, decision: Decision, run: ClaimedDecision, cancelled: bool = False) -> None:
        self.context = context
        self.decision = decision
        self.run = run
        self._budget = cap_budget(decision.query.budget, limits=context.settings.budget)
        self._cancelled = cancelled
        #: arms that may answer if the drawn arm fails, the best first
        self._others: list[ArmName] = []
        #: whether a reader was sent a piece of the answer
        self.has_content = False
        #: cost of the run, however it ends
        self.account = Account()
        #: dollars of `account` that the budgets already include
        self._counted = 0.0

    @property
    def longest_s(self) -> float:
        assert self._budget.seconds is not None  # the settings require a number
        return self._budget.seconds + MARGIN_S

    @property
    def log_extra(self) -> dict[str, str]:
        return {"action": "answer", "decision": self.decision.id, "arm": self.decision.arm}

    def log_fields(self) -> contextlib.AbstractContextManager[None]:
        """A block in which all log lines contain the ids of the request, the decision and the trace."""
        sent = self.decision.query.sent
        return log_fields(request=sent.request_id, decision=self.decision.id, trace=trace_id_of(sent.traceparent))

    def outcome_without_run(self) -> Outcome | None:
        """The outcome of a decision that must not run: cancelled, forbidden by now, or tried too often; else None."""
        decision, tries = self.decision, self.run.tries
        if self._cancelled:
            return unrun_outcome(decision.id, now=time.time(), stop_reason=CANCELLED, error=CANCELLED_ERROR)
        if not self.context.rules.permits(decision.query, arm=decision.arm):
            log.warning("the setting `rules` now forbids this arm; the question is not run", extra=self.log_extra)
            error = f"the operator's rules do not allow the arm {decision.arm!r} for this question (any more)"
            return unrun_outcome(decision.id, now=time.time(), stop_reason=NOT_PERMITTED, error=error)
        if tries < MAX_TRIES:
            return None
        extra = {**self.log_extra, "tries": tries}
        log.error("workers died over a question; it fails and is not tried again", extra=extra)
        error = f"{tries} workers died over this question with the arm {decision.arm!r}"
        return self._failed_outcome(DIED, error=error)

    def outcome_of_abandoned(self) -> Outcome:
        """The outcome of a run whose arm ignores its cancellation and still runs after its time. Such a run does
        not end its process, so the question does not run again.
        """
        extra = {**self.log_extra, "after_s": self.longest_s}
        log.error("an arm ignores its cancellation: its question fails, and its run is abandoned", extra=extra)
        error = f"the arm {self.decision.arm!r} ran for {self.longest_s:g} s and ignored its cancellation"
        self._counted = self.account.cost.dollars
        cost = replace(self.account.cost, seconds_total=self.longest_s)
        return replace(self._failed_outcome(ABANDONED, error=error), cost=cost)

    def _failed_outcome(self, stop_reason: str, *, error: str) -> Outcome:
        arm = self.context.arms.get(self.decision.arm)
        made_by = {} if arm is None else arm.made_by(self._budget)
        return unrun_outcome(self.decision.id, now=time.time(), stop_reason=stop_reason, error=error, made_by=made_by)

    async def run_arm(self, arm: LoadedArm, *, reader: AnswerReader | None) -> Outcome:
        """Run the arm, traced as a span. reader: receives the answer while it is generated."""
        context, decision = self.context, self.decision
        conversation = self.run.conversation
        if isinstance(arm.strategy, Model | Http):
            self._others = replacement_arms(
                decision,
                conversation=conversation,
                worker_arms=context.worker_arms,
                passing=context.passing,
                attempts=context.settings.server.failover,
                rules=context.rules,
                expected=context.expected,
            )
        query = decision.query
        if query.id != decision.id or query.conversation is not conversation:
            query = replace(query, id=decision.id, conversation=conversation)
        tracing = context.tracing
        work = run_strategy(
            arm.strategy,
            query=query,
            budget=self._budget,
            retriever=arm.retriever,
            generator=arm.generator,
            named=arm.named,
            stop=self.run.stop,
            reader=reader,
            source_chars=context.settings.log.source_chars,
            spans=ArmSpans(tracing) if tracing.enabled else NO_SPANS,
            has_successor=bool(self._others) and decision.query.continues.loop is None,
            account=self.account,
        )
        if tracing.enabled:
            work = run_in_span(tracing, work, decision=decision, attempt=self.run.tries + 1)
        return await work

    def give_back(self) -> None:
        """Queue the decision again without counting this run, and charge the run's cost."""
        self.context.queue.give_back(self.decision.id)
        self.context.notifier.request_answers([self.decision.id])
        log.info("a decision is not answered, since this process ends; another process takes it", extra=self.log_extra)
        self.settle_rest()

    def settle_rest(self) -> None:
        """Book dollars of the run that are in no outcome, for example the later cost of an abandoned run."""
        query, database = self.decision.query, self.context.store.database
        dollars, self._counted = self.account.cost.dollars - self._counted, self.account.cost.dollars
        spenders = [*spenders_of(query.tenant, key=query.api_key), *turn_spenders(spending_row(self.decision))]
        call = no_reservation(spenders, at=database.clock.now())
        try:
            settle(database, call, dollars=dollars)
        except StoreError as error:
            extra = {**self.log_extra, "dollars": dollars, "reason": str(error)}
            log.warning("the cost of an interrupted run is not counted in the budgets", extra=extra)

    def hands_over(self, outcome: Outcome) -> bool:
        return bool(self._others) and not self.has_content and may_hand_over(self.decision, outcome)

    def successor(self, outcome: Outcome) -> Decision | None:
        """A new decision by which another arm answers the question; None if no arm takes over."""
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
            return None  # no other arm takes over; `store` waits for the database
        unhealthy = [health.arm for health in healths if health.state != "closed"]
        return replacement_decision(
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

    def store(self, outcome: Outcome, *, successor: Decision | None) -> bool:
        """Store the outcome, trying for KEEP_S because it was paid for, and notify waiting callers in other processes.
        Returns whether the decision had no outcome before.
        """
        context, key = self.context, self.decision.id

        def warn(error: Exception) -> None:
            extra = {"action": "keep", "decision": key, "reason": str(error)}
            log.warning("cannot write an outcome to the database; trying again", extra=extra)

        try:
            store = partial(context.store.add_outcome, outcome, successor=successor)
            is_new = retry_through_outage(store, seconds=KEEP_S, ending=context.ending, note_failure=warn)
        except StoreError:
            # If this process does not end, the try counts, so that an outcome that the database never accepts is not
            # paid for again and again.
            if context.ending.is_set():
                with contextlib.suppress(StoreError):
                    context.queue.give_back(key)
            self._counted -= min(self._counted, outcome.cost.dollars)
            self.settle_rest()
            raise
        context.notifier.attempt(lambda: context.jobs.publish(f"outcome:{key}"))
        if is_new:
            context.notifier.notify_learner()
        return is_new

    def next_run(self, successor: Decision) -> ClaimedDecision | None:
        """Claim the decision that takes over, and return its run; None if another process should run it."""
        context = self.context
        failed = successor.query.continues.failed
        assert failed is not None
        extra = self.log_extra | {"action": "failover", "next": successor.arm, "reason": failed.reason}
        log.warning("an arm failed before its first content; another arm answers in its place", extra=extra)
        is_here = successor.arm in context.arms and not context.ending.is_set()
        claimed = context.queue.claim(only=successor.id) if is_here else None
        if claimed is None:
            context.notifier.request_answers([successor.id])
            return None
        return context.active_runs.begin(claimed)


def load_version_arm(context: Context, name: ArmName) -> LoadedArm | None:
    """Load an arm that only a policy version has, when it is first drawn; None if none has it, or if loading fails."""
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

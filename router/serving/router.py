"""Router: the library's interface to one process's share of the service.

A Router decides and commits, takes outcomes and feedback, follows the snapshots that the learner publishes, and asks
workers for answers. It never learns by itself unless `learn()` is called.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractContextManager
from typing import Literal, TypeVar

from ragbandit.router.config.loading import with_arms
from ragbandit.router.learning import status as ledger_status
from ragbandit.router.learning.audit.verdict import Verdict
from ragbandit.router.learning.audit.verify import verify
from ragbandit.router.learning.checkpoints import Checkpoints
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.rollouts.evaluator import Evaluator, Look
from ragbandit.router.serving.answers import cancellation as cancellations
from ragbandit.router.serving.batching.admission import QueueState
from ragbandit.router.serving.batching.micro_batching import SERVE_S
from ragbandit.router.serving.checks.fields import checked_id, checked_number, checked_type
from ragbandit.router.serving.checks.reports import check_charged, made_feedback, made_outcome
from ragbandit.router.serving.health.readiness import OK
from ragbandit.router.serving.health.state import RouterState, percentiles
from ragbandit.router.serving.lifecycle import RouterLifecycle
from ragbandit.router.serving.overview import earned
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.decisions import DecisionRecord
from ragbandit.router.storage.vote_limits import VoteLimit
from ragbandit.shared.errors import InvalidInput, NotReady, QueueError, RagBanditError
from ragbandit.shared.types import (
    Decision,
    DecisionId,
    Feedback,
    Message,
    Outcome,
    OutcomeStatus,
    Query,
    Receipt,
    RunBy,
)

Reply = TypeVar("Reply")

__all__ = ["Queue", "Router"]

#: what waits in this process for its batch, beside answers
Queue = Literal["questions", "feedback", "outcomes"]

log = logging.getLogger("ragbandit.router")


class Router(RouterLifecycle):
    """One process's router. `Router.open()` reads the configuration and starts it; use it as a context manager."""

    #: made by the first `check_rollouts`, which reads on from where the one before stopped
    _evaluator: Evaluator | None = None

    def route(self, query: Query | str, *, timeout_s: float = SERVE_S) -> Decision:
        """Draw an arm for the caller's own stack to run. Committed when it returns.

        Raises InvalidInput, Conflict (the id was used for another request), StoreError, NotReady (time ran out: the
        question is dropped unless its batch had begun), Overloaded (it would wait longer than server.max_wait_s).
        """
        timeout_s = checked_number(timeout_s, field="timeout_s")
        return _result(self.submit(query), timeout_s=timeout_s)

    def submit(self, query: Query | str, *, run_by: RunBy = "caller") -> "Future[Decision]":
        """`route` without waiting; with run_by="worker" only arms that our workers run are offered.

        Raises Overloaded at once where it would wait longer than server.max_wait_s, or server.max_waiting wait already;
        a Future that is cancelled before its batch begins leaves nothing behind.
        """
        query = Query(text=query) if isinstance(query, str) else query
        return self.service.submit(query, run_by=run_by)

    def query_of_messages(self, messages: Sequence[Message], *, query: Query | None = None) -> Query:
        """The query that a chat asks, for `route` or `answer`: the last user message, with what was said before it.

        messages: the oldest first; the last of user and assistant is the question. Where others stand before it, and
        somebody rewrites (`conversation.rewrite`), `text` is the question rewritten to stand alone and `asked` what
        the user wrote; without history, and where the rewrite fails, `text` is the last user message as it is.
        `messages` are the turns that are kept (`conversation.turns`, `.chars`), `request` tells of the rewrite and
        its cost, which belongs to the question and not to the arm. query: the id, the session and all else of the
        request; its text and messages are not read. Blocks for `conversation.rewrite.seconds` at most.

        Raises InvalidInput where there is no question, or a message cannot be stored.
        """
        return _result(self.submit_messages(messages, query=query), timeout_s=SERVE_S)

    def submit_messages(self, messages: Sequence[Message], *, query: Query | None = None) -> "Future[Query]":
        """`query_of_messages` without waiting: the Future raises nothing. Raises InvalidInput."""
        return self.conversations.submit(messages, query=query or Query(text=""))

    def route_many(
        self, queries: Sequence[Query | str], *, timeout_s: float = SERVE_S
    ) -> list[Decision | RagBanditError]:
        """`route` for many questions: in order, the decision or what was wrong with the question.

        Decided in groups, so that a question costs a fraction of `route`. Raises Overloaded if not even the first
        question may wait.
        """
        timeout_s = checked_number(timeout_s, field="timeout_s")
        give_up = time.monotonic() + timeout_s
        results: list[Decision | RagBanditError] = []
        for future in self.submit_many(queries):
            try:
                results.append(_result(future, timeout_s=max(0.0, give_up - time.monotonic())))
            except RagBanditError as error:
                results.append(error)
        return results

    def submit_many(self, queries: Sequence[Query | str], *, run_by: RunBy = "caller") -> "list[Future[Decision]]":
        """`submit` for many: the Future of a query that cannot be routed, or is one too many, raises why.

        Raises Overloaded if not even the first of them may wait.
        """
        asked = [Query(text=query) if isinstance(query, str) else query for query in queries]
        return self.service.submit_many(asked, run_by=run_by)

    def answer(self, query: Query | str, *, wait_s: float | None = None) -> tuple[Decision, Outcome | None]:
        """Draw an arm and have a worker run it; the Outcome, or None if it is not there after wait_s seconds."""
        wait_s = self.settings.server.answer_wait_s if wait_s is None else checked_number(wait_s, field="wait_s")
        query = Query(text=query) if isinstance(query, str) else query
        with self.answer_place(query):
            decision = _result(self.submit(query, run_by="worker"), timeout_s=SERVE_S)
            waiting = self.await_outcome(decision)
        try:
            return decision, waiting.result(wait_s)
        except FutureTimeout:
            return decision, None
        finally:
            self.forget(decision.id, waiting)

    def await_outcome(self, decision: Decision) -> "Future[Outcome]":
        """Ask a worker for the answer, once or again; returns a Future of the Outcome. Call `forget` when done."""
        return self._pending.request(decision)

    def submit_request(self, decision: Decision) -> "Future[Future[Outcome]]":
        """`await_outcome` without waiting for Redis; call it inside `answer_place`."""
        return self._pending.submit(decision)

    def answer_place(self, query: Query) -> AbstractContextManager[None]:
        """A place among the unanswered questions; entering it raises Overloaded, TooManyRequests."""
        checked_type(query, Query, field="question", wanted="a string or a Query")
        tenant = checked_id(query.tenant, field="tenant")
        return self._pending.place(tenant, decision_id=query.id)

    def forget(self, decision_id: DecisionId, future: "Future[Outcome]") -> None:
        """Stop waiting for this Future."""
        self._pending.remove(decision_id, future)

    def awaits(self, decision_id: str) -> bool:
        """Whether a caller of this process waits for the outcome of this decision."""
        return self._pending.is_awaited(decision_id)

    def request_answer(self, decision: Decision) -> None:
        """Queue the answer job. Redis down is no error: the recovery loop queues it later."""
        self._notifier.request_answer(decision)

    def cancel(self, decision_id: str) -> cancellations.Cancellation:
        """Tell the workers not to answer this decision, or to stop. Its outcome has the cost so far.

        Raises NotFound, Conflict (the caller's own stack runs it), InvalidInput.
        """
        key = DecisionId(checked_id(decision_id, field="decision_id"))
        found = cancellations.request(self.database, decision_id=key, now=time.time())
        if found.status is None:
            self._notifier.cancel(key)
        return found

    @property
    def failed_notifications(self) -> int:
        """Notifications of workers and learner that did not reach Redis; the recovery loop repeats them."""
        return self._notifier.failed_notifications

    def offer(self, arms: Mapping[str, Mapping[str, object]]) -> None:
        """Offer these arms, name -> params as in the configuration, from the next request on.

        A new arm begins with policy.cold_start_floor; one that is left out is drawn no more and keeps what was
        learned of it, should it come back. Arms that our workers run must be known to the workers too: they
        take them from their configuration when they start. Raises ConfigError for arms that cannot be.
        """
        settings = with_arms(self.settings, arms)
        check_policy(settings)
        self._offer_settings(settings)
        log.info("other arms are offered from now on", extra={"action": "offer", "arms": ", ".join(settings.arms)})

    def check_rollouts(self) -> list[Look]:
        """Look once at every version that is in shadow or canary, and do what the evidence says; what was found.

        The worker that learns does this every `rollout.interval_s`; empty where it is at it. Raises StoreError.
        """
        if self._evaluator is None:
            self._evaluator = Evaluator(self.database, settings=self.settings)
        looks = self._evaluator.evaluate(now=time.time())
        self._evaluator.close()
        return looks

    def outcome(
        self,
        decision_id: str,
        *,
        status: OutcomeStatus = "answered",
        answer: str | None = None,
        steps: float | None = None,
        cost: Mapping[str, float] | None = None,
        stop_reason: str = "",
        error: str | None = None,
    ) -> bool:
        """Report the outcome of a decision that the caller ran; False if this very outcome is stored already.

        steps: rounds of retrieval and generation; None is 0. cost: fields of Cost -> amounts. A cost of which
        `reward.cost` charges nothing is refused where steps are not given: the arm would look free.

        Raises InvalidInput, NotFound, Conflict (another outcome is stored, or our workers run this decision).
        """
        made = made_outcome(
            decision_id=decision_id,
            now=time.time(),
            status=status,
            answer=answer,
            steps=0.0 if steps is None else steps,
            cost=cost,
            stop_reason=stop_reason,
            error=error,
        )
        if steps is None:
            self.check_charged(made, cost=cost or {})
        return _result(self.submit_outcome(made), timeout_s=SERVE_S)

    def check_charged(self, outcome: Outcome, *, cost: Mapping[str, float]) -> None:
        """Refuse an outcome reported without steps and with a cost of which `reward.cost` charges nothing.

        cost: the amounts that were given. The very outcome that is stored already is a repetition and passes: stores
        have outcomes from before this rule, or from other settings. Raises InvalidInput.
        """
        try:
            check_charged(cost, reward=self.settings.reward)
        except InvalidInput:
            if not self.store.has_outcome(outcome):
                raise

    def submit_outcome(self, outcome: Outcome) -> "Future[bool]":
        """`outcome` without waiting. What workers run they write themselves: run_by must be "caller".

        Raises Overloaded as `submit`.
        """
        checked_type(outcome, Outcome, field="outcome", wanted="an Outcome")
        if outcome.run_by != "caller":
            message = "outcomes of our workers are written by them alone"
            raise InvalidInput(
                message, field="outcome.run_by", remedy='report what your own stack ran: run_by="caller"'
            )
        return self._outcomes.submit(outcome)

    def feedback(
        self,
        decision_id: str,
        *,
        feedback_id: str | None = None,
        label: Sequence[str] | None = None,
        rating: bool | float | None = None,
        scale: str = "0-1",
        reward: float | None = None,
        event: str | None = None,
        source: str | None = None,
        rater: str | None = None,
        retract: str | None = None,
    ) -> Receipt:
        """Store one judgement of a decision: exactly one of label, rating, reward and event. Durable when it returns.

        label: gold answers. rating: a bool, a number in [0, 1], or with scale="1-5" one in [1, 5]. reward: the reward
        itself, within the bounds of the settings. event: a name of the setting feedback_events. source: "human" (also
        None), "judge" or "code"; None for an event. rater: which one of the source judged, for example a user's id: a
        later judgement of the same one replaces the earlier, until the decision is closed. retract: in place of a
        judgement, the kind ("label", "rating", "reward") of what that rater said before, and takes back.

        Raises InvalidInput, NotFound (unknown decision), Conflict (feedback_id used with another body).
        """
        made = made_feedback(
            decision_id=decision_id,
            settings=self.settings,
            now=time.time(),
            feedback_id=feedback_id,
            label=label,
            rating=rating,
            scale=scale,
            reward=reward,
            event=event,
            source=source,
            rater=rater,
            retract=retract,
        )
        return _result(self.submit_feedback(made), timeout_s=SERVE_S)

    def submit_feedback(self, feedback: Feedback, *, limit: VoteLimit | None = None) -> "Future[Receipt]":
        """`feedback` without waiting. Raises Overloaded as `submit`.

        limit: of new feedback that a token brings; beyond it the Future raises Forbidden or Conflict.
        """
        checked_type(feedback, Feedback, field="feedback", wanted="a Feedback")
        return self._feedback.submit((feedback, limit))

    def submit_feedback_batch(self, items: Sequence[Feedback]) -> "list[Future[Receipt]]":
        """Several at once: all of them are taken, or none. Raises Overloaded."""
        return self._feedback.submit_all([(item, None) for item in items])

    def decision(self, decision_id: str) -> DecisionRecord:
        """All that is stored about a decision. Raises NotFound, InvalidInput."""
        return self.store.record(DecisionId(checked_id(decision_id, field="decision_id")))

    def status(self) -> ledger_status.Status:
        """State of the ledger: counts, learning lag, newest snapshot. Raises StoreError."""
        return ledger_status.status(
            self.ledger, serving=self._fresh, rule=closing_rule(self.settings.learning), now=time.time()
        )

    def verify(self, *, whole: bool = False, deep: bool = False) -> Verdict:
        """Draw the decisions again and learn the ledger again, from the newest checkpoint that a verify has passed.

        whole: from the beginning in any case. deep: that, and every pmf computed again.
        """
        checkpoints = Checkpoints(self.ledger, files=SnapshotFiles(self.settings.checkpoint_root))
        return verify(
            self.ledger, files=self.files, serving=self._fresh, checkpoints=checkpoints, whole=whole, deep=deep
        )

    def learn(self) -> int:
        """Learn in this process what is ready (for notebooks and tests; a service has a learner process).

        Versions that are live learn as well, each in its own ledger. Returns the number of decisions closed in the
        configuration's; 0 also if another learner holds the lease.
        """
        done = 0
        for settings in (self.settings, *self.versions.learned()):
            learner = make_learner(settings, database=self.database, jobs=self.jobs)
            try:
                closed = learner.drain()
            finally:
                learner.close()
            done = closed if settings is self.settings else done
        self.refresh()
        return done

    def state(self) -> RouterState:
        """State of this router and of its ledger. Raises StoreError."""
        serving, ledger = self.service.serving, self.status()
        bells = self._asked_of_redis(self.jobs.depth)
        return RouterState(
            ledger=ledger,
            label=self.ledger.label,
            algorithm=self.settings.policy.name,
            serving=serving.version,
            serving_last_seq=serving.last_seq,
            rebuilding=serving.rebuilding,
            arms=tuple(self.service.healths()),
            faults=self.service.faults,
            fail_opens=self.service.fail_opens,
            swaps=self.snapshots.swaps,
            snapshots_refused=self.snapshots.refused,
            failed_notifications=self.failed_notifications,
            feedback_to_policy_ms=percentiles(tuple(self.snapshots.lags)),
            route_queue=self.service.depth(),
            earned=earned(self.database, policy=self.ledger.label),
            jobs=None if bells is None else {"answer": 0, "judge": ledger.judge.waiting, **bells},
            workers=self._asked_of_redis(self.jobs.workers),
            work=self._asked_of_redis(self.jobs.work),
            jobs_refused=self._asked_of_redis(self.jobs.refused),
            redis="Redis cannot be reached" if self.jobs.outage.lasts else self.redis_fault() or OK,
        )

    def waiting(self) -> int:
        """Requests, outcomes and feedback waiting for the next batch."""
        return self.service.depth() + self._feedback.depth() + self._outcomes.depth()

    def check_admission(self, queue: Queue) -> None:
        """Raises Overloaded if what came now would wait too long in this queue: asked before a request is read."""
        if queue == "questions":
            self.service.check_admission()
        else:
            (self._feedback if queue == "feedback" else self._outcomes).check_admission()

    def queues(self) -> Mapping[str, QueueState]:
        """State of the queues, by name, and what they refused and dropped since the start."""
        return {
            "questions": self.service.queue(),
            "answers": self._pending.queue(),
            "feedback": self._feedback.state(),
            "outcomes": self._outcomes.state(),
        }

    def parts(self) -> dict[str, str]:
        """Readiness of each part, "router", "database" and "redis": "ok", or what is wrong with it.

        While the policy is being learned again from its ledger a part "policy" says so; while a learner cannot use its
        store, a part "learner" does.
        """
        return self.with_policy(self.readiness.parts())

    def with_policy(self, parts: dict[str, str]) -> dict[str, str]:
        """These parts, and "policy" while it is being learned again."""
        serving = self.service.serving
        return (
            parts | {"policy": f"rebuilding: {serving.version} decides until the policy is learned again"}
            if serving.rebuilding
            else parts
        )

    def end_waits(self) -> None:
        """End all waits for answers as if their time had run out; the answers are stored when they come."""
        self._pending.end_waits()

    def _asked_of_redis(self, ask: Callable[[], Reply]) -> Reply | None:
        try:
            return ask()
        except QueueError:
            return None


def _result(future: "Future[Reply]", *, timeout_s: float) -> Reply:
    try:
        return future.result(timeout_s)
    except FutureTimeout as error:
        future.cancel()  # nobody waits for it any more: it is dropped if its batch has not begun
        raise NotReady(
            f"no reply within {timeout_s:g} s, so whether it is stored is not known",
            remedy="send it again with the same id: nothing is stored twice",
        ) from error

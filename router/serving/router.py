"""Router: the library's interface to decisions, outcomes, feedback and answers. It learns only in `learn()`."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from ragbandit.router.config.loading import LoadedSettings, load
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.learner import Learner
from ragbandit.router.learning.monitoring.frontier import LEAST
from ragbandit.router.learning.status import Status
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.router.queue.notifier import Jobs
from ragbandit.router.rollouts.version_settings import settings_of
from ragbandit.router.serving.asked_model import event_loop
from ragbandit.router.serving.batching import SERVE_S, reply_of
from ragbandit.router.serving.checks.query_fields import QueryFields, query_of
from ragbandit.router.serving.checks.questions import check_type, checked_id, checked_number, checked_text, new_id
from ragbandit.router.serving.checks.reports import check_charged, check_feedback_id, make_feedback, make_outcome
from ragbandit.router.serving.conversations import ConversationQueries, with_chat
from ragbandit.router.serving.deciding.steps.step import Question, Step
from ragbandit.router.serving.health.readiness import RouterState
from ragbandit.router.serving.loading.live import LiveVersions
from ragbandit.router.serving.process import RouterProcess
from ragbandit.router.serving.setup.bootstrap import make_encoder, make_jobs, make_learner, open_database
from ragbandit.router.storage.cancellations import Cancellation, cancel
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import Forbidden, InvalidInput, NotFound, Overloaded, RagBanditError, StoreError
from ragbandit.shared.types import (
    ArmName,
    Decision,
    DecisionId,
    Feedback,
    Message,
    Outcome,
    OutcomeStatus,
    PolicyLabel,
    Query,
    Receipt,
    RunBy,
)

if TYPE_CHECKING:
    from ragbandit.router.learning.audit.checks import AuditResult


class Router(AbstractContextManager["Router"]):
    """The router of one process, a context manager. `Router.open()` reads the configuration and starts it."""

    def __init__(self, settings: Settings, *, encoder: Encoder, database: Database, jobs: Jobs) -> None:
        """Assemble the parts; nothing is read, written or started before `start`. Raises ConfigError."""
        check_policy(settings)
        self.settings = settings
        #: the file of the settings; None if there is none, or if `open` was given Settings
        self.config_file: Path | None = None
        self.database, self.encoder = database, encoder
        self._owns_jobs = False
        #: threads, queues and connections
        self.process = RouterProcess(settings, encoder=encoder, database=database, jobs=jobs)
        self.store, self.service = self.process.store, self.process.service
        self.conversations = ConversationQueries(
            settings.conversation, generator=settings.generator, store=self.store, rules=settings.rule_book
        )
        #: label of a ledger -> the settings of its learner, and the learner
        self._learners: dict[str, tuple[Settings, Learner]] = {}
        #: number of decisions that these learners have closed since the last diagnosis
        self._undiagnosed = 0

    @classmethod
    def open(
        cls,
        config: "str | Path | Settings | None" = None,
        *,
        encoder: Encoder | None = None,
        jobs: "Jobs | None" = None,
    ) -> Self:
        """Start a Router on the configured database, Redis and encoder; Redis may be down.

        config: a file, Settings, or None for ./config.yaml and the environment. Raises as `start`.
        """
        loaded = LoadedSettings(settings=config) if isinstance(config, Settings) else load(config)
        settings = loaded.settings
        database = open_database(settings)
        try:
            if encoder is None:
                ledger = Ledger(database, label=PolicyLabel(settings.policy.label))
                encoder = make_encoder(settings.encoder, ledger=ledger)
            router = cls(settings, encoder=encoder, database=database, jobs=jobs or make_jobs(settings))
            router._owns_jobs, router.config_file = jobs is None, loaded.file
            router.start()
            return router
        except BaseException:
            database.close()
            raise

    def start(self) -> None:
        """Load the newest snapshot and start the threads. Call it once. Raises StoreError, ConfigError, Conflict."""
        self.process.start()

    def close(self) -> None:
        """Finish the submitted requests, stop all threads, close the connections."""
        if self.service.inline is not None:
            self.service.inline.close()
        with suppress(RagBanditError):  # no data is lost: only `status` lacks the diagnosis
            self._diagnose()
        self.process.close()
        if self._owns_jobs:
            self.process.jobs.close()
        self.database.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ledger(self) -> Ledger:
        """The ledger of the policy that decides."""
        return self.process.ledger

    def route(self, query: Query | str, *, timeout_s: float = SERVE_S, **more: Unpack[QueryFields]) -> Decision:
        """Draw an arm that the caller's own stack runs. When this method returns, the decision is committed.

        more: fields of the question, if it is a string: `route("Who signs?", context={"plan": "pro"}, tenant="acme")`.
        Raises InvalidInput, Conflict (the id was used for another request), StoreError, NotReady (no reply within
        timeout_s) and Overloaded (the expected wait is longer than server.max_wait_s).
        """
        timeout_s = checked_number(timeout_s, field="timeout_s")
        return reply_of(self.submit(query, **more), timeout_s=timeout_s)

    def submit(
        self, query: Query | str, *, run_by: RunBy = "caller", **more: Unpack[QueryFields]
    ) -> "Future[Decision]":
        """`route` without waiting. run_by="worker" offers only arms that our workers run.

        Raises Overloaded, InvalidInput, Forbidden, and TooManyRequests if too many questions of the tenant wait. The
        Future raises Conflict if the id was used for another request. If it is cancelled in time, nothing is stored.
        """
        question = self.service.make_question(query_of(query, more), run_by=run_by)
        return self._submit_prepared(question) or self.service.submit(question)

    def preview(
        self, query: Query | str, *, run_by: RunBy = "caller", **more: Unpack[QueryFields]
    ) -> "Future[Decision]":
        """The decision that `submit` would make, with the probabilities; its arm is the likeliest arm. Nothing is drawn
        or stored, and no stored decision gets this id. Raises as `submit`.
        """
        question = self.service.make_question(replace(query_of(query, more), id=None), run_by=run_by)
        question.is_preview = True
        return self.service.submit(question)

    def _submit_prepared(self, question: Question) -> "Future[Decision] | None":
        """Let steps ask a model or a service, then submit the question. None if no step asks. Raises as `submit`."""
        live = self.process.versions.live
        steps = self.service.asking_steps(question, live=live)
        if not steps:
            return None
        self.service.admit(question)  # before anything is paid for the question
        deciding = self._prepare_and_decide(question, steps=steps, live=live)
        return asyncio.run_coroutine_threadsafe(deciding, event_loop())

    async def _prepare_and_decide(self, question: Question, *, steps: Sequence[Step], live: LiveVersions) -> Decision:
        named = question.query.id if question.query.sent.named_id else None
        if named is None or not await asyncio.to_thread(self.store.decisions_by_id, [DecisionId(named)]):
            for step in steps:
                await step.prepare(question, live=live)
        return await asyncio.wrap_future(self.service.submit(question))

    def query_of_messages(self, messages: Sequence[Message], *, query: Query | None = None) -> Query:
        """Make a query of a chat, for `route` or `answer`: the last user message, with the turns before it.

        With `conversation.rewrite` the `text` of a later turn is rewritten so that it needs no history; `asked` is the
        original, and `sent.rewrite` has the cost. messages: oldest first. query: the fields of the request except text
        and messages. Raises InvalidInput if the chat has no question.
        """
        asked = with_chat(query, messages, settings=self.settings.conversation)
        rewritten = self.conversations.rewrite(asked)
        return rewritten if isinstance(rewritten, Query) else reply_of(rewritten, timeout_s=SERVE_S)

    def submit_many(self, queries: Sequence[Query | str], *, run_by: RunBy = "caller") -> "list[Future[Decision]]":
        """`submit` for many queries; the Future of an invalid query raises its error. Raises Overloaded."""
        questions: dict[int, Question] = {}
        futures: dict[int, Future[Decision]] = {}
        for place, query in enumerate(queries):
            try:
                question = self.service.make_question(query_of(query, {}), run_by=run_by)
                prepared = self._submit_prepared(question)
                if prepared is None:
                    questions[place] = question
                else:
                    futures[place] = prepared
            except (InvalidInput, Forbidden, Overloaded) as error:
                futures[place] = Future()
                futures[place].set_exception(error)
        submitted = self.service.submit_each(list(questions.values()))
        futures |= zip(questions, submitted, strict=True)
        return [futures[place] for place in range(len(queries))]

    def answer(
        self, query: Query | str, *, wait_s: float | None = None, **more: Unpack[QueryFields]
    ) -> tuple[Decision, Outcome | None]:
        """Draw an arm that a worker runs. Returns (decision that answered, Outcome or None if no outcome came in
        wait_s).

        more: as for `route`
        """
        wait_s = self.settings.server.answer_wait_s if wait_s is None else checked_number(wait_s, field="wait_s")
        query = query_of(query, more)
        with self.process.answers.reserve(query):
            decision = reply_of(self.submit(query, run_by="worker"), timeout_s=SERVE_S)
            waiting = self.process.answers.request(decision)
        try:
            outcome = waiting.result(wait_s)
            return self.decision_of(decision, outcome), outcome
        except FutureTimeout:
            return decision, None
        finally:
            self.process.answers.remove(decision.id, waiting)

    def decision_of(self, decision: Decision, outcome: Outcome) -> Decision:
        """The decision that an outcome belongs to: this one, or its replacement after a failure. Raises StoreError."""
        key = outcome.decision_id
        answered = decision if key == decision.id else self.store.decisions_by_id([key])[key][0]
        if isinstance(answered, StoreError):
            raise answered
        return answered

    def cancel(self, decision_id: str) -> Cancellation:
        """Stop the answer; its outcome has the cost so far. Raises NotFound, Conflict, InvalidInput."""
        key = DecisionId(checked_id(decision_id, field="decision_id"))
        cancelled = cancel(self.database, decision_id=key, now=time.time())
        inline = self.service.inline
        is_stopped = inline is not None and inline.stop(cancelled.decision_id)
        if cancelled.status is None and not is_stopped:
            self.process.notifier.cancel(cancelled.decision_id)
        return cancelled

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
        """Report the outcome of a decision that the caller ran. False if the same outcome is stored already.

        steps: rounds of retrieval and generation; None counts as 0. cost: names of fields of Cost -> amounts. Without
        steps, `reward.cost` must charge for one of these fields, since otherwise the arm would look free. Raises
        InvalidInput, NotFound, Conflict.
        """
        fields: dict[str, Any] = {"status": status, "answer": answer, "cost": cost, "error": error}
        fields |= {"steps": 0.0 if steps is None else steps, "stop_reason": stop_reason}
        outcome = make_outcome(decision_id=decision_id, now=time.time(), **fields)
        if steps is None:
            check_charged(outcome, cost=cost or {}, reward=self.settings.reward, is_stored=self.store.has_outcome)
        return reply_of(self.submit_outcome(outcome), timeout_s=SERVE_S)

    def submit_outcome(self, outcome: Outcome) -> "Future[bool]":
        """`outcome` without waiting; run_by must be "caller". Raises Overloaded."""
        check_type(outcome, Outcome, field="outcome", wanted="an Outcome")
        if outcome.run_by != "caller":
            message, remedy = "workers write their own outcomes", 'report what your own stack ran: run_by="caller"'
            raise InvalidInput(message, field="outcome.run_by", remedy=remedy)
        return self.process.outcomes.submit(outcome)

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

        label: gold answers. rating: a bool, or a number on `scale`, which is WORST-BEST: 1-5 or -1-1. event: a name
        of the setting feedback_events. source: "human" (also None), "label", "judge" or "code". rater: a user's id;
        a rater's later judgement replaces the earlier one until the decision is closed. retract: instead of a
        judgement, the kind ("label", "rating", "reward") that this rater takes back. Raises InvalidInput, NotFound
        (unknown decision), Conflict (feedback_id was used with another body).
        """
        fields: dict[str, Any] = {"label": label, "rating": rating, "scale": scale, "reward": reward, "event": event}
        fields |= {"feedback_id": feedback_id, "source": source, "rater": rater, "retract": retract}
        check_feedback_id(feedback_id)
        feedback = make_feedback(decision_id=decision_id, settings=self.settings, now=time.time(), **fields)
        return reply_of(self.submit_feedback(feedback), timeout_s=SERVE_S)

    def end_session(
        self, session: str, *, tenant: str = "default", feedback: Mapping[str, Any] | None = None
    ) -> DecisionId:
        """End the open tasks of a conversation, so that they are learned. Returns the decision of the newest one.

        feedback: a judgement of this task, as the arguments of `feedback`. Raises NotFound and as `feedback`.
        """
        session = checked_text(session, field="session")
        judged = self.store.decision_of_session(session, tenant=tenant, feedback_id=(feedback or {}).get("feedback_id"))
        if judged is None:
            message, remedy = f"no decision has the session {session!r:.80}", "send the id and tenant of its questions"
            raise NotFound(message, field="session", remedy=remedy)
        decision_id, received_at = judged
        if feedback:
            self.feedback(decision_id, **feedback)
        self.store.end_session(session, tenant=tenant, now=self.service.clock(), begun_until=received_at)
        self.process.notifier.notify_learner()
        return decision_id

    @contextmanager
    def task(self, session: str | None = None, *, tenant: str = "default") -> "Iterator[Task]":
        """A task whose turns all get the arm of the first one; it ends with the block. session: None for a new id.

        with router.task() as task:
            decision = task.route("Why does the build fail?")
            ...
            task.feedback(rating=True, source="code")

        """
        task = Task(router=self, session=session or new_id(), tenant=tenant)
        try:
            yield task
        except BaseException:
            with suppress(RagBanditError):  # the block's own error is raised; the task ends after its idle time
                self.end_session(task.session, tenant=tenant)
            raise
        with suppress(NotFound):  # the task has no question
            self.end_session(task.session, tenant=tenant)

    def submit_feedback(self, feedback: Feedback) -> "Future[Receipt]":
        """`feedback` without waiting. Raises Overloaded."""
        check_type(feedback, Feedback, field="feedback", wanted="a Feedback")
        return self.process.feedback.submit(feedback)

    def submit_feedback_batch(self, items: Sequence[Feedback]) -> "list[Future[Receipt]]":
        """Submit all items or none. Raises Overloaded."""
        return self.process.feedback.submit_all(items)

    def decision(self, decision_id: str) -> DecisionRecord:
        """All that is stored about a decision. Raises NotFound, InvalidInput."""
        return self.store.record(DecisionId(checked_id(decision_id, field="decision_id")))

    def status(self) -> Status:
        """State of the ledger: counts, learning lag, newest snapshot. Raises StoreError."""
        from ragbandit.router.reporting.status import status

        self._diagnose()
        serving, rule = self.process.versions.snapshots.untrained, closing_rule(self.settings.learning)
        arms = map(ArmName, self.settings.arms)
        return status(self.ledger, serving=serving, rule=rule, now=time.time(), arms=arms)

    def verify(self, *, deep: bool = False) -> "AuditResult":
        """Repeat the draw of every decision, and learn the ledger again. deep: also compute every pmf again."""
        from ragbandit.router.learning.audit.verify import verify

        return verify(
            self.ledger,
            files=self.process.versions.snapshots.files,
            serving=self.process.versions.snapshots.untrained,
            deep=deep,
        )

    def learn(self) -> int:
        """Learn the judged decisions in this process, and decide with them; live versions learn in their own ledgers.

        Returns the number of decisions closed in the configured ledger; 0 also if another learner holds the lease.
        """
        closed = []
        of_versions = [settings_of(self.settings, version) for version in self.process.versions.learning]
        for settings in (self.settings, *of_versions):
            label = settings.policy.label
            known = self._learners.get(label)
            if known is None or known[0] != settings:
                ledger, files = Ledger(self.database, label=PolicyLabel(label)), self.process.versions.snapshots.files
                known = settings, make_learner(settings, ledger, jobs=self.process.jobs, files=files)
                self._learners[label] = known
            closed.append(known[1].drain(attended=True))
        self._undiagnosed += sum(closed)
        self._diagnose(min_closed=LEAST)
        self.refresh()
        return closed[0]

    def _diagnose(self, *, min_closed: int = 1) -> None:
        """Diagnose the policies if `learn` has closed at least `min_closed` decisions since the last one. A diagnosis
        takes as long as learning ten labels.
        """
        if self._undiagnosed >= min_closed:
            self._undiagnosed = 0
            for _, learner in list(self._learners.values()):
                learner.diagnose()

    def state(self) -> RouterState:
        """State of this router and of its ledger. Raises StoreError."""
        return self.process.state(self.status())

    def refresh(self) -> bool:
        """Load new versions and snapshots. Returns whether the deciding policy has a newer one. Raises StoreError."""
        return self.process.versions.refresh()


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The turns of one task, see `Router.task`. `route` and `answer` work as the router's methods."""

    router: Router
    session: str
    tenant: str

    def _query(self, query: Query | str, more: Mapping[str, Any]) -> Query:
        for name in sorted(more.keys() & {"session", "tenant", "unit"}):
            message, remedy = f'a turn has the "{name}" of its task', "leave it out, or use Router.route"
            raise InvalidInput(message, field=name, remedy=remedy)
        return replace(query_of(query, more), session=self.session, tenant=self.tenant, unit="task")

    def route(self, query: Query | str, **more: Unpack[QueryFields]) -> Decision:
        return self.router.route(self._query(query, more))

    def answer(
        self, query: Query | str, *, wait_s: float | None = None, **more: Unpack[QueryFields]
    ) -> tuple[Decision, Outcome | None]:
        return self.router.answer(self._query(query, more), wait_s=wait_s)

    def feedback(self, **judgement: Any) -> Receipt:
        """Judge the whole task, as `Router.feedback` judges a decision. Raises NotFound before the first turn."""
        judged = self.router.store.decision_of_session(
            self.session, tenant=self.tenant, feedback_id=judgement.get("feedback_id")
        )
        if judged is None:
            raise NotFound("the task has no turn yet", field="session", remedy="route a question first")
        return self.router.feedback(judged[0], **judgement)

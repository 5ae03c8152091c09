"""The library's front door.

A Router is one process's share of the service. It decides and commits, takes feedback, follows the snapshots that
the learner publishes, and asks workers for answers; it never learns by itself unless `learn()` is called.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from ragbandit.router.config.loading import load, with_arms
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.errors import NotReady, SnapshotError, StoreError
from ragbandit.router.jobs.listener import Listener
from ragbandit.router.jobs.notifier import Bell
from ragbandit.router.jobs.queue import Jobs, RedisJobs
from ragbandit.router.learning import status as ledger_status
from ragbandit.router.learning.audit import Verdict, verify
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.snapshots import SnapshotFiles, pack
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.checks import check_policy
from ragbandit.router.serving import cancellation as cancellations
from ragbandit.router.serving.bootstrap import make_encoder, make_jobs, make_learner, open_database
from ragbandit.router.serving.micro_batching import MicroBatcher
from ragbandit.router.serving.pending_answers import PendingAnswers
from ragbandit.router.serving.service import RouteService, Serving
from ragbandit.router.serving.validation import checked_id, made_feedback, made_outcome
from ragbandit.router.storage.database import Database
from ragbandit.router.storage.decisions import DecisionRecord, DecisionStore
from ragbandit.router.storage.ledger import Ledger
from ragbandit.router.storage.rows import canonical
from ragbandit.router.types import (
    Decision,
    DecisionId,
    Feedback,
    Outcome,
    OutcomeStatus,
    PolicyLabel,
    Query,
    Receipt,
    RunBy,
    SnapshotInfo,
)

Reply = TypeVar("Reply")

__all__ = ["SERVE_S", "Router"]

log = logging.getLogger("ragbandit.router")

#: how often a router looks for a new snapshot by itself, should Redis have nothing to say, and at the arms' health
POLL_S = 1.0
#: longest wait for a group to be served
SERVE_S = 60.0


class Router:
    """The library's front door. `Router.open()` reads the configuration; use it as a context manager."""

    def __init__(self, settings: Settings, *, encoder: Encoder, database: Database, jobs: Jobs) -> None:
        self.settings = settings
        self.encoder = encoder
        self.database = database
        self.jobs = jobs
        label = PolicyLabel(settings.policy.label)
        self.store = DecisionStore(database, label=label)
        self.ledger = Ledger(database, label=label)
        self.files = SnapshotFiles(settings.snapshot_root)
        check_policy(settings)
        self._fresh = make_policy(settings.policy.name, params=settings.policy.params)
        #: a policy that uses no features does not care which encoder made them
        self._learned_with = encoder.hash if "features" in self._fresh.needs else ""
        self.store.register_policy(
            algorithm=self._fresh.algorithm,
            params=canonical(dict(self._fresh.params)),
            encoder_hash=self._learned_with,
            now=time.time(),
        )
        self.service = RouteService(self.store, encoder=encoder, settings=settings, serving=self._first())
        self.service.poll_outcomes()
        self._feedback: MicroBatcher[Feedback, Receipt] = MicroBatcher(self._keep, name="ragbandit-feedback", limit=500)
        self._outcomes: MicroBatcher[Outcome, bool] = MicroBatcher(self._end, name="ragbandit-outcomes", limit=500)
        #: seconds from feedback to the router that has learned it, the last thousand
        self.lags: deque[float] = deque(maxlen=1000)
        self._owns_jobs = False
        self.swaps = 0
        self.refused: set[str] = set()
        self._bell = Bell(jobs, label=label, answer_s=settings.budget.seconds)
        if self.service.serving.last_seq < self.ledger.last_seq():
            self._bell.learn()  # the newest snapshot is lost or of other params: the learner makes it from the ledger
        self._pending = PendingAnswers()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._follower = threading.Thread(target=self._follow, name="ragbandit-follow", daemon=True)
        self._follower.start()
        self._listener = Listener(jobs.client, self._hear, alarm=jobs.alarm) if isinstance(jobs, RedisJobs) else None

    @classmethod
    def open(
        cls,
        config: "str | Path | Settings | None" = None,
        *,
        encoder: Encoder | None = None,
        jobs: Jobs | None = None,
    ) -> "Router":
        """A Router on the configured database, Redis and encoder.

        config: a file, ready Settings, or None for ./config.yaml and the environment. Raises ConfigError for a
        wrong setting and StoreError for a database that cannot be used; Redis may be down.
        """
        settings = config if isinstance(config, Settings) else load(config).settings
        database = open_database(settings)
        try:
            router = cls(
                settings,
                encoder=encoder or make_encoder(settings.encoder),
                database=database,
                jobs=jobs or make_jobs(settings),
            )
            router._owns_jobs = jobs is None
            return router
        except BaseException:
            database.close()
            raise

    def route(self, query: Query | str, *, timeout_s: float = SERVE_S) -> Decision:
        """Draw an arm for the caller's own stack to run. Committed when it returns.

        Raises InvalidInput, Conflict (the id was used for another request), StoreError, NotReady (time ran out).
        """
        query = Query(text=query) if isinstance(query, str) else query
        return _result(self.submit(query), timeout_s=timeout_s)

    def submit(self, query: Query, *, run_by: RunBy = "caller") -> "Future[Decision]":
        """`route` without waiting; with run_by="worker" only arms that our workers run are offered."""
        return self.service.submit(query, run_by=run_by)

    def answer(self, query: Query | str, *, wait_s: float | None = None) -> tuple[Decision, Outcome | None]:
        """Draw an arm and have a worker run it; the Outcome, or None if it is not there after wait_s seconds."""
        query = Query(text=query) if isinstance(query, str) else query
        wait_s = self.settings.server.answer_wait_s if wait_s is None else wait_s
        decision = _result(self.submit(query, run_by="worker"), timeout_s=SERVE_S)
        waiting = self.await_outcome(decision)
        try:
            return decision, waiting.result(wait_s)
        except FutureTimeout:
            return decision, None
        finally:
            self.forget(decision.id, waiting)

    def await_outcome(self, decision: Decision) -> "Future[Outcome]":
        """Ask a worker for the answer (again is harmless) and get a Future of the Outcome; `forget` it after use."""
        future = self._pending.add(decision.id)
        try:
            found = self.store.outcomes_by_id([decision.id])
        except StoreError:
            self.forget(decision.id, future)
            raise
        if found:
            self._pending.deliver(found)
        else:
            self.request_answer(decision)
        return future

    def forget(self, decision_id: DecisionId, future: "Future[Outcome]") -> None:
        """Stop waiting."""
        self._pending.remove(decision_id, future)

    def request_answer(self, decision: Decision) -> None:
        """Queue the answer job. Redis down is no error: the sweep queues it later."""
        self._bell.answer(decision.id)

    def cancel(self, decision_id: str) -> cancellations.Cancellation:
        """Have no worker answer this decision: not begin, or stop where it is. Its outcome says what it had cost.

        Raises NotFound, Conflict (the caller's own stack runs it), InvalidInput.
        """
        key = DecisionId(checked_id(decision_id, field="decision_id"))
        found = cancellations.ask(self.database, decision_id=key, now=time.time())
        if found.status is None:
            self._bell.cancel(key)
        return found

    @property
    def unrung(self) -> int:
        """Times that Redis could not be reached."""
        return self._bell.unrung

    def offer(self, arms: Mapping[str, Mapping[str, object]]) -> None:
        """Offer these arms, name -> params as in the configuration, from the next request on.

        A new arm begins with its data floor (policy.newcomer_share); one that is left out is drawn no more and keeps
        what was learned of it, should it come back. Arms that our workers run must be known to the workers too: they
        take them from their configuration when they start. Raises ConfigError for arms that cannot be.
        """
        settings = with_arms(self.settings, arms)
        check_policy(settings)
        self.service.offer(settings)
        self.settings = settings
        log.info("arms offered", extra={"action": "offer", "arms": ", ".join(settings.arms)})

    def outcome(
        self,
        decision_id: str,
        *,
        status: OutcomeStatus = "answered",
        answer: str | None = None,
        steps: float = 0.0,
        cost: Mapping[str, float] | None = None,
        stop_reason: str = "",
        error: str | None = None,
    ) -> bool:
        """Report what the caller's own stack did with a decision; False if this very report is kept already.

        Raises InvalidInput, NotFound, Conflict.
        """
        made = made_outcome(
            decision_id=decision_id,
            now=time.time(),
            status=status,
            answer=answer,
            steps=steps,
            cost=cost,
            stop_reason=stop_reason,
            error=error,
        )
        return _result(self.submit_outcome(made), timeout_s=SERVE_S)

    def submit_outcome(self, outcome: Outcome) -> "Future[bool]":
        """`outcome` without waiting."""
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
        source: str = "human",
    ) -> Receipt:
        """Keep one judgement of a decision. Durable when it returns.

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
            source=source,
        )
        return _result(self.submit_feedback(made), timeout_s=SERVE_S)

    def submit_feedback(self, feedback: Feedback) -> "Future[Receipt]":
        """`feedback` without waiting."""
        return self._feedback.submit(feedback)

    def decision(self, decision_id: str) -> DecisionRecord:
        """Everything known of a decision. Raises NotFound."""
        return self.store.record(DecisionId(decision_id))

    def status(self) -> ledger_status.Status:
        """Counters, lag, snapshot."""
        return ledger_status.status(
            self.ledger, serving=self._fresh, rule=closing_rule(self.settings.learning), now=time.time()
        )

    def verify(self, *, deep: bool = False) -> Verdict:
        """Every draw again, the ledger again."""
        return verify(self.ledger, files=self.files, serving=self._fresh, deep=deep)

    def learn(self) -> int:
        """Learn in this process what is ready (for notebooks and tests; a service has a learner process).

        The number of decisions closed; 0 also if another learner holds the lease.
        """
        learner = make_learner(self.settings, database=self.database, jobs=self.jobs)
        try:
            done = learner.drain()
        finally:
            learner.close()
        self.refresh()
        return done

    def refresh(self) -> bool:
        """Take over the newest snapshot if there is a newer one; True if the policy was swapped."""
        serving = self.service.serving
        for info in self._snapshots(limit=3):
            if info.version == serving.version or info.last_seq < serving.last_seq:
                return False
            try:
                policy, _ = self.files.load(info.version, encoder_hash=self._learned_with)
            except SnapshotError as error:
                if info.version not in self.refused:
                    self.refused.add(info.version)
                    log.warning("snapshot refused", extra={"action": "snapshot_refused", "reason": str(error)})
                continue
            self.service.swap(Serving(policy=policy, version=info.version, last_seq=info.last_seq))
            self.swaps += 1
            self._measure_lag(after=serving.last_seq, upto=info.last_seq)
            return True
        return False

    def close(self) -> None:
        """Serve what was handed in, stop all threads, close the database."""
        self.service.close()
        self._feedback.close()
        self._outcomes.close()
        self._closed.set()
        self._wake.set()
        self._follower.join(5)
        if self._listener is not None:
            self._listener.close()
        if self._owns_jobs and isinstance(self.jobs, RedisJobs):
            self.jobs.client.close()
        self.database.close()

    def __enter__(self) -> "Router":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _snapshots(self, *, limit: int) -> list[SnapshotInfo]:
        """The newest snapshots that this router may serve."""
        return self.ledger.latest_snapshots(
            limit=limit,
            algorithm=self._fresh.algorithm,
            params=self._fresh.params,
            encoder_hash=self._learned_with,
        )

    def _first(self) -> Serving:
        """The newest usable snapshot; on a new ledger, the policy that has learned nothing, made known."""
        for info in self._snapshots(limit=5):
            try:
                policy, _ = self.files.load(info.version, encoder_hash=self._learned_with)
            except SnapshotError as error:
                log.warning("snapshot passed over", extra={"action": "snapshot_refused", "reason": str(error)})
                continue
            return Serving(policy=policy, version=info.version, last_seq=info.last_seq)
        info, tensors, described = pack(
            self._fresh, label=self.ledger.label, last_seq=0, encoder_hash=self._learned_with, now=time.time()
        )
        self.files.write(info, tensors, described)
        self.ledger.add_snapshot(info)
        return Serving(policy=self._fresh, version=info.version, last_seq=0)

    def _keep(self, group: Sequence[Feedback]) -> Sequence[Receipt | Exception]:
        results = self.store.add_feedback(group)
        if any(isinstance(r, Receipt) and not r.duplicate for r in results):
            self._bell.learn()
        return results

    def _end(self, group: Sequence[Outcome]) -> Sequence[bool | Exception]:
        results = self.store.add_outcomes(group)
        if True in results:
            self._bell.learn()
        return results

    def _hear(self, news: str) -> None:
        kind, _, key = news.partition(":")
        if kind == "snapshot":
            self._wake.set()
        elif kind == "outcome" and key in self._pending.awaited():
            self._pending.deliver(self.store.outcomes_by_id([key]))

    def _follow(self) -> None:
        """New snapshots and awaited outcomes: at once when told, by looking when nobody tells. The arms' health too."""
        look_at = time.monotonic()
        while not self._closed.is_set():
            self._wake.wait(POLL_S)
            self._wake.clear()
            if self._closed.is_set():
                return
            try:
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + POLL_S
                    self.service.poll_outcomes()
                self.refresh()
                awaited = self._pending.awaited()
                if awaited:
                    self._pending.deliver(self.store.outcomes_by_id(awaited))
            except Exception as error:  # most often a StoreError; whatever it is, the next look may go well
                log.warning("could not follow", extra={"action": "follow", "reason": str(error)})

    def _measure_lag(self, *, after: int, upto: int) -> None:
        now = time.time()
        self.lags.extend(now - came for came in self.ledger.feedback_times(after=after, upto=upto))


def _result(future: "Future[Reply]", *, timeout_s: float) -> Reply:
    try:
        return future.result(timeout_s)
    except FutureTimeout as error:
        raise NotReady(f"no reply within {timeout_s:g} s", remedy="try again with the same id") from error

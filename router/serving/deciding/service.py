"""Route service: encodes questions, takes them through the steps, draws their arms and commits the decisions."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar, cast

from ragbandit.router.encoders.base import Encoder
from ragbandit.router.encoders.feature_cache import CachingEncoder
from ragbandit.router.policies.draw import draw_each, make_decisions, outputs_of
from ragbandit.router.serving.abilities import Ability
from ragbandit.router.serving.batching import CLOSE_S, ActiveTenants, MicroBatcher, QueueState, combine_states
from ragbandit.router.serving.checks.questions import checked_query
from ragbandit.router.serving.deciding.steps import all_steps
from ragbandit.router.serving.deciding.steps.needs import Needs
from ragbandit.router.serving.deciding.steps.step import Batch, Question, Step
from ragbandit.router.serving.loading.live import LiveVersions
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.serving.loading.versions import VersionLoader
from ragbandit.router.serving.pending import InlineRuns
from ragbandit.router.storage.access.shared_secrets import DRAWS, shared_secret
from ragbandit.router.storage.access.turn_sums import REACHED
from ragbandit.router.storage.decisions.decision_writes import STALE, repeated_reply
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.rows.conversion import query_hash
from ragbandit.router.telemetry.logs import Throttle
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import ArmName, Decision, DecisionId, PolicyLabel, Query, RunBy

log = logging.getLogger("ragbandit.service")
#: maximum number of times that a question is decided again, see `RouteService._decide_and_commit`
_TRIES: Final = 3

S = TypeVar("S", bound=Step)


class RouteService:
    """Decides questions in batches on one thread."""

    #: loads policies and passes them to this service (`take_over`); set before `start`
    versions: VersionLoader

    def __init__(self, store: DecisionStore, *, encoder: Encoder, served: ServedPolicy) -> None:
        settings = served.settings
        self.store, self.encoder = store, encoder
        self.clock: Callable[[], float] = lambda: store.database.clock.now()
        self.steps = tuple(step(store.database) for step in all_steps())
        self._by_class: dict[type[Step], Step] = {type(step): step for step in self.steps}
        self.take_over(served)
        #: secret of the store, from which draws are seeded; None before `start`
        self.secret: bytes | None = None
        #: decisions made by the fallback because the policy broke its contract; only the batcher's thread writes it
        self.faults = 0
        self._throttle = Throttle(10.0)  # seconds between two log lines
        #: runs arms in this process, from the next question on; None if workers run all of them
        self.inline: InlineRuns | None = None
        limit = settings.encoder.max_batch
        make_queue = partial(MicroBatcher, limit=limit, limits=settings.server, tenants=ActiveTenants())
        #: queue in front of `batcher` for texts that need a forward pass, so that other questions do not wait for it.
        #: None if the encoder takes no time, or if its cache is smaller than a batch: texts would be encoded twice
        self._encoding: MicroBatcher[Question, Decision] | None = None
        if isinstance(encoder, CachingEncoder) and not encoder.is_immediate and encoder.entries >= limit:
            self._encoding = make_queue(self._encode_and_decide, name="ragbandit-encode")
        self.batcher: MicroBatcher[Question, Decision] = make_queue(
            self._route_batch, name="ragbandit-route", feeder=self._encoding
        )

    def start(self) -> None:
        self.store.database.clock.measure()
        self.secret = shared_secret(self.store.database, name=DRAWS, now=time.time())
        for batcher in self._batchers:
            batcher.start()

    def close(self) -> None:
        """Refuse new questions, and wait at most CLOSE_S until those that were admitted are decided."""
        until = time.monotonic() + CLOSE_S
        for batcher in self._batchers:
            batcher.close(timeout_s=0.0)
        for batcher in self._batchers:
            batcher.close(timeout_s=max(0.0, until - time.monotonic()))

    @property
    def _batchers(self) -> Sequence[MicroBatcher[Question, Decision]]:
        return [self.batcher] if self._encoding is None else [self._encoding, self.batcher]

    def state(self) -> QueueState:
        """State of the questions that wait to be encoded or decided."""
        state = self.batcher.state()
        return state if self._encoding is None else combine_states(self._encoding.state(), state)

    def alive(self) -> bool:
        return all(batcher.alive() for batcher in self._batchers)

    def submit(self, question: Question) -> "Future[Decision]":
        """Decide a question. Raises Overloaded, TooManyRequests and NotReady."""
        return self._queue_of(question).submit(question, tenant=question.query.tenant)

    def submit_each(self, questions: Sequence[Question]) -> "list[Future[Decision]]":
        """Decide questions. The Future of a refused one raises Overloaded. Raises as `MicroBatcher.submit_each`."""
        queue = self._encoding or self.batcher
        return queue.submit_each(questions, tenants=[question.query.tenant for question in questions])

    def check_admission(self) -> None:
        """Raises Overloaded, and counts the refusal, if the service accepts no further question, whatever its text."""
        if self._encoding is None:
            self.batcher.check_admission()
        elif self.batcher.is_full():
            self._encoding.check_admission()

    def admit(self, question: Question) -> None:
        """Raises Overloaded, TooManyRequests or NotReady if `submit` would refuse the question now."""
        self._queue_of(question).admit(question.query.tenant)

    def _queue_of(self, question: Question) -> MicroBatcher[Question, Decision]:
        encoder, text = self.encoder, question.query.text
        if self._encoding is None or (isinstance(encoder, CachingEncoder) and encoder.has_features(text)):
            return self.batcher
        return self._encoding

    def _encode_and_decide(self, questions: Sequence[Question]) -> Sequence[Decision | Exception]:
        """Encode the questions, which caches their features, and wait until they are decided.

        Without this wait, the next texts would be encoded meanwhile, and callers would split into two groups.
        """
        self.encoder.encode([question.query.text for question in questions])
        tenants = [question.query.tenant for question in questions]
        deciding = self.batcher.submit_each(questions, tenants=tenants, admitted=True)
        return [future.exception() or future.result() for future in deciding]  # type: ignore[misc] # no BaseException

    def step(self, kind: type[S]) -> S:
        return cast(S, self._by_class[kind])

    @property
    def passing(self) -> Mapping[ArmName, Ability]:
        """Arms that pass chats on to a model -> their abilities."""
        return self.step(Needs).passing

    def take_over(self, served: ServedPolicy) -> None:
        """Decide with this policy, and learn in its ledger, from the next batch on."""
        self.serving, settings = served, served.settings
        self.arms = tuple(map(ArmName, settings.arms))
        self.worker_arms = tuple(map(ArmName, settings.worker_arms))
        self.store.label = PolicyLabel(settings.policy.label)
        for step in self.steps:
            step.configure(served)
        self._active = [step for step in self.steps if step.is_on]

    def make_question(self, query: Query, *, run_by: RunBy) -> Question:
        """Check a query, and make it a question. Raises InvalidInput; Forbidden if its key or a rule forbids it."""
        offered = self.worker_arms if run_by == "worker" else self.arms
        settings = self.serving.settings
        checked = checked_query(
            query,
            arms=offered,
            configured=settings.arms,
            schema=settings.context,
            most_bytes=settings.server.max_context_bytes,
        )
        if query.id is not None and query.sent.named_id is None:
            checked = replace(checked, sent=replace(checked.sent, named_id=True))
        allowed = tuple(map(ArmName, checked.arms or offered))
        by = checked.arm_by or ("caller" if len(allowed) == 1 < len(offered) else None)
        question = Question(query=checked, run_by=run_by, allowed=allowed, arm_by=by)
        for step in self._active:
            step.check(question)
        question.checked_facts, question.checked_arm_by = dict(question.facts), question.arm_by
        return question

    def asking_steps(self, question: Question, *, live: LiveVersions) -> list[Step]:
        """The steps that ask a model or a service before the question is submitted (`Step.prepare`)."""
        return [step for step in self._active if step.asks(question, live=live)]

    def refresh_steps(self) -> None:
        """Let the steps read the store. Raises StoreError."""
        self.store.database.clock.measure()
        now = self.clock()
        for step in self.steps:
            step.refresh(arms=self.arms, now=now)

    def _route_batch(self, batch: Sequence[Question]) -> Sequence[Decision | Exception]:
        """Decide and commit new questions. A repeated id gets its stored decision, or Conflict for another request."""
        previews, named = list[Question](), list[DecisionId]()
        for question in batch:
            if question.is_preview:
                previews.append(question)
            if question.query.sent.named_id:  # an id that the service chose is new
                named.append(DecisionId(str(question.query.id)))
        if previews:
            wanted = iter(self._previews(previews))
            others = iter(self._route_batch(rest) if (rest := [one for one in batch if not one.is_preview]) else ())
            return [next(wanted if question.is_preview else others) for question in batch]
        already_decided = self.store.decisions_by_id(named) if named else {}
        new_questions = batch if not already_decided else [q for q in batch if q.query.id not in already_decided]
        committed = self._decide_and_commit(new_questions)
        new, now = [decision for decision in committed if isinstance(decision, Decision)], self.clock()
        for step in self._active:
            step.note_committed(new, now=now)
        for decision in new:
            if decision.fault is not None:
                self._note_fault(decision.fault)
        if not already_decided:
            return committed
        results = iter(committed)
        return [
            repeated_reply(
                *already_decided[question.query.id], request_hash=query_hash(question.query, run_by=question.run_by)
            )
            if question.query.id in already_decided
            else next(results)
            for question in batch
        ]

    def _decide_and_commit(self, questions: Sequence[Question]) -> list[Decision | RagBanditError]:
        """Decide and store questions. A question is decided again if its task has meanwhile begun or ended, or if
        another request has used up a limit of its task or session. All are decided again if versions or kill switch
        have changed in the store. The last try is stored even then.
        """
        if not questions:
            return []
        live = self.versions.live
        results = self._commit(self._decide(questions, live=live), revision=live.control.revision)
        for tries_left in reversed(range(_TRIES)):
            again = []
            for place, result in enumerate(results):
                fields = STALE if questions[place].query.arm_by else (*STALE, REACHED)
                if isinstance(result, RagBanditError) and result.field in fields:
                    again.append(place)
            if not again:
                break
            for place in again:
                questions[place].begin_again()
            live = self.versions.refresh_control()
            decided = self._decide([questions[place] for place in again], live=live)
            committed = self._commit(decided, revision=live.control.revision if tries_left else None)
            for place, result in zip(again, committed, strict=True):
                results[place] = result
        return results

    def _commit(self, decisions: Sequence[Decision], *, revision: int | None = None) -> list[Decision | RagBanditError]:
        """Store decisions. The same transaction claims the decisions that this process answers.

        revision: revision of versions and kill switch at the draw; None stores the decisions at any revision
        """
        if self.inline is None:
            return self.store.add_decisions(decisions, revision=revision)
        claims = self.inline.claim(decisions)
        committed: list[Decision | RagBanditError] = []
        try:
            committed = self.store.add_decisions(decisions, claims=claims, revision=revision)
        finally:
            new = set(map(id, committed))
            self.inline.unclaim([decision.id for decision in decisions if id(decision) not in new])
        return committed

    def _previews(self, questions: Sequence[Question]) -> list[Decision]:
        """The decisions that would be made, with the probabilities before the draw, and the likeliest arm as arm."""
        made, settings = self._decide(questions, live=self.versions.refresh_control()), self.serving.settings.policy
        previews = []
        for question, decision in zip(questions, made, strict=True):
            pmf = decision.pmf
            if question.output is not None and decision.arms == question.arms and len(pmf) > 1:
                arms = [question.arms]
                (drawn,) = draw_each(
                    [question.output],
                    arms=arms,
                    seeds=None,
                    settings=settings,
                    learned=self.serving.seen,
                    released=[question.query.terms.is_spent],
                )
                pmf = drawn.pmf
            likeliest = decision.arms[pmf.index(max(pmf))]
            previews.append(replace(decision, pmf=pmf, arm=likeliest, propensity=max(pmf)))
        return previews

    def _decide(self, questions: Sequence[Question], *, live: LiveVersions) -> list[Decision]:
        served, now = self.serving, self.clock()
        features = self.encoder.encode([question.query.text for question in questions])  # (n, d)
        for question in questions:
            question.arms = question.allowed
        batch = Batch(
            questions=questions,
            features=features,
            served=served,
            live=live,
            policy=served.policy,
            now=now,
            secret=self.secret,
        )
        steps = self._active
        for step in steps:
            step.before(batch)
        self._draw(batch)
        for step in reversed(steps):
            step.after(batch)
        return [question.finished for question in questions]

    def _draw(self, batch: Batch) -> None:
        """Ask the policy, and draw an arm for each question."""
        served, questions = batch.served, batch.questions
        queries, arms = [question.served for question in questions], [question.arms for question in questions]
        batch.outputs = outputs_of(batch.policy, queries, features=batch.features, arms=arms)
        decisions = make_decisions(
            questions,
            outputs=batch.outputs,
            features=batch.features,
            settings=served.settings.policy,
            learned=served.seen,
            version=served.version,
            encoder_hash=self.encoder.hash,
            now=batch.now,
            secret=batch.secret,
        )
        for question, decision, output in zip(questions, decisions, batch.outputs, strict=True):
            question.decision, question.output = decision, output

    def _note_fault(self, reason: str) -> None:
        self.faults += 1
        if self._throttle.lets_pass("fault"):  # a broken policy would fill the log: it fails for every question
            fields = {"action": "fault", "times": self.faults, "reason": reason}
            log.error("the policy broke its contract: the fallback arm decided", extra=fields)

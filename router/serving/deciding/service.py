import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.learning.monitoring.diagnosis import Frontier
from ragbandit.router.policies.draw import made_decisions, outputs_of
from ragbandit.router.serving.batching import MicroBatcher
from ragbandit.router.serving.checks.questions import checked_query
from ragbandit.router.serving.conversations import keep_prefixes, keep_sticky, saved_per_token
from ragbandit.router.serving.deciding.candidates import BY_ARM, Draw, ask, decide_pinned, mix_candidates
from ragbandit.router.serving.deciding.labelling import LabelSampler
from ragbandit.router.serving.deciding.live import NOTHING_LIVE, LiveVersions, Serving
from ragbandit.router.serving.deciding.needs import as_text, lacks_of, no_arm, passing_arms
from ragbandit.router.serving.deciding.prices import served_weight, with_terms
from ragbandit.router.serving.deciding.question import Question
from ragbandit.router.serving.health.circuit_breaker import ArmHealth, OutcomePoller
from ragbandit.router.serving.pending import InlineRuns
from ragbandit.router.storage.access.shared_secrets import DRAWS, shared_secret
from ragbandit.router.storage.decisions.store import DecisionStore, settle
from ragbandit.router.storage.rows.conversion import query_hash
from ragbandit.router.telemetry.logs import Throttle
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import NAMED_ID, ArmName, Decision, DecisionId, FeatureRows, Query, RunBy

log = logging.getLogger("ragbandit.service")


class RouteService:
    """Encodes questions, draws their arms and commits the decisions, in batches on one thread."""

    def __init__(
        self, store: DecisionStore, *, encoder: Encoder, serving: Serving, clock: Callable[[], float] = time.time
    ) -> None:
        settings = serving.settings
        self.store, self.encoder = store, encoder
        self.labels: LabelSampler | None = None
        self.take_over(serving)
        self.clock = clock
        self.live: Callable[[], LiveVersions] = lambda: NOTHING_LIVE
        #: turns aims into cost weights; None until the first frontier is loaded
        self.frontier: Frontier | None = None
        #: secret of the store, from which draws are seeded; None before `start`
        self.secret: bytes | None = None
        # Only the batcher's thread writes these counts; others read them without a lock.
        #: decisions made by the fallback because the policy broke its contract
        self.faults = 0
        #: questions that were offered failing arms because no allowed arm was healthy
        self.fail_opens = 0
        self._poller = OutcomePoller(store.database, settings=settings.health, seconds=settings.budget.seconds)
        self._throttle = Throttle(10.0)  # seconds between two log lines of a kind
        self.inline: InlineRuns | None = None
        self.batcher: MicroBatcher[Question, Decision] = MicroBatcher(
            self._route_batch, name="ragbandit-route", limit=settings.encoder.max_batch, limits=settings.server
        )

    def start(self) -> None:
        self.secret = shared_secret(self.store.database, name=DRAWS, now=time.time())
        self.batcher.start()

    def close(self) -> None:
        self.batcher.close()

    def question(self, query: Query | str, *, run_by: RunBy) -> Question:
        """Check a query. Raises InvalidInput, or Forbidden for a cost weight that the API key forbids."""
        query = Query(text=query) if isinstance(query, str) else query
        offered = self.worker_arms if run_by == "worker" else self.arms
        serving = self.serving
        settings = serving.settings
        checked = with_terms(checked_query(query, arms=offered, settings=settings), settings=settings)
        if query.id is not None:
            checked = replace(checked, request={NAMED_ID: True, **checked.request})
        policy, rebuilding = serving.policy, serving.rebuilding
        weight = served_weight(checked, settings=settings, policy=policy, rebuilding=rebuilding, frontier=self.frontier)
        allowed = tuple(map(ArmName, checked.arms or offered))
        lacking = lacks_of(checked, arms=allowed, passing=self.passing)
        if len(lacking) == len(allowed):
            raise no_arm(checked, lacking=lacking, passing=self.passing)
        return Question(
            query=checked,
            run_by=run_by,
            allowed=tuple(arm for arm in allowed if arm not in lacking),
            cost_weight=weight,
            lacking=lacking,
        )

    def take_over(self, serving: Serving) -> None:
        self.serving, settings = serving, serving.settings
        self.arms = tuple(ArmName(name) for name in settings.arms)
        self.worker_arms = tuple(ArmName(name) for name in settings.worker_arms)
        self.passing = passing_arms(settings)
        self._saved = saved_per_token(settings)
        per_day, holdback = settings.learning.labels_per_day, settings.policy.holdback
        against = settings.policy.incumbent if holdback is None else holdback.arm
        if self.labels is None or (self.labels.per_day, self.labels.against) != (per_day, against):
            self.labels = LabelSampler(per_day, against=against) if per_day else None

    def poll_outcomes(self, *, more: Sequence[ArmName] = ()) -> None:
        """Update labels and circuit breaker. more: arms offered besides the configured ones. Raises StoreError."""
        if self.labels is not None:
            self.labels.refresh(self.store.database, now=self.clock())
        self._poller.poll(tuple(dict.fromkeys((*self.arms, *more))), now=self.clock())

    def healths(self) -> list[ArmHealth]:
        return self._poller.breaker.healths(self.arms, now=self.clock())

    def _route_batch(self, batch: Sequence[Question]) -> Sequence[Decision | Exception]:
        """Decide and commit new questions. A repeated id gets its stored decision, or Conflict for another request."""
        named = [DecisionId(str(question.query.id)) for question in batch if NAMED_ID in question.query.request]
        already_decided = self.store.decisions_by_id(named) if named else {}
        new_questions = [question for question in batch if question.query.id not in already_decided]
        committed = self._commit(self._decide(new_questions)) if new_questions else []
        self._record_probes(decision for decision in committed if isinstance(decision, Decision))
        results = iter(committed)
        return [
            settle(*already_decided[question.query.id], request_hash=query_hash(question.query, run_by=question.run_by))
            if question.query.id in already_decided
            else next(results)
            for question in batch
        ]

    def _commit(self, decisions: Sequence[Decision]) -> list[Decision | RagBanditError]:
        """Store decisions. The same transaction claims the decisions that this process answers."""
        if self.inline is None:
            return self.store.add_decisions(decisions)
        claims = self.inline.claim(decisions)
        committed: list[Decision | RagBanditError] = []
        try:
            committed = self.store.add_decisions(decisions, claims=claims)
        finally:
            new = {id(decision) for decision in committed}
            self.inline.unclaim([decision.id for decision in decisions if id(decision) not in new])
        return committed

    def _record_probes(self, decisions: Iterable[Decision]) -> None:
        """Report the first draw of each arm and tenant to the circuit breaker, since this draw may be a probe."""
        first: dict[tuple[ArmName, str], Decision] = {}
        for decision in decisions:
            first.setdefault((decision.arm, decision.query.tenant), decision)
        now = self.clock()
        for (arm, tenant), decision in first.items():
            self._poller.breaker.record_probe(arm, decision_id=decision.id, now=now, tenant=tenant)

    def _decide(self, questions: Sequence[Question]) -> list[Decision]:
        live, serving = self.live(), self.serving
        now = self.clock()
        features = self.encoder.encode([question.query.text for question in questions])  # (n, d)
        draw = partial(
            made_decisions,
            features=features,
            settings=serving.settings,
            seen=serving.seen,
            version=serving.version,
            encoder_hash=self.encoder.hash,
            now=now,
            secret=self.secret,
        )
        if live.control.killed == "arm":
            decide_pinned(questions, draw=draw, control=live.control, settings=serving.settings)
        else:
            self._offer_arms(questions, live=live, settings=serving.settings, now=now)
            self._decide_by_policy(questions, draw=draw, live=live, serving=serving, features=features)
        return [self._finished(question) for question in questions]

    def _decide_by_policy(
        self, questions: Sequence[Question], *, draw: Draw, live: LiveVersions, serving: Serving, features: FeatureRows
    ) -> None:
        settings, database = serving.settings, self.store.database
        asked_candidates = ask(live, questions, features=features)
        queries, arms = [question.served for question in questions], [question.arms for question in questions]
        outputs = outputs_of(serving.policy, queries, features=features, arms=arms)
        for question, decision in zip(questions, draw(questions, outputs=outputs), strict=True):
            question.decision, question.rebuilding = decision, serving.rebuilding
        if settings.conversation.sticky_prefix:
            keep_prefixes(questions, saved=self._saved, settings=settings, database=database)
        mix_candidates(asked_candidates)
        if self.labels is not None and self.secret is not None:
            self.labels.choose(questions, outputs, secret=self.secret)

    def _offer_arms(self, questions: Sequence[Question], *, live: LiveVersions, settings: Settings, now: float) -> None:
        """Choose the arms that may be drawn for each question, in these steps. Raises StoreError.

        1. `Question.allowed` has the arms that the caller names and its key allows, or else all arms of `run_by`.
        2. The circuit breaker excludes arms that fail; if all fail, it excludes none.
        3. Candidates add healthy arms of their own if the caller names none and all arms meet the request's needs.
        4. A turn of a sticky session keeps only the arm that the session drew, if steps 1 to 3 offer this arm.
        """
        healthy = partial(self._poller.breaker.healthy, now=now)
        tenants = [question.query.tenant for question in questions]
        healthy_arms = healthy([question.allowed for question in questions], tenants=tenants)
        for question, arms in zip(questions, healthy_arms, strict=True):
            question.arms, question.fail_open = arms or question.allowed, not arms
            question.excluded = tuple(arm for arm in question.allowed if arm not in question.arms)
        if live.asks:
            extensible = [question for question in questions if question.query.arms is None and not question.lacking]
            tenants = [question.query.tenant for question in extensible]
            healthy_arms = healthy([live.added_for(question.run_by) for question in extensible], tenants=tenants)
            for question, added in zip(extensible, healthy_arms, strict=True):
                question.added = added
        keep_sticky(questions, settings=settings, database=self.store.database)

    def _finished(self, question: Question) -> Decision:
        """Add facts to the decision; count and log faults and fail-opens."""
        decision = question.decision
        assert decision is not None
        if decision.fault is not None:
            self.faults += 1
            if self._throttle.lets_pass("fault"):  # a broken policy would fill the log: it fails for every question
                fields = {"action": "fault", "times": self.faults, "reason": decision.fault}
                log.error("the policy broke its contract: the fallback arm decided", extra=fields)
        if question.fail_open:
            self.fail_opens += 1
            if self._throttle.lets_pass("fail_open"):
                fields = {"action": "fail_open", "times": self.fail_opens, "arms": ", ".join(question.arms)}
                log.warning("no arm of the question is healthy: all of them are offered", extra=fields)
        notes = question.notes
        if decision.query.chat and decision.arm not in self.passing:
            decision = replace(decision, query=as_text(decision.query))
        if not notes:
            return decision
        facts = {**decision.facts, **notes}
        if question.stay is None:
            return replace(decision, facts=facts)
        arm = question.stay.arm
        if decision.arms != (arm,):  # an arm was drawn before `keep_prefixes` kept the earlier one
            facts = {name: value for name, value in facts.items() if name not in BY_ARM}
            decision = replace(decision, arm=arm, arms=(arm,), scores=None)
        # Given the earlier draw, this turn's arm has probability 1.
        return replace(decision, pmf=(1.0,), propensity=1.0, explored=False, facts=facts)

"""Decision service: questions in, committed decisions out."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from ragbandit.router.encoders.base import Encoder
from ragbandit.router.learning.monitoring.diagnosis import Frontier
from ragbandit.router.policies.draw import made_decisions, outputs_of
from ragbandit.router.serving.batching import MicroBatcher
from ragbandit.router.serving.checks.questions import checked_query
from ragbandit.router.serving.deciding.candidates import BY_ARM, ask, mix_candidates, pinned, pinned_output
from ragbandit.router.serving.deciding.labelling import LabelSampler
from ragbandit.router.serving.deciding.live import NOTHING_LIVE, LiveVersions, Serving
from ragbandit.router.serving.deciding.needs import LACKING, as_text, lacks_of, no_arm, passing_arms
from ragbandit.router.serving.deciding.question import (
    Question,
    keep_prefixes,
    offer_arms,
    saved_per_token,
    served_weight,
    with_terms,
)
from ragbandit.router.serving.health.circuit_breaker import EXCLUDED_ARMS, ArmHealth, OutcomePoller
from ragbandit.router.serving.pending import InlineRuns
from ragbandit.router.storage.access.spending import DRAWS, shared_secret
from ragbandit.router.storage.decisions.store import DecisionStore, settle
from ragbandit.router.storage.rows.conversion import query_hash
from ragbandit.router.telemetry.logs import Throttle
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import LABEL_QUEUE, NAMED_ID, STICKY, ArmName, Decision, DecisionId, Json, Query, RunBy

log = logging.getLogger("ragbandit.service")

#: the key of a decision's facts that says that the configured policy was being rebuilt, and another one decided
REBUILDING: Final = "rebuilding"
#: least time between two log lines about the same problem, seconds
QUIET_S = 10.0


class RouteService:
    """Encodes, decides and commits in batches, on one thread."""

    def __init__(
        self, store: DecisionStore, *, encoder: Encoder, serving: Serving, clock: Callable[[], float] = time.time
    ) -> None:
        settings = serving.settings
        self.store = store
        self.encoder = encoder
        #: chooses decisions for the label queue; None if labelling is off
        self.labels: LabelSampler | None = None
        self.take_over(serving)
        self.clock = clock
        #: what is live of versions, asked before each batch
        self.live: Callable[[], LiveVersions] = lambda: NOTHING_LIVE
        #: cost-quality frontier of the live policy, which turns aims into cost weights; None until the first one is
        #: loaded
        self.frontier: Frontier | None = None
        #: secret of the store for the seeds of draws; read by `start`
        self.secret: bytes | None = None
        # Only the batcher's thread writes these counts; others read them without a lock.
        #: decisions made by the fallback since the start
        self.faults = 0
        #: questions that were offered all arms because none of theirs was healthy
        self.fail_opens = 0
        self._poller = OutcomePoller(store.database, settings=settings.health, seconds=settings.budget.seconds)
        self._throttle = Throttle(QUIET_S)
        #: runs arms in this process; None if workers run all of them
        self.inline: InlineRuns | None = None
        #: the queue of questions
        self.batcher: MicroBatcher[Question, Decision] = MicroBatcher(
            self._route_batch, name="ragbandit-route", limit=settings.encoder.max_batch, limits=settings.server
        )

    def start(self) -> None:
        """Start the thread that serves requests. Raises StoreError."""
        self.secret = shared_secret(self.store.database, name=DRAWS, now=time.time())
        self.batcher.start()

    def close(self) -> None:
        """Serve what was handed in, then stop."""
        self.batcher.close()

    def question(self, query: Query | str, *, run_by: RunBy) -> Question:
        """The record of a query that can be routed.

        Raises InvalidInput for another, Forbidden for a price that its key may not have.
        """
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
        """Decide with this policy, by its settings, from the next batch on."""
        #: the policy in use
        self.serving, settings = serving, serving.settings
        self.arms = tuple(ArmName(name) for name in settings.arms)
        self.worker_arms = tuple(ArmName(name) for name in settings.worker_arms)
        #: arms that pass chats on as they came, see `passing_arms`
        self.passing = passing_arms(settings)
        self._saved = saved_per_token(settings)
        per_day, held = settings.learning.labels_per_day, settings.policy.holdback
        against = settings.policy.incumbent if held is None else held.arm
        if self.labels is None or (self.labels.per_day, self.labels.against) != (per_day, against):
            self.labels = LabelSampler(per_day, against=against) if per_day else None

    def poll_outcomes(self, *, more: Sequence[ArmName] = ()) -> None:
        """Update the circuit breaker from the newest outcomes in the store. Raises StoreError.

        more: arms that are offered beside the configured ones.
        """
        if self.labels is not None:
            self.labels.refresh(self.store.database, now=self.clock())
        self._poller.poll((*self.arms, *(arm for arm in more if arm not in self.arms)), now=self.clock())

    def healths(self) -> list[ArmHealth]:
        """State of the arms on offer, as of the last `poll_outcomes`."""
        return self._poller.breaker.healths(self.arms, now=self.clock())

    def _route_batch(self, batch: Sequence[Question]) -> Sequence[Decision | Exception]:
        """Decide and commit new questions. A repeated id gets its stored decision, or Conflict if it differs."""
        named = [DecisionId(str(one.query.id)) for one in batch if NAMED_ID in one.query.request]
        standing = self.store.decisions_by_id(named) if named else {}
        fresh = [one for one in batch if one.query.id not in standing]
        stored = self._stored(self._decide(fresh)) if fresh else []
        self._record_probes(one for one in stored if isinstance(one, Decision))
        made = iter(stored)
        return [
            settle(*standing[one.query.id], request_hash=query_hash(one.query, run_by=one.run_by))
            if one.query.id in standing
            else next(made)
            for one in batch
        ]

    def _stored(self, decided: Sequence[Decision]) -> list[Decision | RagBanditError]:
        """Commit decisions; those that this process answers are claimed in the same transaction."""
        if self.inline is None:
            return self.store.add_decisions(decided)
        claims = self.inline.claim(decided)
        stored: list[Decision | RagBanditError] = []
        try:
            stored = self.store.add_decisions(decided, claims=claims)
        finally:
            new = {id(each) for each in stored}
            self.inline.unclaim([each.id for each in decided if id(each) not in new])
        return stored

    def _record_probes(self, decided: Iterable[Decision]) -> None:
        """Tell the circuit breaker which arms were drawn: for each tenant the first, later ones are no probes."""
        first: dict[tuple[ArmName, str], Decision] = {}
        for decision in decided:
            first.setdefault((decision.arm, decision.query.tenant), decision)
        now = self.clock()
        for (arm, tenant), decision in first.items():
            self._poller.breaker.record_probe(arm, decision_id=decision.id, now=now, tenant=tenant)

    def _decide(self, questions: Sequence[Question]) -> list[Decision]:
        """One forward pass and one call of the policy, and of each candidate, for all of them."""
        live, serving, now = self.live(), self.serving, self.clock()
        settings = serving.settings
        queries = [one.query for one in questions]
        features = self.encoder.encode([query.text for query in queries])  # (n, d)
        is_pinned = live.control.killed == "arm"  # a pinned arm is used even if the circuit breaker suspended it
        if is_pinned:
            for question in questions:
                question.arms = question.allowed
        else:
            breaker, database = self._poller.breaker, self.store.database
            offer_arms(questions, live=live, breaker=breaker, settings=settings, database=database, now=now)
        arms = [one.arms for one in questions]
        asked_candidates = ask(live, questions, features=features)
        outputs = (
            [pinned_output(each) for each in arms]
            if is_pinned
            else outputs_of(serving.policy, [one.served for one in questions], features=features, arms=arms)
        )
        decisions = made_decisions(
            queries,
            run_by=[one.run_by for one in questions],
            outputs=outputs,
            arms=arms,
            features=features,
            settings=settings,
            seen=serving.seen,
            version=serving.version,
            encoder_hash=self.encoder.hash,
            now=now,
            cost_weights=[one.cost_weight for one in questions],
            secret=self.secret,
        )
        for question, decision in zip(questions, decisions, strict=True):
            question.decision = pinned(decision, control=live.control, settings=settings) if is_pinned else decision
        if not is_pinned:
            if settings.conversation.sticky_prefix:
                keep_prefixes(questions, saved=self._saved, settings=settings, database=self.store.database)
            mix_candidates(asked_candidates)
            if self.labels is not None and self.secret is not None:
                self.labels.choose(questions, outputs, secret=self.secret)
        rebuilding = serving.rebuilding and not is_pinned
        return [self._finished(one, rebuilding=rebuilding) for one in questions]

    def _finished(self, question: Question, *, rebuilding: bool) -> Decision:
        """Add facts to the decision; count and log faults and fail-opens."""
        decision = question.decision
        assert decision is not None
        if decision.fault is not None:
            self.faults += 1
            if self._throttle.lets_pass("fault"):  # a broken policy breaks for every question
                facts = {"action": "fault", "times": self.faults, "reason": decision.fault}
                log.error("the policy broke its contract: the fallback arm decided", extra=facts)
        if question.fail_open:
            self.fail_opens += 1
            if self._throttle.lets_pass("fail_open"):
                facts = {"action": "fail_open", "times": self.fail_opens, "arms": ", ".join(question.arms)}
                log.warning("no arm of the question is healthy: all of them are offered", extra=facts)
        notes = _notes(question, rebuilding=rebuilding)
        if decision.query.chat and decision.arm not in self.passing:
            decision = replace(decision, query=as_text(decision.query))
        if not notes:
            return decision
        noted = {**decision.facts, **notes}
        if question.stay is None:
            return replace(decision, facts=noted)
        # Given the draw that the turn follows, its probability is 1.
        arm = question.stay.arm
        if decision.arms != (arm,):  # it stays for its cached prompt
            noted = {name: value for name, value in noted.items() if name not in BY_ARM}
            decision = replace(decision, arm=arm, arms=(arm,), scores=None)
        return replace(decision, pmf=(1.0,), propensity=1.0, explored=False, facts=noted)


def _notes(question: Question, *, rebuilding: bool) -> dict[str, Json]:
    """Facts about how the offered arms were chosen, stored with the decision."""
    notes: dict[str, Json] = {} if question.stay is None else {STICKY: question.stay.facts}
    if question.label:
        notes[LABEL_QUEUE] = dict(question.label)
    if question.excluded:
        notes[EXCLUDED_ARMS] = list(question.excluded)
    if rebuilding:
        notes[REBUILDING] = True
    if question.lacking:
        notes[LACKING] = dict(question.lacking)
    return notes

"""Stored questions as a paired run asks them: with their conversation and limits, both arms in a random order.

Each answer and each score is stored at once, so that an interrupted run continues. The expected dollars of a question
are booked before it is asked, and replaced by its cost however the run ends.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ragbandit.router.config.settings import BudgetSettings
from ragbandit.router.reporting.paired_comparison import Pairing
from ragbandit.router.reporting.paired_questions import PairedQuestion, PairedQuestions
from ragbandit.router.serving.checks.questions import capped
from ragbandit.router.storage.access.shared_secrets import drawn_for
from ragbandit.router.storage.access.spending import Reserved, Spender, Spent, reserve, settle
from ragbandit.router.storage.begun_pairs import BegunPair, Booked, begun_pairs, keep_begun, settle_lost
from ragbandit.router.storage.decisions.store import DecisionRecord, DecisionStore
from ragbandit.router.storage.jobs.scores import NOT_ITS_FAULT
from ragbandit.router.storage.paired_answers import PairedAnswer, answer_dollars, keep_answer
from ragbandit.router.storage.paired_labels import LABEL_QUEUE
from ragbandit.router.storage.rows.conversion import CHAT_HASH, body_hash, canonical
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.shared.errors import NotFound, StoreError
from ragbandit.shared.model_servers.failures import FAILURE, SUCCESSOR
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import DIED, ArmName, Budget, Cost, DecisionId, Outcome, Query, Source, calls_of
from ragbandit.strategies.base import Account
from ragbandit.workers.evaluation.runs import LabelledQuestion, StoredAnswer, Work
from ragbandit.workers.evaluation.scoring import Score
from ragbandit.workers.pairs.prices import AnswerPrices
from ragbandit.workers.running.answer_job import MAX_TRIES
from ragbandit.workers.setup.loading import LoadedArm

log = logging.getLogger("ragbandit.worker")

#: number of failures of the judge after which an answer gets no score: perhaps the judge cannot read this answer
_MOST_JUDGE_FAILURES: Final = 3
#: maximum number of questions whose rows are kept in memory
_KEPT: Final = 64

Pairs = dict[DecisionId, dict[ArmName, PairedAnswer]]


class StoredQuestions:
    """What a paired run asks about stored questions, and where it keeps the answers."""

    def __init__(
        self,
        questions: PairedQuestions,
        *,
        store: DecisionStore,
        limits: BudgetSettings,
        arms: Mapping[ArmName, LoadedArm],
        pairing: Pairing,
        rater: str,
        answers: Sequence[PairedAnswer],
        prices: AnswerPrices,
        actor: str,
        check: Callable[[Mapping[Spender, Spent]], None] = lambda _sums: None,
        secret: bytes,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """answers: the stored ones. actor: who is charged. check: raises an error if their budget is spent."""
        self.found: dict[str, StoredAnswer] = {}
        self.dollars: dict[str, float] = {}
        #: answers so far, see `Pairing`; new ones are added
        self.pairs: Pairs = pairing.of(answers)
        self.waiting: Pairs = pairing.waiting(answers)
        self._questions = {one.id: one for one in questions.askable}
        self._against, self._pairing, self._rater = questions.against, pairing, rater
        self._store, self._limits, self._arms = store, limits, arms
        self._prices, self._actor, self._secret, self._clock = prices, actor, secret, clock
        self._check = check
        self._records: dict[DecisionId, DecisionRecord | None] = {}
        self._faults: dict[str, str] = {}
        #: decision -> arm -> dollars of the answer and of its score so far
        self._costs: dict[DecisionId, dict[ArmName, float]] = {}
        #: answers that an earlier run paid and that do not count: not scored, or failed
        self._unended = {(one.decision_id, one.arm): one for one in pairing.unended(answers)}
        self._bills: dict[DecisionId, Account] = {}
        #: questions that were begun and have not ended, see `resume`
        self._begun: dict[DecisionId, BegunPair] = {}

    def resume(self) -> None:
        """Go on with what earlier runs have begun; call it with the lease, before the run. Raises StoreError.

        Estimates of questions whose processes died are settled. A question that two processes have not survived fails:
        its difference is only bounded.
        """
        settle_lost(self._store.database)
        self._begun = begun_pairs(self._store.database, ids=[*self._questions])
        for key, pair in self._begun.items():
            question = self._questions[key]
            if pair.deaths >= MAX_TRIES and not self.is_asked(question):
                extra = {"action": "decide", "decision": key, "deaths": pair.deaths}
                log.error("processes died over a question; it fails and is not asked again", extra=extra)
                self._fail(question, deaths=pair.deaths)

    def _fail(self, question: PairedQuestion, *, deaths: int) -> None:
        why = f"{deaths} processes died while they asked this question"
        for arm in (question.arm, self._against):
            if all(arm not in known.get(question.id, {}) for known in (self.pairs, self.waiting)):
                lost = self._unended.get((question.id, arm))
                answer = PairedAnswer(
                    decision_id=question.id,
                    arm=arm,
                    version=self._pairing.versions[arm],
                    judge=self._pairing.judge,
                    rater=self._rater,
                    is_stored=False,
                    status="failed",
                    answer=None,
                    cost=Cost(),
                    steps=0.0,
                    stop_reason=DIED,
                    error=why,
                    quality=None,
                    unjudged=why,
                    dollars=0.0 if lost is None else lost.dollars,
                    actor=self._actor,
                    made_at=self._clock(),
                )
                self._keep(answer)

    def _keep(self, answer: PairedAnswer) -> None:
        """Store an answer, and count it."""
        if keep_answer(self._store.database, answer):
            for known, new in (
                (self.pairs, self._pairing.of([answer])),
                (self.waiting, self._pairing.waiting([answer])),
            ):
                for decision, by_arm in new.items():
                    known.setdefault(decision, {}).update(by_arm)

    def rows(self) -> list[LabelledQuestion]:
        """The questions that lack an answer, in their random order; those over which a process died come last. Their
        texts are read when they are asked.
        """
        # What a plan has read may be erased before it is asked.
        for key in self._records.keys() - self._bills.keys():
            del self._records[key]
        open_ones = [one for one in self._questions.values() if not self.is_asked(one)]
        open_ones.sort(key=lambda one: self._deaths_of(one.id))  # a question that ends processes delays no other one
        return [LabelledQuestion(id=one.id, question="") for one in open_ones]

    def _deaths_of(self, key: DecisionId) -> int:
        return self._begun[key].deaths if key in self._begun else 0

    def rows_to_label(self, rows: Sequence[LabelledQuestion], *, room: int) -> list[LabelledQuestion]:
        """`room` of these questions, and those of which one answer waits for a label already: they need no room."""
        new = set([row.id for row in rows if row.id not in self.waiting][:room])
        return [row for row in rows if row.id in self.waiting or row.id in new]

    def is_asked(self, question: PairedQuestion) -> bool:
        """Whether both arms have answered; the scores of people may be missing."""
        return all(
            arm in self.pairs.get(question.id, {}) or arm in self.waiting.get(question.id, {})
            for arm in (question.arm, self._against)
        )

    # What the run asks.

    def work(self, row: LabelledQuestion) -> list[Work]:
        record = self._record(DecisionId(row.id))
        if record is None:
            return []
        question = self._questions[record.decision.id]
        arms = [question.arm, self._against]
        if drawn_for("decide order", question.id, secret=self._secret) < 0.5:
            arms.reverse()
        works = [Work(key=f"{question.id} {arm}", arm=arm, question=record.decision.query.text) for arm in arms]
        for work in works:
            self._enter_known(work)
        return works

    def query(self, work: Work) -> tuple[Query, Budget]:
        query = self._decision(work).decision.query
        return replace(query, limits=()), capped(query.budget, limits=self._limits)

    def outcome(self, work: Work) -> Outcome | None:
        """An answer that is paid already: the decision's outcome, or what an earlier run asked and did not score."""
        return self._own_outcome(work) or self._paid_outcome(work)

    def _own_outcome(self, work: Work) -> Outcome | None:
        """The outcome of the decision, if it is this arm's by its definition of now."""
        record = self._decision(work)
        outcome, query = record.outcome, record.decision.query
        if outcome is None or work.arm != record.decision.arm or outcome.run_by != "worker":
            return None
        if outcome.stop_reason in NOT_ITS_FAULT or calls_of(outcome) or CHAT_HASH in query.request:
            return None
        made_by = {name: value for name, value in outcome.made_by.items() if name not in (FAILURE, SUCCESSOR)}
        present = self._arms[work.arm].made_by(capped(query.budget, limits=self._limits))
        return outcome if canonical(made_by) == canonical(dict(present)) else None

    def _paid_outcome(self, work: Work) -> Outcome | None:
        """The answer of an earlier run, with the passages that the judge reads."""
        key = _decision_of(work)
        answer, begun = self._unended.get((key, work.arm)), self._begun.get(key)
        if answer is None or answer.status == "failed" or begun is None or work.arm not in begun.sources:
            return None
        return Outcome(
            decision_id=key,
            status=answer.status,
            answer=answer.answer,
            trace=(),
            cost=answer.cost,
            steps=answer.steps,
            stop_reason=answer.stop_reason,
            error=answer.error,
            run_by="worker",
            made_by={},
            made_at=answer.made_at,
            sources=tuple(begun.sources[work.arm]),
        )

    def expected(self, work: Work) -> float:
        answer = 0.0 if self.outcome(work) is not None else self._prices.of(work.arm, question=self._question(work))
        return answer + self._prices.of_score()

    def is_alone(self, row: LabelledQuestion) -> bool:
        return self._deaths_of(DecisionId(row.id)) > 0

    @contextlib.contextmanager
    def booked(self, row: LabelledQuestion, *, expected: float, bill: Account) -> Iterator[None]:
        key = DecisionId(row.id)
        database, spenders = self._store.database, [Spender("key", self._actor)]
        question = self._questions[key]
        answers = (self._prices.of(arm, question=question) for arm in (question.arm, self._against))
        call = max(*answers, self._prices.of_score())

        def note(connection: Connection, reserved: Reserved) -> None:
            paid_before = answer_dollars(connection, [key]).get(key, 0.0)
            booked = Booked(reserved=reserved, paid_before=paid_before, call=call)
            pair = replace(self._begun.get(key) or BegunPair(decision_id=key), booked=booked)
            keep_begun(connection, pair=pair)
            self._begun[key] = pair

        reserved = reserve(database, spenders, dollars=expected, now=self._clock(), check=self._check, note=note)
        self._bills[key] = bill
        try:
            yield
        finally:
            del self._bills[key]
            self._records.pop(key, None)
            pair = self._begun[key] = self._ended(key)
            try:
                settle(database, reserved, dollars=bill.cost.dollars, note=partial(keep_begun, pair=pair))
            except StoreError as error:
                extra = {"action": "decide", "dollars": bill.cost.dollars, "reason": str(error)}
                log.warning("the cost of a question cannot be booked; its estimate stays booked", extra=extra)

    def _ended(self, key: DecisionId) -> BegunPair:
        """What the next run has to know about a question that this run asks no more."""
        if self.is_asked(self._questions[key]):
            return BegunPair(decision_id=key)
        return replace(self._begun[key], booked=None)

    def may_judge_again(self, work: Work) -> bool:
        key = _decision_of(work)
        pair = self._begun[key]
        failures = pair.failures.get(work.arm, 0) + 1
        self._begun[key] = replace(pair, failures={**pair.failures, work.arm: failures})
        return failures < _MOST_JUDGE_FAILURES

    def note_fault(self, work: Work, score: Score) -> None:
        self._faults[work.key] = score.fault or "no score"

    # Where the run keeps answers.

    def add(self, outcome: Outcome, *, work: Work, score: float | None = None) -> None:
        key = _decision_of(work)
        is_stored, was_paid = self._own_outcome(work) is not None, self._paid_outcome(work) is not None
        costs, bill = self._costs.setdefault(key, {}), self._bills.get(key)
        paid = 0.0 if bill is None else bill.cost.dollars
        dollars = max(paid - sum(costs.values()), 0.0)
        if work.key not in self.found and not is_stored and not was_paid:
            self._prices.add(work.arm, dollars, question=self._question(work))
        elif work.key in self.found:
            self._prices.add_score(dollars)
        costs[work.arm] = costs.get(work.arm, 0.0) + dollars
        has_failed = outcome.status == "failed" and not is_stored
        quality = 0.0 if is_blank(outcome.answer) and not has_failed else score
        lost = self._unended.get((key, work.arm))
        answer = PairedAnswer(
            decision_id=key,
            arm=work.arm,
            version=self._pairing.versions[work.arm],
            judge=self._pairing.judge,
            rater=self._rater,
            is_stored=is_stored,
            status=outcome.status,
            answer=None if is_stored else outcome.answer,
            cost=outcome.cost,
            steps=outcome.steps,
            stop_reason=outcome.stop_reason,
            error=None if is_stored else outcome.error,
            quality=quality,
            unjudged=self._faults.get(work.key),
            dollars=costs[work.arm] + (0.0 if lost is None else lost.dollars),
            actor=self._actor,
            made_at=self._clock(),
        )
        self.found[work.key] = _as_found(answer, work=work, text=outcome.answer)
        if not is_stored:
            self._note_sources(answer, sources=outcome.sources)
        self._keep(answer)

    def _note_sources(self, answer: PairedAnswer, *, sources: Sequence[Source]) -> None:
        """Store the passages of an answer, which the judge reads, before the answer, until it has a score: if the run
        ends meanwhile, the next one needs both.
        """
        pair = self._begun.get(answer.decision_id)
        is_open = answer.quality is None and answer.unjudged is None and answer.status != "failed"
        if pair is None or answer.judge == LABEL_QUEUE or is_open == (answer.arm in pair.sources):
            return
        others = {arm: kept for arm, kept in pair.sources.items() if arm != answer.arm}
        pair = replace(pair, sources={**others, answer.arm: sources} if is_open else others)
        self._begun[answer.decision_id] = pair
        if is_open:
            with self._store.database.write() as connection:
                keep_begun(connection, pair=pair)

    def _enter_known(self, work: Work) -> None:
        key = _decision_of(work)
        known = self.pairs.get(key, {}).get(work.arm) or self.waiting.get(key, {}).get(work.arm)
        if known is not None:
            self.found.setdefault(work.key, _as_found(known, work=work, text=None))

    def _question(self, work: Work) -> PairedQuestion:
        return self._questions[_decision_of(work)]

    def _decision(self, work: Work) -> DecisionRecord:
        record = self._record(_decision_of(work))
        assert record is not None
        return record

    def _record(self, key: DecisionId) -> DecisionRecord | None:
        """The decision and its outcome; None if they left the store or were erased meanwhile."""
        if key not in self._records:
            try:
                record = self._store.record(key)
            except NotFound:
                self._records[key] = None
            else:
                self._records[key] = record if record.decision.query.text.strip() else None
            idle = [one for one in self._records if one not in self._bills and one != key]
            for one in idle[: max(len(self._records) - _KEPT, 0)]:
                del self._records[one]
        return self._records[key]


def _decision_of(work: Work) -> DecisionId:
    return DecisionId(work.key.rpartition(" ")[0])


def _as_found(answer: PairedAnswer, *, work: Work, text: str | None) -> StoredAnswer:
    """text: the answer; None for an answer of an earlier run, which needs no score any more."""
    return StoredAnswer(
        key=work.key,
        arm=answer.arm,
        question=work.question,
        status=answer.status,
        answer=text,
        stop_reason=answer.stop_reason,
        error=answer.error,
        steps=answer.steps,
        cost=answer.cost,
        made_by={},
        made_at=answer.made_at,
        score=answer.quality,
    )


def arm_version(arm: LoadedArm, *, limits: BudgetSettings) -> str:
    """sha256 of the arm's definition and of the limits of its answers, 43 digits."""
    made_by = {name: value for name, value in arm.made_by(Budget()).items() if name != "budget"}
    return body_hash({"made_by": made_by, "version": arm.version, "limits": limits.model_dump(mode="json")})

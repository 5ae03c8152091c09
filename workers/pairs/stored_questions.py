"""Stored questions as a run asks them: with their conversation and limits, both arms in a random order."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from ragbandit.router.config.settings import BudgetSettings
from ragbandit.router.reporting.paired_questions import ComparedQuestion, ComparedQuestions
from ragbandit.router.serving.checks.questions import capped
from ragbandit.router.serving.checks.reports import made_outcome
from ragbandit.router.storage.access.shared_secrets import drawn_for
from ragbandit.router.storage.decisions.store import DecisionRecord, DecisionStore
from ragbandit.router.storage.jobs.scores import NOT_ITS_FAULT
from ragbandit.router.storage.rows.conversion import body_hash, canonical
from ragbandit.shared.errors import NotFound
from ragbandit.shared.model_servers.failures import FAILURE, SUCCESSOR
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import DIED, ArmName, Budget, Outcome, calls_of, is_textless
from ragbandit.strategies.base import Account
from ragbandit.workers.asking.questions import AskedQuestion, Work
from ragbandit.workers.asking.scoring import Score
from ragbandit.workers.pairs.answers import SHARED, BoughtAnswers
from ragbandit.workers.pairs.bookings import Bookings
from ragbandit.workers.pairs.prices import AnswerPrices
from ragbandit.workers.running.answer_job import MAX_TRIES
from ragbandit.workers.setup.loading import LoadedArm

log = logging.getLogger("ragbandit.worker")

#: number of failures of the judge after which an answer gets no score: perhaps the judge cannot read this answer
_MOST_JUDGE_FAILURES: Final = 3


@dataclass(kw_only=True)
class StoredQuestions:
    """The questions of a bought verdict, with their arms, answers and prices."""

    compared: ComparedQuestions
    arms: Mapping[ArmName, LoadedArm]
    store: DecisionStore
    answers: BoughtAnswers
    bookings: Bookings
    prices: AnswerPrices
    limits: BudgetSettings
    secret: bytes

    @property
    def asked(self) -> int:
        """Number of questions that both arms have answered."""
        return sum(map(self.answers.has_both, self.compared.askable))

    def open_ones(self) -> "list[StoredQuestion]":
        """The questions that lack an answer, in their random order; those over which a process died come last."""
        listed = [StoredQuestion(self, one) for one in self.compared.askable if not self.answers.has_both(one)]
        return sorted(listed, key=lambda one: one.deaths)  # a question that ends processes delays no other one

    def resume(self) -> None:
        """Go on with what earlier runs have begun; call it with the lease, before the run. Raises StoreError.

        A question that two processes have not survived fails: its difference is only bounded.
        """
        self.bookings.resume([one.id for one in self.compared.askable])
        for question in self.open_ones():
            if question.deaths >= MAX_TRIES:
                extra = {"action": "decide", "decision": question.id, "deaths": question.deaths}
                log.error("processes died over a question; it fails and is not asked again", extra=extra)
                question.fail()


class StoredQuestion(AskedQuestion):
    """Its text is read when it is asked, since it may be erased before."""

    def __init__(self, questions: StoredQuestions, compared: ComparedQuestion) -> None:
        self.questions, self.compared, self.id = questions, compared, compared.id

    @property
    def deaths(self) -> int:
        """Number of processes that died while they asked it."""
        return self.questions.bookings.begun(self.id).deaths

    @property
    def is_alone(self) -> bool:
        return self.deaths > 0

    @property
    def _arms(self) -> list[ArmName]:
        return [self.compared.arm, self.questions.compared.against]

    def works(self) -> "Sequence[StoredWork]":
        """The work of both arms; nothing if the question left the store or was erased meanwhile."""
        try:
            record = self.questions.store.record(self.id)
        except NotFound:
            return []
        if not record.decision.query.text.strip():
            return []
        arms = self._arms
        if drawn_for("decide order", self.id, secret=self.questions.secret) < 0.5:
            arms.reverse()
        return [StoredWork(self, arm=arm, record=record) for arm in arms]

    def booked(self, *, expected: float, bill: Account) -> AbstractContextManager[None]:
        prices, answers = self.questions.prices, self.questions.answers
        call = max(*(prices.of(arm, question=self.compared) for arm in self._arms), prices.of_score())
        has_ended = partial(answers.has_both, self.compared)
        return self.questions.bookings.booked(self.id, expected=expected, call=call, bill=bill, has_ended=has_ended)

    def fail(self) -> None:
        """Keep failed answers, so that it is not asked again."""
        why, answers = f"{self.deaths} processes died while they asked this question", self.questions.answers
        for arm in self._arms:
            if not answers.has(self.id, arm):
                end: dict[str, Any] = {"status": "failed", "stop_reason": DIED, "error": why}
                lost = made_outcome(decision_id=self.id, now=time.time(), **end)
                answers.keep(lost, arm=arm, dollars=0.0, unjudged=why)


class StoredWork(Work):
    """What one arm is asked about a stored question."""

    needs_score = True

    def __init__(self, question: StoredQuestion, *, arm: ArmName, record: DecisionRecord) -> None:
        query, shared = record.decision.query, question.questions
        self.arm, self._key, self._compared = arm, question.id, question.compared
        self._answers, self._bookings, self._prices = shared.answers, shared.bookings, shared.prices
        self.query, self.limits = replace(query, limits=()), capped(query.budget, limits=shared.limits)
        own = _own_outcome(record, arm=arm, present=shared.arms[arm].made_by(self.limits))
        self._is_stored = own is not None
        self.outcome = own or self._paid_outcome()
        #: what this run paid for the answer and its score
        self._dollars = 0.0

    def _paid_outcome(self) -> Outcome | None:
        """The answer that an earlier run paid and did not score, with the passages that the judge reads."""
        answer, sources = self._answers.unended(self._key, self.arm), self._bookings.begun(self._key).sources
        if answer is None or answer.status == "failed" or self.arm not in sources:
            return None
        return Outcome(
            decision_id=self._key,
            trace=(),
            run_by="worker",
            made_by={},
            sources=tuple(sources[self.arm]),
            **{name: getattr(answer, name) for name in (*SHARED, "answer", "error", "made_at")},
        )

    @property
    def is_done(self) -> bool:
        return self._answers.has(self._key, self.arm)

    def expected(self) -> float:
        answer = 0.0 if self.outcome is not None else self._prices.of(self.arm, question=self._compared)
        return answer + self._prices.of_score()

    def add(self, outcome: Outcome, *, dollars: float) -> None:
        if self.outcome is None:
            self._prices.add(self.arm, dollars, question=self._compared)
        self._keep(outcome, dollars=dollars)

    def add_score(self, outcome: Outcome, score: Score, *, dollars: float) -> bool:
        self._prices.add_score(dollars)
        is_unscored = score.quality is None
        is_scored_again = (
            is_unscored
            and score.may_pass
            and self._bookings.count_failure(self._key, arm=self.arm) < _MOST_JUDGE_FAILURES
        )
        unjudged = score.fault or "no score" if is_unscored and not is_scored_again else None
        self._keep(outcome, dollars=dollars, quality=score.quality, unjudged=unjudged)
        return is_scored_again

    def _keep(
        self, outcome: Outcome, *, dollars: float, quality: float | None = None, unjudged: str | None = None
    ) -> None:
        self._dollars += dollars
        has_failed = outcome.status == "failed"
        if is_textless(outcome):
            unjudged = unjudged or "the answer has no text"
        elif is_blank(outcome.answer) and (self._is_stored or not has_failed):
            quality = 0.0
        if not (self._is_stored or self._answers.pairing.by_people):
            waits_for_judge = quality is None and unjudged is None and not has_failed
            sources = outcome.sources if waits_for_judge else None
            self._bookings.keep_sources(self._key, arm=self.arm, sources=sources)
        self._answers.keep(
            replace(outcome, decision_id=self._key),
            arm=self.arm,
            dollars=self._dollars,
            quality=quality,
            unjudged=unjudged,
            is_stored=self._is_stored,
        )


def _own_outcome(record: DecisionRecord, *, arm: ArmName, present: Mapping[str, object]) -> Outcome | None:
    """The outcome of the decision, if it is this arm's by its definition of now. present: this definition"""
    outcome = record.outcome
    if outcome is None or arm != record.decision.arm or outcome.run_by != "worker":
        return None
    if outcome.stop_reason in NOT_ITS_FAULT or calls_of(outcome) or record.decision.query.continues.chat is not None:
        return None
    made_by = {name: value for name, value in outcome.made_by.items() if name not in (FAILURE, SUCCESSOR)}
    return outcome if canonical(made_by) == canonical(dict(present)) else None


def arm_version(arm: LoadedArm, *, limits: BudgetSettings) -> str:
    """sha256 of the arm's definition and of the limits of its answers, 43 digits."""
    made_by = {name: value for name, value in arm.made_by(Budget()).items() if name != "budget"}
    return body_hash({"made_by": made_by, "version": arm.version, "limits": limits.model_dump(mode="json")})

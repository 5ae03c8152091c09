"""`report --decide`: compares two arms on stored questions, the arm that routing drew and the arm to compare with.

A run ends when the verdict is known, the budget is spent, or no question is left. It stores answers; the verdict that a
report prints is computed from them (`paired_comparison.with_stored_comparison`). States of an answer:

    paid     a run asked the arm. Without a score, a later run has it scored, and does not ask the arm again
    stored   the decision's own answer (`is_stored`), reused if its arm has not changed: only its score is paid
    scored   it has a quality, or the reason why it gets none (`unjudged`). It counts in the verdict
    waiting  a person has yet to label it. It is neither asked nor scored again
    failed   the arm failed. A later run asks the arm again, until MAX_TRIES processes died over the question
"""

import asyncio
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final

from ragbandit.router.comparison import MARGIN
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.settings import BudgetSettings
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.reporting.compared_questions import ComparedQuestion, ComparedQuestions
from ragbandit.router.reporting.paired_comparison import paired_comparison, paired_sample
from ragbandit.router.reporting.paired_difference import expected_half_width
from ragbandit.router.reporting.reading import PairedComparison
from ragbandit.router.serving.checks.questions import cap_budget
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.access.shared_secrets import draw_number
from ragbandit.router.storage.decisions.store import DecisionRecord, DecisionStore
from ragbandit.router.storage.jobs.scores import NOT_ITS_FAULT
from ragbandit.router.storage.label_queue import MOST_QUESTIONS, withdraw_items
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import NotFound
from ragbandit.shared.model_servers.failures import FAILURE, SUCCESSOR
from ragbandit.shared.texts.formats import counted, money
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import DIED, ArmName, Json, Outcome, call_ids, is_textless
from ragbandit.strategies.base import Account
from ragbandit.workers.asking.question_run import QuestionRun, close_parts
from ragbandit.workers.asking.questions import AskedQuestion, Work
from ragbandit.workers.asking.scoring import Score, Scorer
from ragbandit.workers.asking.stop import Stop
from ragbandit.workers.pairs.answers import BoughtAnswers
from ragbandit.workers.pairs.prices import AnswerPrices
from ragbandit.workers.running.answer_job import MAX_TRIES
from ragbandit.workers.setup.loading import LoadedArm

log = logging.getLogger("ragbandit.worker")

#: reason for the end of a run that another process continues
STOPPED: Final = "the process ended"
#: a run computes the verdict after every 5 answered questions. The interval is valid at all these times together
_LOOK_EVERY: Final = 5
#: number of failures of an arm in a row that end a run: its server is probably down
_MOST_FAILURES: Final = 3
#: number of failures of the judge after which an answer gets no score: perhaps the judge cannot read this answer
_MOST_JUDGE_FAILURES: Final = 3
#: maximum number of questions that are asked at the same time
_AT_ONCE: Final = 8
#: maximum number of questions whose expected dollars make the mean of a plan
_PRICED: Final = 200


@dataclass(kw_only=True)
class BoughtVerdict:
    """The plan and the run of a bought verdict."""

    #: who asked for the verdict, as in the audit log
    actor: str
    reward: RewardSettings
    #: limits of one answer
    limits: BudgetSettings
    #: maximum number of stored characters of a passage: the setting `log.source_chars`
    source_chars: int
    ledger: Ledger
    #: all questions of the period; this run can ask those in `askable`
    compared: ComparedQuestions
    #: questions by which the verdict is computed, as in reports: also those of arms that only an earlier run could ask
    counted: ComparedQuestions
    arms: Mapping[ArmName, LoadedArm]
    answers: BoughtAnswers
    prices: AnswerPrices
    #: secret of the store, from which draws are computed
    secret: bytes
    #: scores the answers; None if people label them
    scorer: Scorer | None
    #: number of questions that the run may ask, since people label the answers; None without a limit
    most_new: int | None = None
    #: whether the policy decided most questions, see `paired_comparison`
    is_steady: bool = True
    store: DecisionStore
    #: dollars that this run has paid; 0.0 until it has ended
    spent: float = 0.0
    _is_closed: bool = False
    _answered_before: int | None = None

    @property
    def answered(self) -> int:
        """Number of questions that both arms have answered, in all runs."""
        return sum(map(self.answers.has_both, self.compared.askable))

    @property
    def asked_now(self) -> int:
        """Number of questions that both arms have answered in this run."""
        return 0 if self._answered_before is None else self.answered - self._answered_before

    @property
    def room(self) -> int | None:
        """Number of questions that may still be asked now; None without a limit."""
        return None if self.most_new is None else max(0, self.most_new - self.asked_now)

    def open_questions(self) -> "list[StoredQuestion]":
        """The questions that lack an answer or score, in a random order. Those over which processes died come last."""
        listed = [StoredQuestion(self, one) for one in self.compared.askable if not self.answers.has_both(one)]
        return sorted(listed, key=lambda one: one.deaths)  # a question that ends processes must not delay others

    def result(self) -> PairedComparison:
        return paired_comparison(
            self.counted,
            self.answers.pairing,
            self.answers.all(),
            setting=self.reward,
            is_steady=self.is_steady,
        )

    def dollars_each(self) -> float:
        """Mean expected dollars of an open question: the answers and scores that it lacks."""
        priced = [
            math.fsum(work.expected for work in works if not work.is_done)
            for works in (one.works() for one in self.open_questions()[:_PRICED])
            if works
        ]
        return statistics.fmean(priced) if priced else 0.0

    def payable(self, *, budget: float, dollars_each: float) -> int:
        """Number of questions that a budget of dollars pays. dollars_each: see `dollars_each`"""
        left, room = len(self.open_questions()), self.room
        payable = int(min(left, budget / dollars_each)) if dollars_each else left
        return payable if room is None else min(payable, room)

    def plan(self, *, budget: float | None) -> Sequence[str]:
        """The plan of a run, in sentences. Nothing is asked. budget: dollars; None if there is no budget"""
        return [*_period_sentences(self.compared), *self._run_sentences(budget=budget)]

    def _run_sentences(self, *, budget: float | None) -> Iterator[str]:
        askable, answered, each = len(self.compared.askable), self.answered, self.dollars_each()
        pairs = self.answers.pairing.pairs(self.answers.all())
        sample = paired_sample(self.compared, pairs, setting=self.reward)
        left, room = askable - answered, self.room
        yield f"{answered:,} of {askable:,} that can be asked have been asked"
        if not left:
            return
        price = f"about {_two_digits(each)} each" if each else "which cost no dollars"
        whole = f"all {left:,} others, {price} (new answers and scores; stored ones are used again)"
        sum_ = f" for about {_two_digits(each * left)}" if each else ""
        least = expected_half_width(askable, sample=sample)
        yield f"{whole}{sum_}, would give the difference to within about ±{least:.2g}"
        if self.prices.assumed:
            yield f"some dollars are assumed, since none are known yet: {'; '.join(self.prices.assumed)}"
        if room is not None:
            most = f"at most {counted(MOST_QUESTIONS, 'question')} wait at a time, {room:,} more may be asked now"
            yield f"people label both answers on the page Labels, blind, within 7 days; {most}"
        payable = left if budget is None else self.payable(budget=budget, dollars_each=each)
        if payable < left:
            width = expected_half_width(answered + payable, sample=sample)
            pays = f"the budget pays about {counted(payable, 'question')}"
            yield f"{pays}: then the difference is known to about ±{width:.2g}"

    def run(
        self,
        *,
        budget: float,
        progress: Progress,
        warn: Callable[[str], None],
        on_paid: Callable[[float], None] = lambda _dollars: None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> str:
        """Ask until the verdict is known or `budget` dollars are spent. Ctrl-C ends the run. Returns why the run ended.

        on_paid: called after each answer and score with the dollars of this run. is_stopping: whether this process ends
        """

        def note_payment(dollars: float) -> None:
            on_paid(dollars)
            if is_stopping():
                run.end(STOPPED)

        self._resume()
        open_questions, self._answered_before = self.open_questions(), self.answered
        chosen = open_questions
        if self.most_new is not None:
            chosen = self._questions_to_label(open_questions, room=self.most_new)
        looks = range(_LOOK_EVERY, len(chosen), _LOOK_EVERY)
        stop = Stop(budget=budget, is_known=self._is_known, looks=looks, most_failures=_MOST_FAILURES)
        run = QuestionRun(
            questions=chosen,
            arms=self.arms,
            cost=self.reward.cost,
            stop=stop,
            scorer=self.scorer,
            source_chars=self.source_chars,
            progress=progress,
            warn=warn,
            on_paid=note_payment,
        )
        self.answers.pairing.keep(self.ledger.database, label=self.ledger.label, now=time.time())
        if self._is_known():
            run.end("the verdict was known before")
        self._is_closed = True  # the run closes what it used
        run.finish(concurrency=min(_AT_ONCE, *(arm.most_runs for arm in self.arms.values())))
        self.spent = run.spent
        ended = run.ended or _end_of_questions(is_queue_full=len(chosen) < len(open_questions))
        self._record(run, ended=ended)
        return ended

    def _resume(self) -> None:
        """Continue what earlier runs have begun. Raises StoreError.

        If MAX_TRIES processes died over a question, its missing answers become failed ones: its difference is bounded.
        """
        self.answers.resume([one.id for one in self.compared.askable])
        for question in self.open_questions():
            if question.deaths >= MAX_TRIES:
                extra = {"action": "decide", "decision": question.id, "deaths": question.deaths}
                log.error("processes died over a question; it fails and is not asked again", extra=extra)
                question.fail()

    def _record(self, run: QuestionRun, *, ended: str) -> None:
        facts: dict[str, Json] = {"against": str(self.compared.against), "judge": self.answers.pairing.rater}
        facts |= {"asked": self.asked_now, "dollars": run.spent, "failed": sum(run.failures.values()), "ended": ended}
        with self.ledger.database.write() as connection:
            record(connection, actor=self.actor, action="report.decide", target="paired_answers", facts=facts)

    def _questions_to_label(self, open_questions: "Sequence[StoredQuestion]", *, room: int) -> "list[StoredQuestion]":
        """The first `room` new questions, and all questions with an answer that waits for a label."""
        pairing = self.answers.pairing
        withdraw_items(self.ledger.database, versions=pairing.versions)
        waiting = {one.decision_id for one in self.answers.all() if pairing.waits(one)}
        new = {one.id for one in [one for one in open_questions if one.id not in waiting][:room]}
        return [one for one in open_questions if one.id in waiting or one.id in new]

    def close(self) -> None:
        """Close models, retrievers and the scorer, unless a run has closed them."""
        if self._is_closed:
            return
        self._is_closed = True
        asyncio.run(close_parts(self.arms, scorer=self.scorer))

    def _is_known(self) -> bool:
        """Whether more answers would hardly change the verdict: better, worse, or as good in both directions."""
        comparison = self.result().comparison
        high = comparison.reward.high
        is_close = high is not None and high < MARGIN
        return comparison.verdict in ("better", "worse") or (comparison.verdict == "as good" and is_close)


def _period_sentences(compared: ComparedQuestions) -> Iterator[str]:
    """The questions of the period, and why some cannot be asked."""
    of, differing = f"{counted(compared.routed, 'routed question')} of the period", len(compared.differing)
    yield f"{of}: {compared.routed - differing:,} went to {compared.against} anyway, {differing:,} to other arms"
    if compared.obstacles:
        yield f"cannot be asked again, so that their difference is only bounded: {compared.obstacle_words}"


def _end_of_questions(*, is_queue_full: bool) -> str:
    """Why a run ended that was not stopped. is_queue_full: whether open questions found no room in the label queue"""
    if is_queue_full:
        return f"{MOST_QUESTIONS} questions wait for labels: label them on the page Labels, then run this again"
    return "every question that can be asked was asked"


def _two_digits(dollars: float) -> str:
    return money(float(f"{dollars:.2g}"), "dollars")


class StoredQuestion(AskedQuestion):
    """A stored question that a run asks both arms, in random order. Its text is read when it is asked: it may be
    erased.
    """

    def __init__(self, verdict: BoughtVerdict, compared: ComparedQuestion) -> None:
        self._verdict, self._compared, self._answers, self.id = verdict, compared, verdict.answers, compared.id

    @property
    def deaths(self) -> int:
        """Number of processes that died while they asked the question."""
        return self._answers.deaths(self.id)

    @property
    def is_alone(self) -> bool:
        return self.deaths > 0

    @property
    def _arms(self) -> list[ArmName]:
        return [self._compared.arm, self._verdict.compared.against]

    def works(self) -> Sequence[Work]:
        """The work of both arms; nothing if the question left the store or was erased meanwhile."""
        try:
            record = self._verdict.store.record(self.id)
        except NotFound:
            return []
        if not record.decision.query.text.strip():
            return []
        arms = self._arms
        if draw_number("decide order", self.id, secret=self._verdict.secret) < 0.5:
            arms.reverse()
        return [self._work(arm, record=record) for arm in arms]

    def _work(self, arm: ArmName, *, record: DecisionRecord) -> Work:
        query, prices = record.decision.query, self._verdict.prices
        limits = cap_budget(query.budget, limits=self._verdict.limits)
        own = _own_outcome(record, arm=arm, present=self._verdict.arms[arm].made_by(limits))
        outcome = own or self._answers.answer_to_score(self.id, arm)
        answer = 0.0 if outcome is not None else prices.of_answer(arm, question=self._compared)
        return Work(
            arm=arm,
            query=replace(query, limits=()),
            limits=limits,
            needs_score=True,
            is_done=self._answers.has(self.id, arm),
            outcome=outcome,
            is_stored=own is not None,
            expected=answer + prices.of_score(),
        )

    def booking(self, *, expected: float, bill: Account) -> AbstractContextManager[None]:
        prices = self._verdict.prices
        call = max(*(prices.of_answer(arm, question=self._compared) for arm in self._arms), prices.of_score())
        return self._answers.booking(self._compared, expected=expected, call=call, bill=bill)

    def keep(
        self, work: Work, outcome: Outcome, *, dollars: float, score: Score | None = None, score_dollars: float = 0.0
    ) -> bool:
        self._note_dollars(work, dollars=dollars, score_dollars=None if score is None else score_dollars)
        quality, unjudged, is_scored_again = None if score is None else score.quality, None, False
        if score is not None and quality is None:
            is_scored_again = (
                score.may_pass and self._answers.count_failure(self.id, arm=work.arm) < _MOST_JUDGE_FAILURES
            )
            unjudged = None if is_scored_again else score.fault or "no score"
        if is_textless(outcome):
            unjudged = unjudged or "the answer has no text"
        elif is_blank(outcome.answer) and (work.is_stored or outcome.status != "failed"):
            quality = 0.0
        self._answers.keep(
            replace(outcome, decision_id=self.id),
            arm=work.arm,
            dollars=dollars + score_dollars,
            quality=quality,
            unjudged=unjudged,
            is_stored=work.is_stored,
        )
        return is_scored_again

    def _note_dollars(self, work: Work, *, dollars: float, score_dollars: float | None) -> None:
        """Note a payment, which corrects later prices: for a score, or for a new answer if `score_dollars` is None."""
        if score_dollars is not None:
            self._verdict.prices.note_score(score_dollars)
        elif work.outcome is None:
            self._verdict.prices.note_answer(work.arm, dollars, question=self._compared)

    def fail(self) -> None:
        """Store failed answers for the arms without an answer, so that the question is not asked again."""
        why = f"{self.deaths} processes died while they asked this question"
        for arm in self._arms:
            if not self._answers.has(self.id, arm):
                lost = make_outcome(decision_id=self.id, now=time.time(), status="failed", stop_reason=DIED, error=why)
                self._answers.keep(lost, arm=arm, dollars=0.0, unjudged=why)


def _own_outcome(record: DecisionRecord, *, arm: ArmName, present: Mapping[str, object]) -> Outcome | None:
    """The decision's outcome if it can stand for a new answer of this arm; else None. present: the arm's definition"""
    outcome = record.outcome
    if outcome is None or arm != record.decision.arm or outcome.run_by != "worker":
        return None
    if outcome.stop_reason in NOT_ITS_FAULT or call_ids(outcome) or record.decision.query.continues.chat is not None:
        return None
    made_by = {name: value for name, value in outcome.made_by.items() if name not in (FAILURE, SUCCESSOR)}
    return outcome if canonical(made_by) == canonical(dict(present)) else None

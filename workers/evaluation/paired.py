"""Paired runs: several arms answer the same questions: all of them, or until the verdict is known or paid for."""

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.offline.gains import CONFIDENCE
from ragbandit.router.serving.checks.questions import capped
from ragbandit.shared.errors import TooManyRequests
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import ArmName, Budget, DecisionId, Json, Outcome, Query
from ragbandit.strategies.base import Account
from ragbandit.strategies.outcome import SOURCE_CHARS, run_strategy
from ragbandit.workers.evaluation.results import labelled_quality, log_record, measured_quality
from ragbandit.workers.evaluation.runs import LabelledQuestion, StoredAnswer, Work, in_parallel, key_of
from ragbandit.workers.evaluation.scoring import Score, Scorer
from ragbandit.workers.setup.loading import LoadedArm, parts_of

#: number of questions before the first look at the verdict
FIRST_LOOK: Final = 50


def looks(questions: int) -> list[int]:
    """The numbers of questions after which the verdict is looked at: 50, 100, 150, 200, 300, 400, 600, 800, ...

    Looks that are further apart would ask more questions after the verdict is known. Closer looks need wider intervals,
    since they share the error. questions: number in the whole run.
    """
    steps = (FIRST_LOOK, *(step * 2**number for number in range(1, 40) for step in (FIRST_LOOK, FIRST_LOOK * 3 // 2)))
    return list(itertools.takewhile(lambda step: step < questions, steps))


def shared_confidence(questions: int) -> float:
    """Confidence of each look at the verdict, since all looks of a run share the error probability (Bonferroni)."""
    return 1.0 - (1.0 - CONFIDENCE) / (len(looks(questions)) + 1)


#: number of new questions after which the costs of the answers are checked
LEAST: Final = 12


class AnswerStore(Protocol):
    """Where answers are kept, so that no question is asked twice."""

    @property
    def found(self) -> Mapping[str, StoredAnswer]:
        """Key -> its answer."""

    @property
    def dollars(self) -> Mapping[str, float]:
        """Key -> dollars of all its answers, also of those that failed and were asked again."""

    def add(self, outcome: Outcome, *, work: Work, score: float | None = None) -> None: ...


class Asked(Protocol):
    """What the arms are asked about the questions of a run, if it is more than the texts of the questions."""

    def work(self, row: LabelledQuestion) -> list[Work]:
        """The arms that answer this question, in their order."""

    def query(self, work: Work) -> tuple[Query, Budget]:
        """What the arm is asked, and the limits of its answer."""

    def outcome(self, work: Work) -> Outcome | None:
        """An outcome that is there already; None if the arm has to be asked."""

    def expected(self, work: Work) -> float:
        """About how many dollars the answer and its score will cost."""

    def is_alone(self, row: LabelledQuestion) -> bool:
        """Whether no other question is asked with this one, since a process died while it was asked."""

    def may_judge_again(self, work: Work) -> bool:
        """Count a failure of the judge. Returns False if it has failed too often on this answer."""

    def booked(self, row: LabelledQuestion, *, expected: float, bill: Account) -> AbstractContextManager[None]:
        """A block in which the question is asked; what it cost is in `bill` at its end."""

    def note_fault(self, work: Work, score: Score) -> None:
        """Note that the judge refused to score an answer."""


@dataclass(eq=False, kw_only=True, slots=True)
class _Turn:
    """A question that is being asked."""

    #: expected dollars of its answers and scores
    expected: float
    #: what it has cost so far
    bill: Account = field(default_factory=Account)


@dataclass(kw_only=True)
class PairedRun:
    """A run of arms on questions. `records` is valid when `run` ends, also if `run` raises an error."""

    rows: Sequence[LabelledQuestion]
    arms: Mapping[ArmName, LoadedArm]
    answers: AnswerStore
    settings: Settings
    family: str
    progress: Progress
    #: scores answers to questions without right answers; None if these need no score in this run
    judge: Scorer | None = None
    #: dollars that the answers may cost; None without a limit
    budget: float | None = None
    #: returns whether records suffice for a verdict; called in a thread. None to ask every question
    is_known: Callable[[list[dict[str, Json]]], bool] | None = None
    warn: Callable[[str], None] = lambda _text: None
    #: whether failed answers have records, of quality 0
    learns_failures: bool = True
    #: dollars of answers of this run that may not be in `answers`
    paid_before: float = 0.0
    #: called with `spent` after each answer
    on_paid: Callable[[float], None] = lambda _dollars: None
    #: None if every arm gets the text of each question and nothing else
    asked: Asked | None = None
    #: number of questions between two looks at the verdict; None for the numbers of `looks`
    look_every: int | None = None
    #: whether the run ends if the judge fails; otherwise the question counts for no arm
    needs_judge: bool = False
    #: the run ends if an arm fails so often in a row; None to go on
    most_failures: int | None = None
    source_chars: int = SOURCE_CHARS
    #: dollars of the answers of this run, also of those that were stored before
    spent: float = 0.0
    #: number of questions that every arm has answered, and that count
    answered: int = 0
    #: number of questions that count for no arm, because the judge gave no score
    unjudged: int = 0
    #: why the run ended early; None if every question was asked
    ended: str | None = None
    #: a logged decision for each arm and each of these questions
    records: list[dict[str, Json]] = field(default_factory=list)
    failures: Counter[ArmName] = field(default_factory=Counter)
    _failed_in_a_row: Counter[ArmName] = field(default_factory=Counter)
    _new_questions: int = 0
    _new_costs: float = 0.0
    _judge_failed: bool = False
    _judge_is_down: bool = False
    _looks_done: set[int] = field(default_factory=set)
    _asking: list[_Turn] = field(default_factory=list)
    #: dollars of the most expensive question of this run; None before one has ended
    _most_expensive: float | None = None
    _is_alone: bool = False
    _freed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        self._limits = capped(Budget(), limits=self.settings.budget)
        self._origins = {name: arm.made_by(self._limits) for name, arm in self.arms.items()}

    def work(self, row: LabelledQuestion) -> list[Work]:
        """The arms that answer this question."""
        if self.asked is not None:
            return self.asked.work(row)
        return [
            Work(
                key=key_of(row.question, arm=name, made_by=self._origins[name], version=arm.version),
                arm=name,
                question=row.question,
            )
            for name, arm in self.arms.items()
        ]

    def finish(self, *, concurrency: int) -> None:
        """Call `run` in a new event loop. This also works in a notebook. Ctrl-C ends the run early."""
        try:
            asyncio.get_running_loop()
            has_loop = True
        except RuntimeError:
            has_loop = False
        try:
            if not has_loop:
                asyncio.run(self.run(concurrency=concurrency))
                return
            with ThreadPoolExecutor(1) as pool:  # a thread that runs an event loop cannot run another loop
                pool.submit(asyncio.run, self.run(concurrency=concurrency)).result()
        except KeyboardInterrupt:
            self.ended = "Ctrl-C"

    async def run(self, *, concurrency: int) -> None:
        """Ask at most `concurrency` questions at a time. Closes generators and retrievers at the end."""
        if self.asked is None:
            stored = sum(self.answers.dollars[work.key] for row in self.rows for work in self.work(row))
            self.spent = max(self.paid_before, stored)
        self._look_at_budget()
        open_questions = itertools.takewhile(lambda row: self.ended is None or self._is_paid(row), self.rows)
        try:
            await in_parallel(open_questions, self._ask, concurrency=concurrency)
        finally:
            for arm, count in self.failures.items():
                self.warn(f"{arm} failed at {count} of the questions")
            for part in parts_of(self.arms.values()):
                await part.close()
            if self.judge is not None:
                await self.judge.close()

    async def _ask(self, row: LabelledQuestion) -> None:
        """Let the arms answer a question, unless their answers are stored, and record the answers."""
        missing = [work for work in self.work(row) if self._known(row, work) is None]
        if not missing:
            await self._ask_arms(row, missing, bill=Account())
            return
        expected = math.fsum(self.asked.expected(work) for work in missing) if self.asked is not None else 0.0
        turn = _Turn(expected=expected)
        if not await self._admitted(row, turn):
            return
        try:
            with self._booked(row, expected=expected, bill=turn.bill):
                await self._ask_arms(row, missing, bill=turn.bill)
        except TooManyRequests as error:  # from `booked`
            self.ended = self.ended or error.message
        finally:
            self._asking.remove(turn)
            self._is_alone = False
            self._most_expensive = max(self._most_expensive or 0.0, turn.bill.cost.dollars)
            async with self._freed:
                self._freed.notify_all()

    async def _admitted(self, row: LabelledQuestion, turn: _Turn) -> bool:
        """Wait until the question may be asked. Returns False if the run has ended.

        Prices may have risen since the estimate. So the first question of a run with a budget is asked by itself. Later
        ones are expected to cost as much as the most expensive one so far, and they are asked at the same time only
        while twice that is left for all of them.
        """
        is_alone = self.asked is not None and self.asked.is_alone(row)
        async with self._freed:
            while self.ended is None and self._asking and (is_alone or self._is_alone or not self._has_room(turn)):
                await self._freed.wait()
            if self.ended is None and not self._asking and not self._is_payable(turn):
                self.ended = f"the next question may pass the budget of {self.budget:g} dollars"
            if self.ended is not None:
                return False
            self._asking.append(turn)
            self._is_alone = is_alone
        return True

    def _has_room(self, turn: _Turn) -> bool:
        if self.budget is None:
            return True
        if self._most_expensive is None:
            return False
        return 2.0 * math.fsum(map(self._left_to_pay, (*self._asking, turn))) <= self.budget - self.spent

    def _is_payable(self, turn: _Turn) -> bool:
        return self.budget is None or self._left_to_pay(turn) <= self.budget - self.spent

    def _left_to_pay(self, turn: _Turn) -> float:
        return max(0.0, max(turn.expected, self._most_expensive or 0.0) - turn.bill.cost.dollars)

    def _booked(self, row: LabelledQuestion, *, expected: float, bill: Account) -> AbstractContextManager[None]:
        return nullcontext() if self.asked is None else self.asked.booked(row, expected=expected, bill=bill)

    async def _ask_arms(self, row: LabelledQuestion, missing: Sequence[Work], *, bill: Account) -> None:
        stored = self.answers.found
        for work in missing:
            await self._answer(row, work, bill=bill)
            if self._judge_is_down:
                return  # the other arm's answer could not be scored either
        new_answers = [stored[work.key] for work in missing]
        answers = {work.arm: stored[work.key] for work in self.work(row)}
        if new_answers:
            self._check_costs(new_answers)
        self._enter(row, answers)
        await self._look()

    def _check_costs(self, answers: Sequence[StoredAnswer]) -> None:
        """Warn once, after LEAST new questions, if arms report no dollars, or nothing that `reward.cost` charges."""
        terms = self.settings.reward.cost
        self._new_questions += 1
        self._new_costs += sum(cost_of_terms(answer.steps, answer.cost, terms=terms) for answer in answers)
        if self._new_questions != LEAST:
            return
        if self.budget is not None and self.spent == 0.0:
            remedy = "report dollars (a generator: token_prices)"
            self.warn(f"the answers to {LEAST} questions cost 0 dollars: --budget ends nothing unless arms {remedy}")
        if self._new_costs == 0.0:
            names = ", ".join(terms)
            self.warn(f"the answers to {LEAST} questions cost nothing by reward.cost ({names}): every arm looks free")

    async def _answer(self, row: LabelledQuestion, work: Work, *, bill: Account) -> None:
        outcome = None if self.asked is None else self.asked.outcome(work)
        is_new = outcome is None
        outcome = outcome or await self._run(work, bill=bill)
        self.answers.add(outcome, work=work)
        await asyncio.to_thread(self.on_paid, self.spent)
        if is_new:
            self._count_failure(outcome, arm=work.arm)
        if not row.answers and self.judge is not None and not is_blank(outcome.answer):
            self.answers.add(outcome, work=work, score=await self._judged(work, outcome, bill=bill))
            await asyncio.to_thread(self.on_paid, self.spent)
        self._look_at_budget()

    async def _run(self, work: Work, *, bill: Account) -> Outcome:
        arm, account = self.arms[work.arm], Account()
        query, limits = Query(id=DecisionId(work.key), text=work.question), self._limits
        if self.asked is not None:
            query, limits = self.asked.query(work)
        try:
            return await run_strategy(
                arm.strategy,
                query=query,
                budget=limits,
                retriever=arm.retriever,
                generator=arm.generator,
                named=arm.named,
                source_chars=self.source_chars,
                account=account,
            )
        finally:  # also if the run is interrupted
            self._pay(account, bill=bill)

    def _count_failure(self, outcome: Outcome, *, arm: ArmName) -> None:
        if outcome.status != "failed":
            self._failed_in_a_row[arm] = 0
            return
        self.failures[arm] += 1
        self._failed_in_a_row[arm] += 1
        if self.failures[arm] == 1:
            self.warn(f"{arm} failed: {outcome.error}")
        if self._failed_in_a_row[arm] == self.most_failures:
            self.ended = self.ended or f"{arm} failed {self.most_failures} times in a row: {outcome.error}"

    def _pay(self, account: Account, *, bill: Account) -> None:
        bill.cost += account.cost
        self.spent += account.cost.dollars

    def _look_at_budget(self) -> None:
        if self.budget is not None and self.spent >= self.budget and self.ended is None:
            self.ended = f"the budget of {self.budget:g} dollars is spent"

    def _is_paid(self, row: LabelledQuestion) -> bool:
        """Whether all answers to the question are stored."""
        return all(self._known(row, work) is not None for work in self.work(row))

    def _known(self, row: LabelledQuestion, work: Work) -> StoredAnswer | None:
        """The stored answer, if nothing is missing in it."""
        known = self.answers.found.get(work.key)
        is_scored = known is not None and (row.answers or known.score is not None or is_blank(known.answer))
        return known if is_scored or self.judge is None else None

    async def _judged(self, work: Work, outcome: Outcome, *, bill: Account) -> float | None:
        assert self.judge is not None
        account = Account()
        try:
            score = await self.judge.score(work.question, outcome, bill=account)
        finally:
            self._pay(account, bill=bill)
        if score.quality is None:
            self._note_unscored(work, score)
        return score.quality

    def _note_unscored(self, work: Work, score: Score) -> None:
        if not self._judge_failed:
            self.warn(f"the judge gave no score, and the question counts for no arm: {score.fault}")
        self._judge_failed = True
        may_pass = score.may_pass and (self.asked is None or self.asked.may_judge_again(work))
        if self.needs_judge and may_pass:
            self._judge_is_down = True
            self.ended = self.ended or f"the judge fails: {score.fault}"
        elif self.asked is not None:
            self.asked.note_fault(work, score)

    def _enter(self, row: LabelledQuestion, answers: Mapping[ArmName, StoredAnswer]) -> None:
        reward = self.settings.reward
        quality = {arm: self._quality(row, answer) for arm, answer in answers.items()}
        scores = {arm: float(score) for arm, score in quality.items() if score is not None}
        if len(scores) < len(answers):
            self.unjudged += 1
            return
        self.answered += 1
        self.records += [
            log_record(row.question, answer, quality=scores[arm], arms=tuple(answers), reward=reward)
            for arm, answer in answers.items()
            if self.learns_failures or not answer.failed
        ]
        done = self.answered + self.unjudged
        self.progress(f"questions ({self.spent:.4g} dollars)", done, len(self.rows))

    def _quality(self, row: LabelledQuestion, stored: StoredAnswer) -> float | None:
        if row.answers:
            return measured_quality(labelled_quality(row, stored, family=self.family), reward=self.settings.reward)
        return 0.0 if stored.failed or is_blank(stored.answer) else stored.score

    async def _look(self) -> None:
        due = {look for look in self._looks() if look <= self.answered} - self._looks_done
        if due and self.ended is None and self.is_known is not None:
            self._looks_done |= due
            if await asyncio.to_thread(self.is_known, [*self.records]):
                self.ended = f"the verdict is known after {self.answered} questions"

    def _looks(self) -> Sequence[int]:
        if self.look_every is None:
            return looks(len(self.rows))
        return range(self.look_every, len(self.rows), self.look_every)

    def facts(self) -> dict[str, Any]:
        facts = {"answered": self.answered, "of": len(self.rows), "dollars": self.spent, "unjudged": self.unjudged}
        return {**facts, "ended": self.ended or "every question was answered"}

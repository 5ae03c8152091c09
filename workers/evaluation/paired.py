"""Paired runs: several arms answer the same questions: all of them, or until the verdict is known or paid for."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.offline.gains import CONFIDENCE
from ragbandit.router.serving.checks.questions import capped
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import ArmName, Budget, DecisionId, Json, Outcome, Query
from ragbandit.strategies.base import Account, Passage, Request
from ragbandit.strategies.outcome import run_strategy
from ragbandit.workers.evaluation.results import labelled_quality, log_record, quality_of
from ragbandit.workers.evaluation.runs import Answers, LabelledQuestion, StoredAnswer, Work, in_parallel, key_of
from ragbandit.workers.setup.judge_checks import JudgeOfArm
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


@dataclass(kw_only=True)
class PairedRun:
    """A run of arms on questions. `records` is valid when `run` ends, also if `run` raises an error."""

    rows: Sequence[LabelledQuestion]
    arms: Mapping[ArmName, LoadedArm]
    answers: Answers
    settings: Settings
    family: str
    progress: Progress
    #: scores answers to questions without right answers
    judge: JudgeOfArm | None = None
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
    _new_questions: int = 0
    _new_costs: float = 0.0
    _judge_failed: bool = False
    _looks_done: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._limits = capped(Budget(), limits=self.settings.budget)
        self._origins = {name: arm.made_by(self._limits) for name, arm in self.arms.items()}

    def work(self, row: LabelledQuestion) -> list[Work]:
        """Every arm on this question."""
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
                await self.judge.generator.close()

    async def _ask(self, row: LabelledQuestion) -> None:
        """Let every arm answer a question, unless its answer is stored, and record the answers."""
        stored = self.answers.found
        answers: dict[ArmName, StoredAnswer] = {}
        new_answers: list[StoredAnswer] = []
        for work in self.work(row):
            if self._known(row, work) is None:
                await self._answer(row, work)
                new_answers.append(stored[work.key])
            answers[work.arm] = stored[work.key]
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

    async def _answer(self, row: LabelledQuestion, work: Work) -> None:
        arm = self.arms[work.arm]
        outcome = await run_strategy(
            arm.strategy,
            query=Query(id=DecisionId(work.key), text=work.question),
            budget=self._limits,
            retriever=arm.retriever,
            generator=arm.generator,
            named=arm.named,
        )
        self.answers.add(outcome, work=work)
        self.spent += outcome.cost.dollars
        await asyncio.to_thread(self.on_paid, self.spent)
        if outcome.status == "failed":
            self.failures[work.arm] += 1
            if self.failures[work.arm] == 1:
                self.warn(f"{work.arm} failed: {outcome.error}")
        if not row.answers and self.judge is not None and not is_blank(outcome.answer):
            self.answers.add(outcome, work=work, score=await self._judged(row, outcome))
        self._look_at_budget()

    def _look_at_budget(self) -> None:
        if self.budget is not None and self.spent >= self.budget and self.ended is None:
            self.ended = f"the budget of {self.budget:g} dollars is spent"

    def _is_paid(self, row: LabelledQuestion) -> bool:
        """Whether all answers to the question are stored."""
        return all(self._known(row, work) is not None for work in self.work(row))

    def _known(self, row: LabelledQuestion, work: Work) -> StoredAnswer | None:
        """The stored answer, if nothing is missing in it."""
        known = self.answers.found.get(work.key)
        needs_score = known is not None and not (row.answers or known.score is not None or is_blank(known.answer))
        return None if needs_score else known

    async def _judged(self, row: LabelledQuestion, outcome: Outcome) -> float | None:
        assert self.judge is not None
        sources = [Passage(id=source.id, title=source.title, text=source.text) for source in outcome.sources]
        lost = Account()
        try:
            prompt, score = self.judge.ask(question=row.question, answer=outcome.answer or "", sources=sources)
            deadline = time.monotonic() + self.settings.judge.seconds
            request = Request(prompt=prompt, max_tokens=self.judge.max_tokens, deadline=deadline, lost=lost)
            completion = await self.judge.generator.complete(request)
            self.spent += completion.dollars
            return score(completion.text)
        except ArmFailed as error:
            if not self._judge_failed:
                self.warn(f"the judge gave no score, and the question counts for no arm: {error}")
            self._judge_failed = True
            return None
        finally:
            self.spent += lost.cost.dollars

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
            return quality_of(labelled_quality(row, stored, family=self.family), reward=self.settings.reward)
        return 0.0 if stored.failed or is_blank(stored.answer) else stored.score

    async def _look(self) -> None:
        due = {look for look in looks(len(self.rows)) if look <= self.answered} - self._looks_done
        if due and self.ended is None and self.is_known is not None:
            self._looks_done |= due
            if await asyncio.to_thread(self.is_known, [*self.records]):
                self.ended = f"the verdict is known after {self.answered} questions"

    def facts(self) -> dict[str, Any]:
        facts = {"answered": self.answered, "of": len(self.rows), "dollars": self.spent, "unjudged": self.unjudged}
        return {**facts, "ended": self.ended or "every question was answered"}

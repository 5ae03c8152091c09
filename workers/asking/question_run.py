"""A run: arms answer the same questions, until all are answered or a `Stop` ends the run."""

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.offline.estimation import Progress
from ragbandit.shared.errors import TooManyRequests
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import ArmName, Json, Outcome
from ragbandit.strategies.base import Account
from ragbandit.strategies.outcome import SOURCE_CHARS, run_strategy
from ragbandit.workers.asking.admission import Admission
from ragbandit.workers.asking.questions import AskedQuestion, Work
from ragbandit.workers.asking.scoring import Score, Scorer
from ragbandit.workers.asking.stop import Stop
from ragbandit.workers.setup.loading import LoadedArm, parts_of

Piece = TypeVar("Piece")

#: number of new questions after which the costs of the answers are checked
LEAST: Final = 12


@dataclass(kw_only=True)
class QuestionRun:
    """A run of arms on questions. Each AskedQuestion stores its answers."""

    questions: Sequence[AskedQuestion]
    arms: Mapping[ArmName, LoadedArm]
    #: the setting `reward.cost`
    cost: Mapping[str, float]
    #: when the run ends early
    stop: Stop = field(default_factory=Stop)
    #: scores answers; None if this run scores none
    scorer: Scorer | None = None
    #: dollars of the answers of this run that were paid before
    paid_before: float = 0.0
    source_chars: int = SOURCE_CHARS
    progress: Progress
    warn: Callable[[str], None] = lambda _text: None
    #: called with `spent` after each answer, and after its score
    on_paid: Callable[[float], None] = lambda _dollars: None
    #: number of questions that every arm has answered, and that count
    answered: int = 0
    #: number of questions that count for no arm: the scorer gave no score, or people have to label the answers first
    unjudged: int = 0
    failures: Counter[ArmName] = field(default_factory=Counter)
    _failed_in_a_row: Counter[ArmName] = field(default_factory=Counter)
    #: costs of the answers to each new question, in the terms of `cost`
    _new_costs: list[float] = field(default_factory=list)
    _is_scorer_down: bool = False
    _has_unscored: bool = False

    def __post_init__(self) -> None:
        self._admission = Admission(self.stop, paid_before=self.paid_before)

    @property
    def ended(self) -> str | None:
        """Why the run ended early; None before its end, or if it ended at its last question."""
        return self.stop.reason

    def end(self, reason: str) -> None:
        """End the run: no further question is asked. The first reason stays."""
        self.stop.end(reason)

    @property
    def spent(self) -> float:
        """Dollars of the answers and scores of this run, also of answers that were paid before."""
        return self._admission.spent

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
            self.end("Ctrl-C")

    async def run(self, *, concurrency: int) -> None:
        """Ask at most `concurrency` questions at a time. Closes the arms' parts and the scorer at the end."""
        self.stop.check_budget(self.spent)
        questions = itertools.takewhile(lambda one: self.ended is None or not _open_work(one), self.questions)
        try:
            await in_parallel(questions, self._ask, concurrency=concurrency)
        finally:
            for arm, count in self.failures.items():
                self.warn(f"{arm} failed at {count} of the questions")
            await close_parts(self.arms, scorer=self.scorer)

    async def _ask(self, question: AskedQuestion) -> None:
        """Let the arms answer a question, unless their answers are stored."""
        works = _open_work(question)
        if not works:
            await self._count(question)
            return
        expected = math.fsum(work.expected for work in works)
        async with self._admission.admit(expected=expected, is_alone=question.is_alone) as bill:
            if bill is not None:
                try:
                    with question.booking(expected=expected, bill=bill):
                        await self._ask_arms(question, works, bill=bill)
                except TooManyRequests as error:  # a budget of the payer is spent
                    self.end(error.message)

    async def _ask_arms(self, question: AskedQuestion, works: Sequence[Work], *, bill: Account) -> None:
        cost, has_scores = 0.0, True
        for work in works:
            outcome, is_scored = await self._answer(work, question=question, bill=bill)
            if self._is_scorer_down:
                return  # the scorer would fail for the other arm, too
            cost += cost_of_terms(outcome.steps, outcome.cost, terms=self.cost)
            has_scores &= is_scored
        self._check_costs(cost)
        await self._count(question, has_scores=has_scores)

    async def _answer(self, work: Work, *, question: AskedQuestion, bill: Account) -> tuple[Outcome, bool]:
        """Ask the arm, unless its answer is paid, and let the scorer score the answer.

        Returns (answer, whether it has the score that it needs).
        """
        account = Account()
        outcome = work.outcome or await self._run(work, account=account, bill=bill)
        dollars = account.cost.dollars
        question.keep(work, outcome, dollars=dollars)
        await asyncio.to_thread(self.on_paid, self.spent)
        if work.outcome is None:
            self._count_failure(outcome, arm=work.arm)
        is_scored = not work.needs_score or outcome.status == "failed" or is_blank(outcome.answer)
        if self.scorer is not None and work.needs_score and not is_blank(outcome.answer):
            score, account = await self._score(self.scorer, work, outcome, bill=bill)
            if question.keep(work, outcome, dollars=dollars, score=score, score_dollars=account.cost.dollars):
                self._is_scorer_down = True
                self.end(f"the judge fails: {score.fault}")
            is_scored |= score.quality is not None
            await asyncio.to_thread(self.on_paid, self.spent)
        self.stop.check_budget(self.spent)
        return outcome, is_scored

    async def _run(self, work: Work, *, account: Account, bill: Account) -> Outcome:
        arm = self.arms[work.arm]
        try:
            return await run_strategy(
                arm.strategy,
                query=work.query,
                budget=work.limits,
                retriever=arm.retriever,
                generator=arm.generator,
                named=arm.named,
                source_chars=self.source_chars,
                account=account,
            )
        finally:  # the cost counts also if the run is interrupted
            self._admission.pay(bill, account=account)

    async def _score(self, scorer: Scorer, work: Work, outcome: Outcome, *, bill: Account) -> tuple[Score, Account]:
        account = Account()
        try:
            score = await scorer.score(work.query.text, outcome, bill=account)
        finally:
            self._admission.pay(bill, account=account)
        if score.quality is None and not self._has_unscored:
            self._has_unscored = True
            self.warn(f"the judge gave no score, and the question counts for no arm: {score.fault}")
        return score, account

    def _count_failure(self, outcome: Outcome, *, arm: ArmName) -> None:
        if outcome.status != "failed":
            self._failed_in_a_row[arm] = 0
            return
        self.failures[arm] += 1
        self._failed_in_a_row[arm] += 1
        if self.failures[arm] == 1:
            self.warn(f"{arm} failed: {outcome.error}")
        if self._failed_in_a_row[arm] == self.stop.most_failures:
            self.end(f"{arm} failed {self.stop.most_failures} times in a row: {outcome.error}")

    def _check_costs(self, cost: float) -> None:
        """Warn once, after LEAST new questions, if arms report no dollars, or none of the terms in `reward.cost`."""
        self._new_costs.append(cost)
        if len(self._new_costs) != LEAST:
            return
        if self.stop.budget is not None and self.spent == 0.0:
            remedy = "report dollars (a generator: token_prices)"
            self.warn(f"the answers to {LEAST} questions cost 0 dollars: --budget ends nothing unless arms {remedy}")
        if not any(self._new_costs):
            names = ", ".join(self.cost)
            self.warn(f"the answers to {LEAST} questions cost nothing by reward.cost ({names}): every arm looks free")

    async def _count(self, question: AskedQuestion, *, has_scores: bool = True) -> None:
        """Count a question whose answers are stored. has_scores: whether all answers have the scores that they need"""
        if has_scores:
            self.answered += 1
            question.enter()
            done = self.answered + self.unjudged
            self.progress(f"questions ({self.spent:.4g} dollars)", done, len(self.questions))
        else:
            self.unjudged += 1
        await self.stop.look(self.answered)

    def facts(self) -> dict[str, Json]:
        facts = {"answered": self.answered, "of": len(self.questions), "dollars": self.spent, "unjudged": self.unjudged}
        return {**facts, "ended": self.ended or "every question was answered"}


def _open_work(question: AskedQuestion) -> list[Work]:
    """The work that is not done."""
    return [work for work in question.works() if not work.is_done]


async def close_parts(arms: Mapping[ArmName, LoadedArm], *, scorer: Scorer | None) -> None:
    for part in (*parts_of(arms.values()), *([] if scorer is None else [scorer])):
        await part.close()


async def in_parallel(work: Iterable[Piece], do: Callable[[Piece], Awaitable[object]], *, concurrency: int) -> None:
    """Call `do` with each piece of work, `concurrency` at a time. An error cancels all calls."""
    pieces = iter(work)

    async def do_next() -> None:
        for piece in pieces:
            await do(piece)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(do_next())
    except ExceptionGroup as several:
        raise several.exceptions[0] from several

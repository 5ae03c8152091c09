"""Paired runs: several arms answer the same questions, until the verdict is known or the budget is spent.

All arms answer the first questions. After that an arm leaves when there is strong evidence that others are better at
every cost weight and for every kind of question (`Race`).
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.offline.gains import CONFIDENCE
from ragbandit.shared.confidence_sequences import log_mean_exp
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.text_forms import is_blank
from ragbandit.shared.types import ArmName, FeatureRows, Json, Outcome
from ragbandit.strategies.base import Passage, Request
from ragbandit.workers.evaluation.results import labelled_quality, log_record, quality_of
from ragbandit.workers.evaluation.runs import Bench, LabelledQuestion, StoredAnswer, Work, in_parallel
from ragbandit.workers.judge.checks import JudgeOfArm

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


def kinds_of(rows: Sequence[LabelledQuestion], features: FeatureRows | None) -> list[int]:
    """Kind of each question, a number from 0: its data set if there are 2 to 8 of them, else one of 1 to 4 clusters."""
    names = sorted({row.dataset or "" for row in rows})
    if 2 <= len(names) <= 8:
        return [names.index(row.dataset or "") for row in rows]
    count = min(4, len(rows) // 25)
    if features is None or count < 2:
        return [0] * len(rows)
    points = np.asarray(features, dtype=np.float64)
    centres = points[np.random.default_rng(0).choice(len(points), count, replace=False)]
    for _ in range(20):
        nearest = ((points[:, None, :] - centres) ** 2).sum(axis=2).argmin(axis=1)
        centres = np.array(
            [points[nearest == k].mean(axis=0) if (nearest == k).any() else centres[k] for k in range(count)]
        )
    return [int(kind) for kind in nearest]


#: number of questions that all arms answer before an arm may leave
LEAST: Final = 12
#: stakes of the bets of `Race`, as shares of the largest stake that cannot lose the whole capital
_STAKES: Final = np.array([0.1, 0.3, 0.6, 0.9])
#: largest probability that any arm leaves although it is the best at some cost weight for some kind of question
ALPHA: Final = 0.05


class Race:
    """The arms that are still in the race, and the number of questions after which each other arm left.

    A use is a cost weight together with one kind of question, or with all questions. An arm should leave if it is the
    best for no use. For each use, bets are placed on the rewards of the rivals minus the arm's reward (Waudby-Smith and
    Ramdas 2023, "Estimating means of bounded random variables by betting"). If the arm is the best for a use, the mean
    capital over stakes and rivals is a supermartingale, and rarely large. An arm leaves if this mean is large for every
    use.
    """

    def __init__(
        self, arms: Sequence[ArmName], *, weights: Sequence[float], bounds: tuple[float, float], kinds: int
    ) -> None:
        """weights: cost weights, >= 0. bounds: least and largest reward. kinds: number of kinds of questions."""
        self.arms = tuple(arms)
        self.running: tuple[ArmName, ...] = self.arms
        self.left: dict[ArmName, int] = {}
        self.questions = 0
        self._weights = np.asarray(weights)
        self._bounds = bounds
        self._threshold = np.log(len(arms) / ALPHA)
        # log capital against "the arm is the best". Shape (weights, kinds and all, rival, arm, stakes)
        self._capital = np.zeros((len(weights), kinds + 1, len(arms), len(arms), len(_STAKES)))

    def add(self, *, quality: Mapping[ArmName, float], cost: Mapping[ArmName, float], kind: int = 0) -> None:
        """Add a question that all arms of `running` answered, and let arms leave. quality in [0, 1], cost >= 0."""
        self.questions += 1
        places = np.array([self.arms.index(arm) for arm in self.running])
        right = np.array([quality[arm] for arm in self.running])
        spent = np.array([cost[arm] for arm in self.running])
        reward = np.clip(right - self._weights[:, None] * spent, *self._bounds)
        ahead = (reward[:, :, None] - reward[:, None, :]) / (self._bounds[1] - self._bounds[0])
        grown = np.log1p(ahead[..., None] * _STAKES)
        for group in (kind, -1):
            self._capital[:, group, places[:, None], places[None, :]] += grown
        if self.questions >= LEAST:
            self._leave()

    def _leave(self) -> None:
        rivals = np.moveaxis(self._capital, 3, 2)  # shape (weights, kinds and all, arm, rival, stakes)
        others = ~np.eye(len(self.arms), dtype=np.bool_)
        averaged = np.moveaxis(rivals[:, :, others].reshape(*rivals.shape[:3], -1), -1, 0)
        # `log_mean_exp` returns the log of the mean capital over rivals and stakes.
        is_excluded = (log_mean_exp(averaged) >= self._threshold).all(axis=(0, 1))
        leaving = [arm for arm in self.running if is_excluded[self.arms.index(arm)]]
        if len(leaving) < len(self.running):
            self.left |= dict.fromkeys(leaving, self.questions)
            self.running = tuple(arm for arm in self.running if arm not in leaving)


@dataclass(kw_only=True)
class PairedRun:
    """A run of arms on questions. `records` is valid when `run` ends, also if `run` raises an error."""

    rows: Sequence[LabelledQuestion]
    kinds: Sequence[int]
    bench: Bench
    race: Race
    settings: Settings
    family: str
    judge: JudgeOfArm | None
    #: dollars that the answers may cost; None without a limit
    budget: float | None
    #: returns whether records suffice for a verdict; called in a thread
    is_known: Callable[[list[dict[str, Json]]], bool]
    progress: Progress
    warn: Callable[[str], None]
    spent: float = 0.0
    #: number of questions that count for no arm, because the judge gave no score
    unjudged: int = 0
    #: why the run ended early; None if every question was asked
    ended: str | None = None
    #: a logged decision for each arm and each question that all arms of the race have answered
    records: list[dict[str, Json]] = field(default_factory=list)
    failures: Counter[ArmName] = field(default_factory=Counter)
    _new_questions: int = 0
    _new_costs: float = 0.0
    _judge_failed: bool = False
    _looks_done: set[int] = field(default_factory=set)

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
        questions = zip(self.rows, self.kinds, strict=True)
        open_questions = itertools.takewhile(lambda _: self.ended is None, questions)
        try:
            await in_parallel(open_questions, self._ask, concurrency=concurrency)
        finally:
            for arm, count in self.failures.items():
                self.warn(f"{arm} failed at {count} of the questions")
            await self.bench.close()
            if self.judge is not None:
                await self.judge.generator.close()

    async def _ask(self, question: tuple[LabelledQuestion, int]) -> None:
        """Let the arms of the race answer a question, unless answers are stored, and add the question to the race."""
        row, kind = question
        stored = self.bench.answers.found
        answers: dict[ArmName, StoredAnswer] = {}
        new_answers: list[StoredAnswer] = []
        running = self.race.running
        for work in self.bench.work([row]):
            if work.arm not in running:
                continue
            known = stored.get(work.key)
            if known is None or not (row.answers or known.score is not None or is_blank(known.answer)):
                await self._answer(row, work)
                new_answers.append(stored[work.key])
            answers[work.arm] = stored[work.key]
        if new_answers:
            self._check_costs(new_answers)
        self._enter(row, answers, kind=kind)
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
        outcome = await self.bench.answer(work)
        self.spent += outcome.cost.dollars
        if outcome.status == "failed":
            self.failures[work.arm] += 1
            if self.failures[work.arm] == 1:
                self.warn(f"{work.arm} failed: {outcome.error}")
        if not row.answers and self.judge is not None and not is_blank(outcome.answer):
            self.bench.answers.add(outcome, work=work, score=await self._judged(row, outcome))
        if self.budget is not None and self.spent >= self.budget and self.ended is None:
            self.ended = f"the budget of {self.budget:g} dollars is spent"

    async def _judged(self, row: LabelledQuestion, outcome: Outcome) -> float | None:
        assert self.judge is not None
        sources = [Passage(id=source.id, title=source.title, text=source.text) for source in outcome.sources]
        try:
            prompt, score = self.judge.ask(question=row.question, answer=outcome.answer or "", sources=sources)
            deadline = time.monotonic() + self.settings.judge.seconds
            request = Request(prompt=prompt, max_tokens=self.judge.max_tokens, deadline=deadline)
            completion = await self.judge.generator.complete(request)
            self.spent += completion.dollars
            return score(completion.text)
        except ArmFailed as error:
            if not self._judge_failed:
                self.warn(f"the judge gave no score, and the question counts for no arm: {error}")
            self._judge_failed = True
            return None

    def _enter(self, row: LabelledQuestion, answers: Mapping[ArmName, StoredAnswer], *, kind: int) -> None:
        reward = self.settings.reward
        quality = {arm: self._quality(row, answer) for arm, answer in answers.items()}
        scores = {arm: float(score) for arm, score in quality.items() if score is not None}
        if len(scores) < len(answers):
            self.unjudged += 1
            return
        costs = {arm: cost_of_terms(answer.steps, answer.cost, terms=reward.cost) for arm, answer in answers.items()}
        before = self.race.running
        self.race.add(quality=scores, cost=costs, kind=kind)
        self.records += [
            log_record(row.question, answer, quality=scores[arm], arms=tuple(answers), reward=reward)
            for arm, answer in answers.items()
        ]
        for arm in before:
            if arm not in self.race.running:
                self.warn(f"{arm} left the race after {self.race.left[arm]} questions: others are better everywhere")
        running = ", ".join(self.race.running)
        done = self.race.questions + self.unjudged
        self.progress(f"questions (in the race: {running}; {self.spent:.4g} dollars)", done, len(self.rows))
        if len(self.race.running) == 1 and self.ended is None:
            self.ended = f"only {running} is left in the race"

    def _quality(self, row: LabelledQuestion, stored: StoredAnswer) -> float | None:
        if row.answers:
            return quality_of(labelled_quality(row, stored, family=self.family), reward=self.settings.reward)
        return 0.0 if stored.failed or is_blank(stored.answer) else stored.score

    async def _look(self) -> None:
        due = {look for look in looks(len(self.rows)) if look <= self.race.questions} - self._looks_done
        if due and self.ended is None:
            self._looks_done |= due
            if await asyncio.to_thread(self.is_known, [*self.records]):
                self.ended = f"the verdict is known after {self.race.questions} questions"


def facts_of(run: PairedRun) -> dict[str, Any]:
    return {
        "answered": run.race.questions,
        "of": len(run.rows),
        "dollars": run.spent,
        "left": dict(run.race.left),
        "unjudged": run.unjudged,
        "ended": run.ended or "every question was answered",
    }

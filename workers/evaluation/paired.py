"""Paired runs: the configured arms on the same questions, until the verdict is known or the money is spent.

Every arm answers the first questions; then an arm goes on only while it may be the best somewhere (`Race`). Each
question is scored as soon as all arms of the race have answered it: by its right answers, or by the judge.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.offline.advice import CONFIDENCE
from ragbandit.router.offline.estimation import Progress
from ragbandit.shared.confidence_sequences import log_mean_exp
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.text_forms import is_blank
from ragbandit.shared.types import ArmName, FeatureRows, Json, Matrix, Outcome
from ragbandit.strategies.base import Passage, Request
from ragbandit.workers.evaluation.results import labelled_quality, log_record, quality_of
from ragbandit.workers.evaluation.runs import Bench, LabelledQuestion, StoredAnswer, Work, in_parallel
from ragbandit.workers.judge.checks import JudgeOfArm

#: questions after which the verdict is looked at for the first time; each next look is at twice as many
FIRST_LOOK: Final = 50
#: kinds of questions, where the file names no data sets, and questions of each in the mean at least
_KINDS: Final = 4
_OF_A_KIND: Final = 25
#: data sets that count as kinds
_MOST_DATASETS: Final = 8


def looks(questions: int) -> tuple[int, ...]:
    """After how many questions the verdict is looked at, before the end."""
    count = max(0, math.ceil(math.log2(max(1, questions / FIRST_LOOK))))
    return tuple(FIRST_LOOK * 2**number for number in range(count))


def shared_confidence(questions: int) -> float:
    """Confidence at each look at a run over so many questions: the looks share the error (Bonferroni)."""
    return 1.0 - (1.0 - CONFIDENCE) / (len(looks(questions)) + 1)


def kinds_of(rows: Sequence[LabelledQuestion], features: FeatureRows | None) -> list[int]:
    """The kind of each question, from 0: its data set where the file names two to eight, else a cluster (k-means)."""
    names = sorted({row.dataset or "" for row in rows})
    if 2 <= len(names) <= _MOST_DATASETS:
        return [names.index(row.dataset or "") for row in rows]
    count = min(_KINDS, len(rows) // _OF_A_KIND)
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


#: questions that all arms answer before one may leave
LEAST: Final = 12
#: stakes, as shares of what the capital may lose in one question
_STAKES: Final = np.array([0.1, 0.3, 0.6, 0.9])
#: chance that an arm leaves which is the best somewhere
ALPHA: Final = 0.05


class Race:
    """The arms that are still in the race, and after how many questions the others left.

    An arm goes on only while it may be the best somewhere: at a weight of cost, on a kind of question or on all. It
    leaves when, at each of these, bets on the rivals' rewards minus its own have made too much money for it to be the
    best there (Waudby-Smith and Ramdas 2023, "Estimating means of bounded random variables by betting"). The capital of
    a bet is a supermartingale while the arm is the best, and so is the average over bets and rivals: whenever one
    looks, an arm that is the best somewhere has left with a chance of ALPHA / arms at most, any of them with ALPHA.
    """

    def __init__(
        self, arms: Sequence[ArmName], *, weights: Sequence[float], bounds: tuple[float, float], kinds: int
    ) -> None:
        """weights: of cost, >= 0. bounds: of the rewards. kinds: of questions, numbered from 0."""
        self.arms = tuple(arms)
        self.running: tuple[ArmName, ...] = self.arms
        #: arm -> questions after which it left
        self.left: dict[ArmName, int] = {}
        self.questions = 0
        self._weights, self._bounds, self._threshold = np.asarray(weights), bounds, np.log(len(arms) / ALPHA)
        # log capital against "the arm is the best": (weights, kinds and all, rival, arm, stakes)
        self._capital = np.zeros((len(weights), kinds + 1, len(arms), len(arms), len(_STAKES)))

    def add(self, *, quality: Mapping[ArmName, float], cost: Mapping[ArmName, float], kind: int = 0) -> None:
        """A question that every arm of `running` answered; quality in [0, 1], cost >= 0. Arms that lose here leave."""
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
        lost = (self._log_capital() >= self._threshold).all(axis=(0, 1))
        gone = [arm for place, arm in enumerate(self.arms) if lost[place] and arm in self.running]
        if len(gone) < len(self.running):
            self.left |= dict.fromkeys(gone, self.questions)
            self.running = tuple(arm for arm in self.running if arm not in gone)

    def _log_capital(self) -> Matrix:
        """Mean over rivals and stakes, by weight, kind and arm: (weights, kinds and all, arms)."""
        rivals = np.moveaxis(self._capital, 3, 2)  # (weights, kinds, arm, rival, stakes)
        others = ~np.eye(len(self.arms), dtype=np.bool_)
        return log_mean_exp(np.moveaxis(rivals[:, :, others].reshape(*rivals.shape[:3], -1), -1, 0))


@dataclass(kw_only=True)
class PairedRun:
    """A run of arms on questions. `records` is valid when `run` ends, also if it raises."""

    #: each question once
    rows: Sequence[LabelledQuestion]
    kinds: Sequence[int]
    bench: Bench
    race: Race
    settings: Settings
    family: str
    #: scores questions without right answers
    judge: JudgeOfArm | None
    #: dollars that may be spent; None: no limit
    budget: float | None
    #: whether the verdict on these records is known; it runs in a thread
    is_known: Callable[[list[dict[str, Json]]], bool]
    progress: Progress
    #: prints a warning, or that an arm left the race
    tell: Callable[[str], None]
    spent: float = 0.0
    #: questions that the judge gave no score for: they count for no arm
    unjudged: int = 0
    #: why it ended before the last question
    ended: str | None = None
    #: a logged decision for each arm of each question that is whole
    records: list[dict[str, Json]] = field(default_factory=list)
    #: questions that an arm failed at, in this run
    failures: Counter[ArmName] = field(default_factory=Counter)
    _done: int = 0
    #: questions of which an answer was asked now, and not read from the file; what their answers cost by `reward.cost`
    _asked: int = 0
    _charged: float = 0.0
    _silent: bool = False
    _looked: set[int] = field(default_factory=set)

    def finish(self, *, concurrency: int) -> None:
        """`run` in an event loop of its own, also from a notebook; Ctrl-C ends it early."""
        try:
            if not _has_event_loop():
                asyncio.run(self.run(concurrency=concurrency))
                return
            with ThreadPoolExecutor(1) as pool:
                pool.submit(asyncio.run, self.run(concurrency=concurrency)).result()
        except KeyboardInterrupt:
            self.ended = "Ctrl-C"

    async def run(self, *, concurrency: int) -> None:
        """Ask at most `concurrency` questions at a time. Closes generators and retrievers."""
        try:
            await in_parallel(self._open(), self._ask, concurrency=concurrency)
        finally:
            for arm, count in self.failures.items():
                self.tell(f"{arm} failed at {count} of the questions")
            await self.bench.close()
            if self.judge is not None:
                await self.judge.generator.close()

    def _open(self) -> Iterator[tuple[LabelledQuestion, int]]:
        for row, kind in zip(self.rows, self.kinds, strict=True):
            if self.ended is not None:
                return
            yield row, kind

    async def _ask(self, question: tuple[LabelledQuestion, int]) -> None:
        """Ask the arms of the race one question, which enters the race then. Stored answers are not asked again."""
        row, kind = question
        running, known = self.race.running, dict[ArmName, StoredAnswer]()
        work = [each for each in self.bench.work([row]) if each.arm in running]
        missing = {each.arm for each in work if not self._is_stored(row, each)}
        for each in work:
            known[each.arm] = await self._answer(row, each) if each.arm in missing else self._stored(each)
        if missing:
            terms = self.settings.reward.cost
            self._asked += 1
            self._charged += sum(cost_of_terms(known[arm].steps, known[arm].cost, terms=terms) for arm in missing)
            self._check_costs()
        self._enter(row, known, kind=kind)
        await self._look()

    def _check_costs(self) -> None:
        """Warn once, after LEAST questions that were asked now, if nothing that is charged was reported."""
        if self._asked == LEAST and self.budget is not None and self.spent == 0.0:
            remedy = "report dollars (a generator: token_prices)"
            self.tell(f"the answers to {LEAST} questions cost 0 dollars: --budget ends nothing unless arms {remedy}")
        if self._asked == LEAST and self._charged == 0.0:
            terms = ", ".join(self.settings.reward.cost)
            self.tell(f"the answers to {LEAST} questions cost nothing by reward.cost ({terms}): every arm looks free")

    def _stored(self, work: Work) -> StoredAnswer:
        return self.bench.answers.found[work.key]

    def _is_stored(self, row: LabelledQuestion, work: Work) -> bool:
        stored = self.bench.answers.found.get(work.key)
        return stored is not None and bool(row.answers or stored.score is not None or is_blank(stored.answer))

    async def _answer(self, row: LabelledQuestion, work: Work) -> StoredAnswer:
        answers = self.bench.answers
        outcome = await self.bench.answer(work)
        self.spent += outcome.cost.dollars
        if outcome.status == "failed":
            self.failures[work.arm] += 1
            if self.failures[work.arm] == 1:
                self.tell(f"{work.arm} failed: {outcome.error}")
        if not row.answers and self.judge is not None and not is_blank(outcome.answer):
            answers.add(outcome, work=work, score=await self._judged(row, outcome))
        if self.budget is not None and self.spent >= self.budget and self.ended is None:
            self.ended = f"the budget of {self.budget:g} dollars is spent"
        return self._stored(work)

    async def _judged(self, row: LabelledQuestion, outcome: Outcome) -> float | None:
        """The judge's score of an answer; None where it gives none."""
        assert self.judge is not None
        sources = [Passage(id=one.id, title=one.title, text=one.text) for one in outcome.sources]
        try:
            prompt, score = self.judge.ask(question=row.question, answer=outcome.answer or "", sources=sources)
            deadline = time.monotonic() + self.settings.judge.seconds
            request = Request(prompt=prompt, max_tokens=self.judge.max_tokens, deadline=deadline)
            done = await self.judge.generator.complete(request)
            self.spent += done.dollars
            return score(done.text)
        except ArmFailed as error:
            if not self._silent:
                self.tell(f"the judge gave no score, and the question counts for no arm: {error}")
            self._silent = True  # the same fault once is enough
            return None

    def _enter(self, row: LabelledQuestion, known: Mapping[ArmName, StoredAnswer], *, kind: int) -> None:
        """Let a question that all of its arms have answered enter the race."""
        reward = self.settings.reward
        quality = {arm: self._quality(row, stored) for arm, stored in known.items()}
        self._done += 1
        if any(value is None for value in quality.values()):
            self.unjudged += 1
            return
        scores = {arm: float(value or 0.0) for arm, value in quality.items()}
        costs = {arm: cost_of_terms(known[arm].steps, known[arm].cost, terms=reward.cost) for arm in known}
        before = self.race.running
        self.race.add(quality=scores, cost=costs, kind=kind)
        self.records += [
            log_record(row.question, known[arm], quality=scores[arm], arms=tuple(known), reward=reward) for arm in known
        ]
        for arm in before:
            if arm not in self.race.running:
                self.tell(f"{arm} left the race after {self.race.left[arm]} questions: others are better everywhere")
        running = ", ".join(self.race.running)
        self.progress(f"questions (in the race: {running}; {self.spent:.4g} dollars)", self._done, len(self.rows))
        if len(self.race.running) == 1 and self.ended is None:
            self.ended = f"only {running} is left in the race"

    def _quality(self, row: LabelledQuestion, stored: StoredAnswer) -> float | None:
        if row.answers:
            return quality_of(labelled_quality(row, stored, family=self.family), reward=self.settings.reward)
        return 0.0 if stored.failed or is_blank(stored.answer) else stored.score

    async def _look(self) -> None:
        """Look at the verdict where it is time to."""
        due = [one for one in looks(len(self.rows)) if one <= self.race.questions and one not in self._looked]
        if due and self.ended is None:
            self._looked.update(due)
            if await asyncio.to_thread(self.is_known, [*self.records]):
                self.ended = f"the verdict is known after {self.race.questions} questions"


def _has_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def facts_of(run: PairedRun) -> dict[str, Any]:
    """What the run was, for the page and JSON."""
    return {
        "answered": run.race.questions,
        "of": len(run.rows),
        "dollars": run.spent,
        "left": dict(run.race.left),
        "unjudged": run.unjudged,
        "ended": run.ended or "every question was answered",
    }

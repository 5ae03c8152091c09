"""Expected dollars of an answer and of its score: from earlier answers of the arm, else from the settings."""

import contextlib
import math
import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.reporting.compared_questions import AnswerCost, ComparedQuestion, ComparedQuestions
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs.judge_days import mean_dollars
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import NotFound
from ragbandit.shared.model_servers.token_usage import Tokens
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import ArmName
from ragbandit.workers.asking.scoring import Scorer
from ragbandit.workers.judge.judge import REPLY_TOKENS
from ragbandit.workers.pairs.answers import BoughtAnswers

#: tokens of an answer of an arm that has not been asked yet
_ASSUMED: Final = Tokens(read=2000, written=500)
#: effective number of answers above which weights are used, and number from which the question's length counts
_EFFECTIVE: Final = 10.0
#: number of payments (of an arm, or for scores) from which they may also lower the expected dollars
_ENOUGH: Final = 5
#: number of stored answers whose prompts of the judge give the price of scores before a score is paid
_SAMPLE: Final = 20
#: duration of the live traffic whose judgements price a score, seconds
_JUDGED_S: Final = 30 * 86_400.0
#: key of the payments for scores
_SCORE: Final = ArmName("")


@dataclass(frozen=True, kw_only=True, slots=True)
class _AnswerPrice:
    """Expected dollars of an arm's answer: `base` + `slope` x characters of the question, from `least` to `most`."""

    base: float
    slope: float = 0.0
    least: float = 0.0
    most: float = math.inf

    @classmethod
    def of(cls, costs: Sequence[AnswerCost]) -> "_AnswerPrice":
        """The weighted mean of costs; if a few weights outweigh the rest, an unweighted line by question length."""
        lengths, dollars, weights = np.array(costs).T
        if weights.sum() ** 2 > _EFFECTIVE * (weights**2).sum():
            return cls(base=float(np.average(dollars, weights=weights)))
        spread = lengths.var()
        has_line = len(costs) >= _EFFECTIVE and spread > 0.0
        slope = np.mean((lengths - lengths.mean()) * dollars) / spread if has_line else 0.0
        base, ends = dollars.mean() - slope * lengths.mean(), (float(dollars.min()), float(dollars.max()))
        return cls(base=float(base), slope=float(slope), least=ends[0], most=ends[1])

    def at(self, length: int) -> float:
        return min(max(self.base + self.slope * length, self.least), self.most)


@dataclass(kw_only=True)
class AnswerPrices:
    """Expected dollars of answers and scores, corrected by the payments of runs of the present arms."""

    #: arm -> price of its answers, before it is corrected
    arms: Mapping[ArmName, _AnswerPrice]
    #: mean dollars of a score, before they are corrected
    score: float
    #: assumptions about an arm or a judge for which no price is known, in words
    assumed: Sequence[str] = ()
    #: arm or _SCORE -> (paid dollars, expected dollars, number of payments)
    _paid: dict[ArmName, tuple[float, float, int]] = field(default_factory=dict)

    def of_answer(self, arm: ArmName, *, question: ComparedQuestion) -> float:
        """Expected dollars of an answer."""
        return self._correct(arm, expected=self._uncorrected(arm, question=question))

    def of_score(self) -> float:
        return self._correct(_SCORE, expected=self.score)

    def note_answer(self, arm: ArmName, dollars: float, *, question: ComparedQuestion) -> None:
        """Note the cost of an answer of the present arm."""
        self._add(arm, dollars, expected=self._uncorrected(arm, question=question))

    def note_score(self, dollars: float) -> None:
        self._add(_SCORE, dollars, expected=self.score)

    def _uncorrected(self, arm: ArmName, *, question: ComparedQuestion) -> float:
        """The dollars of the arm's stored answer to this question, else its price."""
        is_own = question.arm == arm and question.dollars is not None
        return question.dollars or 0.0 if is_own else self.arms[arm].at(question.length)

    def _add(self, name: ArmName, dollars: float, *, expected: float) -> None:
        paid, before, count = self._paid.get(name, (0.0, 0.0, 0))
        self._paid[name] = (paid + dollars, before + expected, count + 1)

    def _correct(self, name: ArmName, *, expected: float) -> float:
        """`expected`, corrected by the ratio of paid to expected dollars so far.

        At least `expected` while fewer than _ENOUGH payments are known.
        """
        paid, before, count = self._paid.get(name, (0.0, 0.0, 0))
        if not count:
            return expected
        corrected = paid / before * expected if before else paid / count
        return corrected if count >= _ENOUGH else max(expected, corrected)


def expected_prices(
    questions: ComparedQuestions,
    answers: BoughtAnswers,
    *,
    arms: Collection[ArmName],
    generators: Mapping[str, GeneratorSettings],
    judge: GeneratorSettings | None,
    scorer: Scorer | None,
    store: DecisionStore,
) -> AnswerPrices:
    """Prices from the answers of the period, or from the models' prices, adjusted to the payments of earlier runs.

    generators: arm of workers -> its generator
    """
    paid = answers.paid(arms)
    known, assumed = dict[ArmName, _AnswerPrice](), list[str]()
    for name in arms:
        dollars, costs = _assumed_dollars(generators.get(name)), questions.costs
        known[name] = _AnswerPrice.of(costs[name]) if name in costs else _AnswerPrice(base=dollars)
        if dollars and name not in costs and all(one.arm != name for one in paid):
            assumed.append(f"{name}: {_ASSUMED.read:,} tokens of a prompt, {_ASSUMED.written:,} of a reply")
    score = _score_dollars(answers.score_dollars(arms), scorer=scorer, database=store.database)
    if score is None and scorer is not None:
        tokens = _judged_tokens(questions, scorer=scorer, store=store)
        score = statistics.fmean([_assumed_dollars(judge, one) for one in tokens] or [_assumed_dollars(judge)])
        assumed += [f"the judge: its prompts, {REPLY_TOKENS} tokens of a reply"] if score else []
    prices = AnswerPrices(arms=known, score=score or 0.0, assumed=assumed)
    by_id = {one.id: one for one in questions.differing}
    for one in paid:
        prices.note_answer(one.arm, one.cost.dollars, question=by_id[one.decision_id])
    return prices


def _judged_tokens(questions: ComparedQuestions, *, scorer: Scorer, store: DecisionStore) -> list[Tokens]:
    """Estimated tokens of scores, from the stored answers to the first _SAMPLE questions that can be asked."""
    tokens = list[Tokens | None]()
    for question in questions.askable[:_SAMPLE]:
        with contextlib.suppress(NotFound):  # the question was erased meanwhile
            record = store.record(question.id)
            if record.outcome is not None and not is_blank(record.outcome.answer):
                tokens.append(scorer.estimate_tokens(record.decision.query.text, record.outcome))
    return [one for one in tokens if one is not None]


def _score_dollars(earlier: Sequence[float], *, scorer: Scorer | None, database: Database) -> float | None:
    """Mean dollars of scores: of the `earlier` ones, else of the judge in live traffic; None without any score."""
    if scorer is None or not scorer.by_model:
        return 0.0
    if earlier:
        return statistics.fmean(earlier)
    with database.read() as connection:
        return mean_dollars(connection, since=time.time() - _JUDGED_S)


def _assumed_dollars(generator: GeneratorSettings | None, tokens: Tokens = _ASSUMED) -> float:
    """Dollars of tokens of a generator's model; 0.0 if it has no prices."""
    price = None if generator is None else generator.prices_by_model.get(generator.model)
    return 0.0 if price is None else tokens.dollars(price)

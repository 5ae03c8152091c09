"""`ragbandit report --decide` on made lives: both arms answer a growing random sample of the questions.

The cost of an answer follows the question. In every second life, one of ten questions cannot be asked again, and the
judge refuses one of fifty answers. The truth is what the answers of both ways are worth in the mean.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.coverage.lives import ARMS, Life
from ragbandit.router.comparison import Difference
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.reporting.compared_questions import NOT_STORED, ComparedQuestion, ComparedQuestions
from ragbandit.router.reporting.paired_comparison import Pairing, paired_comparison
from ragbandit.router.storage.paired_answers import PairedAnswer
from ragbandit.shared.types import ArmName, Cost, DecisionId, Matrix

#: numbers of asked questions after which the interval is checked
ASKED: Final = (5, 20, 60, 200, 600)
#: the fixed arm of the other way
AGAINST: Final = ArmName(ARMS[1])
#: all made answers; one judge has scored them
MADE: Final = Pairing(judge="", rater="made", versions=dict.fromkeys(map(ArmName, ("small", "large", *ARMS)), ""))
_REWARD: Final = RewardSettings(weight=10.0, cost={"dollars": 1.0})
_DOLLARS: Final = np.array([0.02, 0.004, 0.0004])
_NOT_ASKABLE, _REFUSED = 0.1, 0.02


@dataclass(frozen=True, kw_only=True)
class AskedLife:
    """The questions of a life, and what both arms would answer to each of them. Matrices have shape (n, K)."""

    questions: ComparedQuestions
    quality: Matrix
    dollars: Matrix
    #: whether the judge refuses to score the answer
    refused: Matrix
    truth: float
    true_quality: float

    @classmethod
    def of(cls, life: Life, *, seed: int) -> "AskedLife":
        random, count, rows = np.random.default_rng([seed, 5]), len(life.action), np.arange(len(life.action))
        quality = (random.random(life.chance.shape) < life.chance).astype(float)
        dollars = _DOLLARS * np.exp(0.8 * life.features[:, :1] + random.normal(0.0, 0.5, life.chance.shape))
        right, wrong = (np.clip(q - _REWARD.weight * dollars, _REWARD.minimum, _REWARD.maximum) for q in (1.0, 0.0))
        value = life.chance * right + (1.0 - life.chance) * wrong
        fixed = ARMS.index(AGAINST)
        draws, is_whole = random.random(count), seed % 2 == 1
        is_askable = (random.random(count) >= _NOT_ASKABLE) | is_whole
        differing = [
            ComparedQuestion(
                id=DecisionId(str(row)),
                arm=ArmName(ARMS[life.action[row]]),
                cost=float(dollars[row, life.action[row]]),
                obstacle=None if is_askable[row] else NOT_STORED,
            )
            for row in np.argsort(draws).tolist()
            if life.action[row] != fixed
        ]
        return cls(
            questions=ComparedQuestions(against=AGAINST, routed=count, differing=differing),
            quality=quality,
            dollars=dollars,
            refused=((random.random(life.chance.shape) < _REFUSED) & (not is_whole)).astype(float),
            truth=float((value[rows, life.action] - value[:, fixed]).mean()),
            true_quality=float((life.chance[rows, life.action] - life.chance[:, fixed]).mean()),
        )

    def after(self, asked: int) -> tuple[Difference, Difference]:
        """Differences of reward and quality when the first `asked` questions were asked."""
        answers = [
            self._answer(question, arm)
            for question in self.questions.askable[:asked]
            for arm in (question.arm, AGAINST)
        ]
        found = paired_comparison(self.questions, MADE, answers, setting=_REWARD).comparison
        return found.reward, found.quality

    def _answer(self, question: ComparedQuestion, arm: ArmName) -> PairedAnswer:
        row, place = int(question.id), ARMS.index(arm)
        quality = None if self.refused[row, place] else float(self.quality[row, place])
        return made_answer(question.id, arm, quality=quality, dollars=float(self.dollars[row, place]))


def made_answer(decision: DecisionId, arm: ArmName, *, quality: float | None, dollars: float) -> PairedAnswer:
    """The answer of an arm that was asked again. quality: None if the judge refuses to score it."""
    return PairedAnswer(
        decision_id=decision,
        arm=arm,
        version="",
        judge="",
        rater="made",
        is_stored=False,
        status="answered",
        answer="",
        cost=Cost(dollars=dollars),
        steps=1.0,
        stop_reason="answered",
        error=None,
        quality=quality,
        unjudged="refused" if quality is None else None,
        dollars=dollars,
        actor="made",
        made_at=0.0,
    )

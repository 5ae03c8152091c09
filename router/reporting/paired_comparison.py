"""What was served compared with always one arm, by the answers of both to a random sample of the period's questions.

The mean over the routed questions of (value of what was served - value of the arm's answer). Value is quality -
`reward.weight` x cost, within the bounds of rewards, as in the report. Both answers were judged by one judge.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final

import numpy as np

from ragbandit.router.comparison import MARGIN, NOT_KNOWN, Difference, compare
from ragbandit.router.config.sections import RewardSettings
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.reporting.deciders import UNSTEADY
from ragbandit.router.reporting.paired_difference import DifferenceSample, Ends, expected_half_width, sampled_difference
from ragbandit.router.reporting.paired_questions import ComparedQuestion, ComparedQuestions, read_paired_questions
from ragbandit.router.reporting.reading import PairedComparison, ReportScope
from ragbandit.router.storage.access.shared_secrets import DRAWS, known_secret
from ragbandit.router.storage.label_queue import LABEL_QUEUE
from ragbandit.router.storage.paired_answers import PairedAnswer, answers_to, pairing_reader
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.positions import move_position, position_of
from ragbandit.shared.texts.formats import counted, money, roughly
from ragbandit.shared.types import ArmName, DecisionId, Json

#: name of what was served in comparisons
ROUTING: Final = "routing"
#: numbers of questions at which a forecast is computed
_FORECASTS: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairing:
    """The answers that are compared: those scored by one judge, of one definition of each arm."""

    judge: str
    versions: Mapping[ArmName, str]
    #: whether the judge is the model of `judge.generator`
    by_model: bool = False

    @property
    def by_people(self) -> bool:
        """Whether people label the answers."""
        return self.judge == LABEL_QUEUE

    def of(self, answers: Iterable[PairedAnswer]) -> dict[DecisionId, dict[ArmName, PairedAnswer]]:
        """Decision -> arm -> its answer, if it ended: it has a score, or the judge refused one.

        An arm that failed when it was asked again is asked once more by the next run.
        """
        return self._by_arm(answers, has_ended=True)

    def waiting(self, answers: Iterable[PairedAnswer]) -> dict[DecisionId, dict[ArmName, PairedAnswer]]:
        """As `of`, for answers that wait for a person's label."""
        is_answer = (one for one in answers if self.by_people and one.status != "failed")
        return self._by_arm(is_answer, has_ended=False)

    def unended(self, answers: Iterable[PairedAnswer]) -> list[PairedAnswer]:
        """Answers that neither count nor wait: the arm or the judge failed. The next run asks them again."""
        answers = list(answers)
        others = (self.of(answers), self.waiting(answers))
        return [
            one
            for one in answers
            if (one.judge, one.version) == (self.judge, self.versions.get(one.arm))
            and all(one.arm not in pairs.get(one.decision_id, {}) for pairs in others)
        ]

    def _by_arm(
        self, answers: Iterable[PairedAnswer], *, has_ended: bool
    ) -> dict[DecisionId, dict[ArmName, PairedAnswer]]:
        pairs: dict[DecisionId, dict[ArmName, PairedAnswer]] = {}
        for one in answers:
            is_meant = (one.judge, one.version) == (self.judge, self.versions.get(one.arm))
            if is_meant and has_ended == (one.quality is not None or one.unjudged is not None):
                pairs.setdefault(one.decision_id, {})[one.arm] = one
        return pairs


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measure:
    """A measure of an answer, by its quality and its cost: the reward, or the quality itself."""

    setting: RewardSettings
    is_reward: bool

    def value(self, quality: float, *, cost: float) -> float:
        if not self.is_reward:
            return quality
        value = quality - self.setting.weight * cost if self.setting.weight else quality
        return min(max(value, self.setting.minimum), self.setting.maximum)

    def ends(self, answer: PairedAnswer | None, *, cost: float | None) -> Ends:
        """The value of an answer.

        cost: cost of an answer whose quality is not known; None if it is not known either.
        """
        if answer is None:
            charged = any(self.setting.cost.values())
            dearest = (math.inf if charged else 0.0) if cost is None else cost
            return Ends(low=self.value(0.0, cost=dearest), high=self.value(1.0, cost=cost or 0.0))
        cost = cost_of_terms(answer.steps, answer.cost, terms=self.setting.cost)
        if answer.quality is None:
            return Ends(low=self.value(0.0, cost=cost), high=self.value(1.0, cost=cost))
        value = self.value(answer.quality, cost=cost)
        return Ends(low=value, high=value)


def paired_sample(
    questions: ComparedQuestions,
    pairs: Mapping[DecisionId, Mapping[ArmName, PairedAnswer]],
    *,
    setting: RewardSettings,
    is_reward: bool = True,
    whole: bool = False,
) -> DifferenceSample:
    """The differences of reward, or of quality.

    whole: False for the questions up to the first one without both answers. True for all up to the last one with both;
        a question between them that was not asked then lies between bounds
    """
    measure, against = _Measure(setting=setting, is_reward=is_reward), questions.against
    unknown = measure.ends(None, cost=None)
    least, most = unknown.low - unknown.high, unknown.high - unknown.low

    def ends(question: ComparedQuestion) -> Ends:
        answers = pairs.get(question.id, {})
        served = measure.ends(answers.get(question.arm), cost=question.cost)
        fixed = measure.ends(answers.get(against), cost=None)
        return Ends(low=served.low - fixed.high, high=served.high - fixed.low)

    askable = questions.askable
    drawn = list(takewhile(lambda one: is_asked(one, pairs, against=against), askable))
    if whole:
        places = [place for place, one in enumerate(askable) if is_asked(one, pairs, against=against)]
        drawn = askable[: places[-1] + 1] if places else []
    return DifferenceSample(
        asked=[ends(one) for one in drawn],
        drawn_from=len(askable),
        others=[ends(one) for one in questions.differing if one.obstacle is not None],
        questions=questions.questions,
        least=least,
        most=most,
    )


def is_asked(
    question: ComparedQuestion, pairs: Mapping[DecisionId, Mapping[ArmName, PairedAnswer]], *, against: ArmName
) -> bool:
    answers = pairs.get(question.id, {})
    return question.arm in answers and against in answers


def paired_comparison(
    questions: ComparedQuestions,
    pairs: Mapping[DecisionId, Mapping[ArmName, PairedAnswer]],
    *,
    setting: RewardSettings,
    rater: str,
    waiting: int = 0,
    is_steady: bool = True,
) -> PairedComparison:
    """Compare by the answers that are there. pairs: see `Pairing.of`. waiting: answers that wait for a label.

    is_steady: whether the policy decides most questions. If not, two ways that hardly differ are not "as good"
    """
    against = questions.against
    asked = [one for one in questions.differing if is_asked(one, pairs, against=against)]
    answers = [answer for one in asked for answer in (pairs[one.id][one.arm], pairs[one.id][against])]
    unjudged = {answer.decision_id for answer in answers if answer.quality is None}
    reward, quality = (
        _difference(questions, pairs, setting=setting, is_reward=is_reward) for is_reward in (True, False)
    )
    comparison = compare(
        ROUTING,
        f"always {against}",
        second_arm=against,
        design="asked again",
        questions=questions.questions,
        rated=len(asked),
        reward=reward,
        quality=quality,
        needed=1.0,
        unsteady=None if is_steady else UNSTEADY,
    )
    result = PairedComparison(
        comparison=comparison,
        same=questions.questions - len(questions.differing),
        differing=len(questions.differing),
        asked=len(asked),
        unjudged=len(unjudged),
        waiting=waiting,
        not_askable=questions.obstacles,
        dollars=math.fsum(answer.dollars for answer in answers),
        judge=rater,
    )
    if comparison.verdict == NOT_KNOWN and reward.verdict() == NOT_KNOWN:
        missing = _missing(result, sample=paired_sample(questions, pairs, setting=setting, whole=True))
        result = replace(result, comparison=replace(comparison, missing=missing))
    return result


def _difference(
    questions: ComparedQuestions,
    pairs: Mapping[DecisionId, Mapping[ArmName, PairedAnswer]],
    *,
    setting: RewardSettings,
    is_reward: bool,
) -> Difference:
    """The tighter of the bounds by two samples, see `whole` of `paired_sample`.

    Both samples are beginnings of one random order, and the bounds of `sampled_difference` hold for all beginnings at
    once with one probability of error. So both hold together.
    """
    both = [
        sampled_difference(paired_sample(questions, pairs, setting=setting, is_reward=is_reward, whole=whole))
        for whole in (False, True)
    ]
    low = max(one.low for one in both if one.low is not None)
    high = min(one.high for one in both if one.high is not None)
    estimate = both[1].estimate
    return replace(both[1], low=low, high=high, estimate=estimate and min(max(estimate, low), high))


def _missing(result: PairedComparison, *, sample: DifferenceSample) -> str:
    """How many more questions would have to be asked, and for how much, if the estimate stays."""
    asked, estimate = result.asked, result.comparison.reward.estimate
    if result.waiting:
        return f"{counted(result.waiting, 'label')} of answers that wait on the page Labels"
    if estimate is None:
        return "answers of both to the same questions" if sample.drawn_from else "questions that can be asked again"
    needed = max(estimate + MARGIN, -estimate)
    counts = np.unique(np.linspace(asked + 1, sample.drawn_from, _FORECASTS).astype(np.intp)).tolist()
    enough = next((n for n in counts if expected_half_width(n, sample=sample) <= needed), None)
    if enough is None:
        return "more than these questions can show: the difference is close to zero, or too much cannot be asked"
    more, each = float(enough - asked), result.dollars / asked
    price = f", about {money(float(f'{each * more:.2g}'), 'dollars')}" if each else ""
    return f"{roughly(more)} more {'question' if more < 1.5 else 'questions'} that both answer{price}"


def with_earlier_arms(database: Database, pairing: Pairing, *, label: str) -> Pairing:
    """Add the arms that earlier runs of this judge asked, and this one cannot: their answers still count. Raises
    StoreError.
    """
    with database.read() as connection:
        stored = position_of(connection, pairing_reader(label))
    earlier = stored["versions"] if stored and stored["judge"] == pairing.judge else {}
    return replace(pairing, versions={**earlier, **pairing.versions})


def keep_pairing(database: Database, pairing: Pairing, *, label: str, rater: str, now: float) -> None:
    """Store which answers count from now on in reports. rater: name of the judge. Raises StoreError.

    pairing: of `with_earlier_arms`, so that the run ends by the verdict that reports print
    """
    position: dict[str, Json] = {"judge": pairing.judge, "versions": {**pairing.versions}, "rater": rater}
    position["by_model"] = pairing.by_model
    with database.write() as connection:
        earlier = position_of(connection, pairing_reader(label)).get("asked", ())
        position["asked"] = sorted({*earlier, *pairing.versions})  # the audit accepts answers by earlier judges, too
        move_position(connection, pairing_reader(label), position=position, now=now)


def stored_comparison(
    database: Database, scope: ReportScope, *, against: ArmName, is_steady: bool
) -> PairedComparison | None:
    """The comparison by the stored answers; None if no question of the period was asked again. Raises StoreError.

    is_steady: see `paired_comparison`
    """
    with database.read() as connection:
        stored = position_of(connection, pairing_reader(scope.label))
    secret = known_secret(database, name=DRAWS) if stored else None
    if scope.reward is None or secret is None or against not in stored["versions"]:
        return None
    by_model = bool(stored.get("by_model"))
    pairing = Pairing(judge=stored["judge"], versions=stored["versions"], by_model=by_model)
    questions = counted_questions(database, scope, pairing, against=against, secret=secret)
    answers = stored_answers(database, questions)
    waiting = sum(map(len, pairing.waiting(answers).values()))
    how: dict[str, Any] = {"rater": stored["rater"], "waiting": waiting, "is_steady": is_steady}
    result = paired_comparison(questions, pairing.of(answers), setting=scope.reward, **how)
    return result if result.asked or waiting else None


def counted_questions(
    database: Database, scope: ReportScope, pairing: Pairing, *, against: ArmName, secret: bytes
) -> ComparedQuestions:
    """The questions by which a verdict is computed, by a run and by a report: a question counts if its arm was asked,
    also if the arm cannot be run now. Raises StoreError.
    """
    arms, by_model = pairing.versions.keys(), pairing.by_model
    return read_paired_questions(database, scope, against=against, secret=secret, arms=arms, by_model=by_model)


def stored_answers(database: Database, questions: ComparedQuestions) -> list[PairedAnswer]:
    """The stored answers to the differing questions, by any judge."""
    with database.read() as connection:
        return list(answers_to(connection, [one.id for one in questions.differing]))

"""What was served compared with always one arm, by the answers of both to a random sample of the period's questions.

The estimate is the mean over the routed questions of (value of what was served - value of the arm's answer). A value is
quality - `reward.weight` x cost, within the bounds of rewards, as in the report. One judge judged both answers.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Final

import numpy as np

from ragbandit.router.comparison import MARGIN, NOT_KNOWN, Difference, compare
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.router.reporting.compared_questions import ComparedQuestion, ComparedQuestions, read_compared_questions
from ragbandit.router.reporting.deciders import UNSTEADY
from ragbandit.router.reporting.paired_difference import DifferenceSample, expected_half_width, sampled_difference
from ragbandit.router.reporting.reading import PairedComparison, Report, ReportScope
from ragbandit.router.storage.access.shared_secrets import DRAWS, stored_secret
from ragbandit.router.storage.label_queue import LABEL_QUEUE
from ragbandit.router.storage.paired_answers import PairedAnswer, answers_to, pairing_key
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.positions import move_position, position_of
from ragbandit.shared.texts.formats import counted, money, rough_count
from ragbandit.shared.types import ArmName, DecisionId, Json, Matrix

#: name of what was served in comparisons
ROUTING: Final = "routing"
#: a forecast tries this number of sample sizes
_FORECASTS: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairing:
    """The answers that count: the answers that one judge scored, by one definition of each arm."""

    #: hash of the judge's definition, and its name
    judge: str
    rater: str
    versions: Mapping[ArmName, str]
    #: whether the judge is the model of `judge.generator`
    by_model: bool = False

    @classmethod
    def stored(cls, database: Database, *, label: str) -> "Pairing | None":
        """The answers that count in the reports of a ledger; None before the first run. Raises StoreError."""
        with database.read() as connection:
            position = position_of(connection, pairing_key(label))
        if not position:
            return None
        return cls(
            judge=position["judge"],
            rater=position["rater"],
            versions=position["versions"],
            by_model=bool(position.get("by_model")),
        )

    def with_earlier_arms(self, database: Database, *, label: str) -> "Pairing":
        """The pairing with the arms that only earlier runs of this judge could ask, since their answers still count.
        Raises StoreError.
        """
        earlier = self.stored(database, label=label)
        if earlier is None or earlier.judge != self.judge:
            return self
        return replace(self, versions={**earlier.versions, **self.versions})

    def keep(self, database: Database, *, label: str, now: float) -> None:
        """Store which answers count in reports from now on. Raises StoreError."""
        position: dict[str, Json] = {"judge": self.judge, "versions": {**self.versions}, "rater": self.rater}
        position["by_model"] = self.by_model
        with database.write() as connection:
            earlier = position_of(connection, pairing_key(label)).get("asked", ())
            position["asked"] = sorted({*earlier, *self.versions})  # the audit accepts answers by earlier judges, too
            move_position(connection, pairing_key(label), position=position, now=now)

    @property
    def by_people(self) -> bool:
        """Whether people label the answers."""
        return self.judge == LABEL_QUEUE

    def covers(self, answer: PairedAnswer) -> bool:
        return (answer.judge, answer.version) == (self.judge, self.versions.get(answer.arm))

    def is_settled(self, answer: PairedAnswer) -> bool:
        """Whether an answer counts: it has a score, or the judge refused one.

        The next run asks again an arm that failed.
        """
        return self.covers(answer) and (answer.quality is not None or answer.unjudged is not None)

    def waits(self, answer: PairedAnswer) -> bool:
        """Whether an answer waits for a person's label."""
        is_labelled = self.by_people and self.covers(answer) and answer.status != "failed"
        return is_labelled and not self.is_settled(answer)

    def pairs(self, answers: Iterable[PairedAnswer]) -> dict[DecisionId, dict[ArmName, PairedAnswer]]:
        """Decision -> arm -> its settled answer."""
        pairs: dict[DecisionId, dict[ArmName, PairedAnswer]] = {}
        for one in answers:
            if self.is_settled(one):
                pairs.setdefault(one.decision_id, {})[one.arm] = one
        return pairs


def _value(quality: float, *, cost: float, setting: RewardSettings, is_reward: bool) -> float:
    """The reward of an answer, or its quality."""
    if not is_reward:
        return quality
    value = quality - setting.weight * cost if setting.weight else quality
    return min(max(value, setting.minimum), setting.maximum)


def _ends(
    answer: PairedAnswer | None, *, cost: float | None, setting: RewardSettings, is_reward: bool
) -> tuple[float, float]:
    """The lowest and the highest possible value of an answer, which are equal if it has a score.

    answer: None if the arm was not asked. cost: cost of an answer that was not asked; None if it is not known
    """
    value = partial(_value, setting=setting, is_reward=is_reward)
    if answer is None:
        charged = any(setting.cost.values())
        dearest = (math.inf if charged else 0.0) if cost is None else cost
        return value(0.0, cost=dearest), value(1.0, cost=cost or 0.0)
    cost = cost_of_terms(answer.steps, answer.cost, terms=setting.cost)
    least, most = (0.0, 1.0) if answer.quality is None else (answer.quality, answer.quality)
    return value(least, cost=cost), value(most, cost=cost)


def paired_sample(
    questions: ComparedQuestions,
    pairs: Mapping[DecisionId, Mapping[ArmName, PairedAnswer]],
    *,
    setting: RewardSettings,
    is_reward: bool = True,
    whole: bool = False,
) -> DifferenceSample:
    """The differences of reward, or of quality, for the questions before the first one that lacks an answer. whole: for
    all questions up to the last one with both answers; questions that lack an answer then have bounds
    """
    askable, against = questions.askable, questions.against
    drawn = list(takewhile(lambda one: _has_both(one, pairs, against=against), askable))
    if whole:
        places = [place for place, one in enumerate(askable) if _has_both(one, pairs, against=against)]
        drawn = askable[: places[-1] + 1] if places else []
    others = [one for one in questions.differing if one.obstacle is not None]
    ends = partial(_ends, setting=setting, is_reward=is_reward)
    worst, best = ends(None, cost=None)
    return DifferenceSample(
        drawn=_differences(drawn, pairs, against=against, ends=ends),
        drawn_from=len(askable),
        others=_differences(others, pairs, against=against, ends=ends),
        routed=questions.routed,
        least=worst - best,
        most=best - worst,
    )


def _differences(
    questions: Iterable[ComparedQuestion],
    pairs: Mapping[DecisionId, Mapping[ArmName, PairedAnswer]],
    *,
    against: ArmName,
    ends: Callable[..., tuple[float, float]],
) -> Matrix:
    """The low and the high ends of differences, shape (questions, 2). ends: function `_ends` of an answer"""
    rows = []
    for question in questions:
        answers = pairs.get(question.id, {})
        low, high = ends(answers.get(question.arm), cost=question.cost)
        fixed_low, fixed_high = ends(answers.get(against), cost=None)
        rows.append((low - fixed_high, high - fixed_low))
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


def _has_both(
    question: ComparedQuestion, pairs: Mapping[DecisionId, Mapping[ArmName, PairedAnswer]], *, against: ArmName
) -> bool:
    answers = pairs.get(question.id, {})
    return question.arm in answers and against in answers


def paired_comparison(
    questions: ComparedQuestions,
    pairing: Pairing,
    answers: Iterable[PairedAnswer],
    *,
    setting: RewardSettings,
    is_steady: bool = True,
) -> PairedComparison:
    """Compare by the stored answers. answers: all answers to these questions, also of other pairings.

    is_steady: whether the policy decides most questions. Otherwise two ways that hardly differ are not "as good"
    """
    answers, against = list(answers), questions.against
    pairs = pairing.pairs(answers)
    both = [one for one in questions.differing if _has_both(one, pairs, against=against)]
    in_pairs = [answer for one in both for answer in (pairs[one.id][one.arm], pairs[one.id][against])]
    reward, quality = (
        _difference(questions, pairs, setting=setting, is_reward=is_reward) for is_reward in (True, False)
    )
    comparison = compare(
        ROUTING,
        f"always {against}",
        second_arm=against,
        design="asked again",
        questions=questions.routed,
        rated=len(both),
        reward=reward,
        quality=quality,
        needed=1.0,
        unsteady=None if is_steady else UNSTEADY,
    )
    result = PairedComparison(
        comparison=comparison,
        same=questions.routed - len(questions.differing),
        differing=len(questions.differing),
        asked=len(both),
        unjudged=len({answer.decision_id for answer in in_pairs if answer.quality is None}),
        waiting=sum(map(pairing.waits, answers)),
        not_askable=questions.obstacles,
        dollars=math.fsum(answer.dollars for answer in in_pairs),
        judge=pairing.rater,
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
    """The tighter bounds of two samples: without and with `whole` of `paired_sample`.

    Both samples are beginnings of one random order. The bounds of `sampled_difference` hold for all beginnings at once
    with one probability of error, so the bounds of both samples hold together.
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
    """The further questions that a verdict takes if the estimate stays, and their dollars, in words."""
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
    return f"{rough_count(more)} more {'question' if more < 1.5 else 'questions'} that both answer{price}"


def with_stored_comparison(database: Database, report: Report, scope: ReportScope) -> Report:
    """The report with the comparison by the stored answers, also in its sentence. Unchanged if no question of the
    period was asked again. `report --decide` prints this report instead of the result of its run. Raises StoreError.
    """
    against, pairing = report.compared_arm, Pairing.stored(database, label=scope.label)
    secret = None if pairing is None else stored_secret(database, name=DRAWS)
    if pairing is None or secret is None or scope.reward is None or against is None or against not in pairing.versions:
        return report
    questions = counted_questions(database, scope, pairing, against=against, secret=secret)
    answers, is_steady = stored_answers(database, questions), report.state is None
    asked = paired_comparison(questions, pairing, answers, setting=scope.reward, is_steady=is_steady)
    if not asked.asked and not asked.waiting:
        return report
    return replace(report, asked=asked, sentence=f"{report.sentence} {asked.sentence}")


def counted_questions(
    database: Database, scope: ReportScope, pairing: Pairing, *, against: ArmName, secret: bytes
) -> ComparedQuestions:
    """The questions from which runs and reports compute a verdict: a question counts if its arm was asked, even if the
    arm cannot be run now. Raises StoreError.
    """
    arms, by_model = pairing.versions.keys(), pairing.by_model
    return read_compared_questions(database, scope, against=against, secret=secret, arms=arms, by_model=by_model)


def stored_answers(database: Database, questions: ComparedQuestions) -> list[PairedAnswer]:
    """The stored answers to the differing questions, by any judge."""
    with database.read() as connection:
        return list(answers_to(connection, [one.id for one in questions.differing]))

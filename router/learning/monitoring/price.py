"""Price of an answer: what `reward.weight` says in words, and which weight the outcomes at hand propose.

reward = quality - weight * cost: an arm that costs c more has to be right on weight * c more of the questions. Half the
slope from the cheapest arm 1 to the most expensive arm 2 is proposed, .5 * (q_2 - q_1) / (c_2 - c_1) with q and c the
means of quality and cost: at the whole slope these two earn the same on average, at 0 cost is nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import serves_prices
from ragbandit.shared.formats import number, worth
from ragbandit.shared.types import ArmName, Matrix

if TYPE_CHECKING:
    from ragbandit.router.config.settings import RewardSettings, Settings

#: labels of an arm before it is compared
LEAST_LABELS: Final = 50
#: a weight is far from the proposed one beyond this factor ...
FACTOR: Final = 2.0
#: ... and a difference no noise beyond so many standard errors
SURE: Final = 2.0
#: a step that counts as more dollars than that drowns the dollars of answers
DEAR_STEP: Final = 0.05
_ASK: Final = "ask what a right answer is worth, in units of reward.cost, and set reward.weight to 1 / that"

#: one answer: its arm, quality, cost, the rows that it counts as (>= 0), the arm's probability there, in (0, 1]
Answer = tuple[ArmName, float, float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmMeans:
    """Mean quality and mean cost (in units of `reward.cost`) of an arm, each with its standard error (>= 0)."""

    arm: ArmName
    #: answers, each counted as the rows that it was learned as
    labels: float
    quality: float
    cost: float
    quality_error: float
    cost_error: float


def means_of(answers: Iterable[Answer]) -> list[ArmMeans]:
    """The means of each arm over the questions.

    Answers are weighed by rows / probability, normalised (Hajek 1971): a policy gives an arm the questions it suits.
    """
    by_arm: dict[ArmName, list[tuple[float, ...]]] = {}
    for arm, *numbers in answers:
        if numbers[2] > 0.0:
            by_arm.setdefault(arm, []).append(tuple(numbers))
    return [_means(arm, np.array(numbers, dtype=np.float64)) for arm, numbers in by_arm.items()]


def _means(arm: ArmName, answers: Matrix) -> ArmMeans:
    """answers: (n, 4), n > 0."""
    values, rows = answers[:, :2], answers[:, 2]
    weights = rows / answers[:, 3]
    weights = weights / weights.sum()
    means = weights @ values
    (q, c), (q_error, c_error) = means.tolist(), np.sqrt((weights * weights) @ (values - means) ** 2).tolist()
    labels = float(rows.sum())
    return ArmMeans(arm=arm, labels=labels, quality=q, cost=c, quality_error=q_error, cost_error=c_error)


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """A weight of cost against the outcomes of some arms."""

    weight: float
    best_fixed: ArmName
    #: from the cheapest to the most expensive
    arms: tuple[ArmMeans, ...]
    #: with its standard error; None where the cheapest and the most expensive arm cost the same
    proposed: float | None
    error: float
    #: from LEAST_LABELS on, beyond the error: the most expensive arm is worse, or the weight beyond FACTOR of that
    verdict: Literal["worse", "far"] | None


def price_of(arms: Sequence[ArmMeans], *, weight: float) -> Price:
    """The weight (>= 0) against the means of one arm or more, which count as independent."""
    cheap = min(arms, key=lambda one: (one.cost, -one.quality))
    expensive = max(arms, key=lambda one: (one.cost, one.quality))
    verdict: Literal["worse", "far"] | None = None
    proposed, error = None, 0.0
    if (more := expensive.cost - cheap.cost) > 0.0:
        slope = (expensive.quality - cheap.quality) / more
        of_cost = slope * math.hypot(cheap.cost_error, expensive.cost_error)
        proposed, error = 0.5 * slope, 0.5 * math.hypot(cheap.quality_error, expensive.quality_error, of_cost) / more
        noise = SURE * error if min(cheap.labels, expensive.labels) >= LEAST_LABELS else math.inf
        if proposed < -noise:
            verdict = "worse"
        elif proposed > 0.0 and not 1.0 / FACTOR <= weight / proposed <= FACTOR and abs(weight - proposed) > noise:
            verdict = "far"
    best = max(arms, key=lambda one: one.quality - weight * one.cost).arm
    ordered = tuple(sorted(arms, key=lambda one: (one is expensive, one is not cheap, one.cost)))
    return Price(weight=weight, best_fixed=best, arms=ordered, proposed=proposed, error=error, verdict=verdict)


def implied(price: Price) -> str:
    """The gain in quality at which each costlier arm pays, and the gain that it has, as a sentence."""
    cheap, *costlier = price.arms
    words = [_pays(arm, cheap=cheap, weight=price.weight) for arm in costlier]
    return "; ".join(words) or f"{cheap.arm} has nothing to be compared with"


def _pays(arm: ArmMeans, *, cheap: ArmMeans, weight: float) -> str:
    must, gains = 100.0 * weight * (arm.cost - cheap.cost), 100.0 * (arm.quality - cheap.quality)
    more = f"{abs(gains):.1f} {'more' if gains >= 0.0 else 'fewer'}"
    return f"{arm.arm} pays if it gets {must:.1f} more of 100 right than {cheap.arm}; it gets {more}"


def proposal(price: Price, *, reward: "RewardSettings") -> str:
    """The weight to begin with, and whether the one in force is far from it, as a sentence."""
    if price.proposed is None:
        return "the arms cost the same: the weight decides nothing between them"
    cheap, expensive = price.arms[0].arm, price.arms[-1].arm
    if price.verdict == "worse":
        return f"{expensive} costs more than {cheap} and is right less often: no weight pays for it"
    if price.proposed <= 0.0:
        return f"so far nothing says that {expensive} is worth its cost"
    proposed_worth = _worth(price.proposed, prices=reward.cost)
    begin = f"if you do not know your price, begin with weight {number(price.proposed, 2)} ({proposed_worth})"
    if price.verdict is None:
        return begin
    side, fixed = "high" if price.weight > price.proposed else "low", price.best_fixed
    weight = f"your price of cost (weight {number(price.weight)}) is {side} for these arms"
    return f"{weight}: at it always {fixed} is the best fixed arm; {begin}"


def _worth(weight: float, *, prices: Mapping[str, float]) -> str:
    """What a right answer is worth at a weight above 0, in each term that has a price."""
    words = [worth(1.0 / (weight * price), term) for term, price in prices.items() if price > 0.0]
    return f"a right answer is worth {' or '.join(words)}"


def remedy(price: Price) -> str:
    """What to do about an expensive arm that is worse, or a weight that is far from the proposed one."""
    if price.verdict == "worse":
        return f"drop {price.arms[-1].arm}, unless there are questions that it alone gets right"
    return f"{_ASK}; if nobody can say, to {number(price.proposed, 2)}. The ledger stays when you change it"


def budget_warnings(settings: "Settings") -> list[str]:
    """What keeps the price from pacing the dollar budgets of the settings, as sentences."""
    if not any(one.dollars_per_day or one.dollars_per_month for one in settings.tenants.values()):
        return []
    words = []
    if not serves_prices(make_policy(settings.policy.name, params=settings.policy.params)):
        name = settings.policy.name
        words.append(f"policy.name: {name} has one weight of cost for all questions: dollar budgets only stop (429)")
    elif settings.reward.weight == 0.0:
        words.append("reward.weight is 0: no factor raises it, so dollar budgets pace no question that names no price")
    if not settings.reward.cost.get("dollars"):
        words.append("reward.cost prices no dollars: as a dollar budget is spent, the price of other terms rises")
    if len(settings.worker_arms) < len(settings.arms):
        words.append("a caller that names some of its arms, not all, is refused (403) unless its key has forced=true")
    return words


def in_words(reward: "RewardSettings") -> list[str]:
    """What the weight and the prices of the terms say together, as sentences."""
    prices = {term: price for term, price in reward.cost.items() if price > 0.0}
    if reward.weight == 0.0 or not prices:
        what = "reward.weight is 0" if prices else "reward.cost prices nothing"
        return [f"{what}: cost counts for nothing, and the better of two arms is taken, however expensive it is"]
    words = [_worth(reward.weight, prices=prices)]
    if "dollars" in prices:
        cent = number(reward.weight * prices["dollars"])  # .01 dollars, in 100 answers
        words.append(f"an answer that costs one cent more must be right on {cent} more of 100 questions")
    if {"steps", "dollars"} <= prices.keys():
        rate = prices["steps"] / prices["dollars"]
        words.append(
            f"one step counts as much as {number(rate)} dollars: is that what it costs you besides its dollars?"
            if rate <= DEAR_STEP
            else f"warning: one step counts as much as {number(rate)} dollars, so the dollars of an answer decide "
            "nothing: price only dollars (reward.cost: {dollars: 1}), or only steps"
        )
    if "weight" not in reward.model_fields_set:
        words.append(
            f"the weight is the default, which was chosen for steps, and steps have no price: {_ASK}"
            if "steps" not in prices
            else "the weight is the default, which the papers use: `ragbandit advise` proposes one for your arms"
        )
    return words

"""Explains `reward.weight` in sentences, and proposes a weight from the outcomes.

reward = quality - weight * cost, so an arm that costs c more pays if its quality is higher by weight * c. Let q_1 and
c_1 be the mean quality and cost of the cheapest arm, and q_2 and c_2 those of the most expensive arm. The proposed
weight is half the slope (q_2 - q_1) / (c_2 - c_1). At the whole slope both arms earn the same; at 0 cost is ignored.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import serves_prices
from ragbandit.shared.formats import number, worth
from ragbandit.shared.types import ArmName

if TYPE_CHECKING:
    from ragbandit.router.config.settings import RewardSettings, Settings

#: number of labels that an arm needs before it is compared with another arm
LEAST_LABELS: Final = 50
#: two weights are far from each other if they differ by more than this factor
FACTOR: Final = 2.0
#: number of standard errors above which a difference is significant
SURE: Final = 2.0
#: price of a step, in dollars, above which the dollars of an answer hardly affect the reward
DEAR_STEP: Final = 0.05
_ASK: Final = "ask what a right answer is worth, in units of reward.cost, and set reward.weight to 1 / that"

#: one answer: arm, quality, cost, number of rows that it counts as (>= 0), probability of its arm (in (0, 1])
Answer = tuple[ArmName, float, float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmMeans:
    """Mean quality and mean cost of an arm, each with its standard error. Costs are in units of `reward.cost`."""

    arm: ArmName
    labels: float
    quality: float
    cost: float
    quality_error: float
    cost_error: float


def means_of(answers: Iterable[Answer]) -> list[ArmMeans]:
    """The means of each arm, estimated for all questions.

    An arm has answered only the questions that the policy gave it. So each answer is weighted by its rows / the
    probability of its arm, and the weights of an arm are scaled to the sum 1 (Hajek 1971).
    """
    by_arm: dict[ArmName, list[tuple[float, ...]]] = {}
    for arm, *numbers in answers:
        if numbers[2] > 0.0:
            by_arm.setdefault(arm, []).append(tuple(numbers))
    arms = []
    for arm, rows_of_arm in by_arm.items():
        columns = np.array(rows_of_arm, dtype=np.float64)  # quality, cost, rows, probability
        values, rows = columns[:, :2], columns[:, 2]
        weights = rows / columns[:, 3]
        weights = weights / weights.sum()
        means = weights @ values
        (q, c), (q_error, c_error) = means.tolist(), np.sqrt((weights * weights) @ (values - means) ** 2).tolist()
        labels = float(rows.sum())
        arms.append(ArmMeans(arm=arm, labels=labels, quality=q, cost=c, quality_error=q_error, cost_error=c_error))
    return arms


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    weight: float
    best_fixed: ArmName
    #: the cheapest arm first, the most expensive arm last
    arms: tuple[ArmMeans, ...]
    #: proposed weight; None if the cheapest and the most expensive arm cost the same
    proposed: float | None
    error: float  #: standard error of `proposed`; 0 if it is None
    #: "worse" if the most expensive arm has a lower quality than the cheapest, "far" if `weight` is far from
    #: `proposed`; None if neither is significant, or if one of the two arms has fewer than LEAST_LABELS labels
    verdict: Literal["worse", "far"] | None


def price_of(arms: Sequence[ArmMeans], *, weight: float) -> Price:
    """Assess a weight of cost, >= 0, by the means of the arms (at least one), which count as independent."""
    cheap = min(arms, key=lambda arm: (arm.cost, -arm.quality))
    expensive = max(arms, key=lambda arm: (arm.cost, arm.quality))
    verdict: Literal["worse", "far"] | None = None
    proposed, error = None, 0.0
    gap = expensive.cost - cheap.cost
    if gap > 0.0:
        slope = (expensive.quality - cheap.quality) / gap
        of_cost = slope * math.hypot(cheap.cost_error, expensive.cost_error)
        proposed, error = 0.5 * slope, 0.5 * math.hypot(cheap.quality_error, expensive.quality_error, of_cost) / gap
        noise = SURE * error if min(cheap.labels, expensive.labels) >= LEAST_LABELS else math.inf
        if proposed < -noise:
            verdict = "worse"
        elif proposed > 0.0 and not 1.0 / FACTOR <= weight / proposed <= FACTOR and abs(weight - proposed) > noise:
            verdict = "far"
    best = max(arms, key=lambda arm: arm.quality - weight * arm.cost).arm
    ordered = tuple(sorted(arms, key=lambda arm: (arm is expensive, arm is not cheap, arm.cost)))
    return Price(weight=weight, best_fixed=best, arms=ordered, proposed=proposed, error=error, verdict=verdict)


def implied(price: Price) -> str:
    """A sentence for each costlier arm: the gain in quality at which it pays, and its actual gain."""
    cheap, *costlier = price.arms
    parts = []
    for arm in costlier:
        needed, gain = 100.0 * price.weight * (arm.cost - cheap.cost), 100.0 * (arm.quality - cheap.quality)
        actual = f"{abs(gain):.1f} {'more' if gain >= 0.0 else 'fewer'}"
        parts.append(f"{arm.arm} pays if it gets {needed:.1f} more of 100 right than {cheap.arm}; it gets {actual}")
    return "; ".join(parts) or f"{cheap.arm} has nothing to be compared with"


def proposal(price: Price, *, reward: "RewardSettings") -> str:
    """A sentence with a weight to begin with, and a warning if the configured weight is far from it."""
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
    amounts = [worth(1.0 / (weight * price), term) for term, price in prices.items() if price > 0.0]
    return f"a right answer is worth {' or '.join(amounts)}"


def remedy(price: Price) -> str:
    if price.verdict == "worse":
        return f"drop {price.arms[-1].arm}, unless there are questions that it alone gets right"
    return f"{_ASK}; if nobody can say, to {number(price.proposed, 2)}. The ledger stays when you change it"


def budget_warnings(settings: "Settings") -> list[str]:
    """Warnings about settings because of which dollar budgets cannot slow down spending by a higher cost weight."""
    if not any(tenant.dollars_per_day or tenant.dollars_per_month for tenant in settings.tenants.values()):
        return []
    notes = []
    if not serves_prices(make_policy(settings.policy.name, params=settings.policy.params)):
        name = settings.policy.name
        notes.append(f"policy.name: {name} has one weight of cost for all questions: dollar budgets only stop (429)")
    elif settings.reward.weight == 0.0:
        notes.append("reward.weight is 0: no factor raises it, so dollar budgets pace no question that names no price")
    if not settings.reward.cost.get("dollars"):
        notes.append("reward.cost prices no dollars: as a dollar budget is spent, the price of other terms rises")
    if len(settings.worker_arms) < len(settings.arms):
        notes.append("a caller that names some of its arms, not all, is refused (403) unless its key has forced=true")
    return notes


def in_words(reward: "RewardSettings") -> list[str]:
    prices = {term: price for term, price in reward.cost.items() if price > 0.0}
    if reward.weight == 0.0 or not prices:
        reason = "reward.weight is 0" if prices else "reward.cost prices nothing"
        return [f"{reason}: cost counts for nothing, and the better of two arms is taken, however expensive it is"]
    sentences = [_worth(reward.weight, prices=prices)]
    if "dollars" in prices:
        cent = number(reward.weight * prices["dollars"])  # .01 dollars, in 100 answers
        sentences.append(f"an answer that costs one cent more must be right on {cent} more of 100 questions")
    if {"steps", "dollars"} <= prices.keys():
        rate = prices["steps"] / prices["dollars"]
        sentences.append(
            f"one step counts as much as {number(rate)} dollars: is that what it costs you besides its dollars?"
            if rate <= DEAR_STEP
            else f"warning: one step counts as much as {number(rate)} dollars, so the dollars of an answer decide "
            "nothing: price only dollars (reward.cost: {dollars: 1}), or only steps"
        )
    if "weight" not in reward.model_fields_set:
        sentences.append(
            f"the weight is the default, which was chosen for steps, and steps have no price: {_ASK}"
            if "steps" not in prices
            else "the weight is the default, which the papers use: `ragbandit advise` proposes one for your arms"
        )
    return sentences

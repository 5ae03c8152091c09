"""A mean cost to hold, whatever the policy: a price on cost that rises while too much is spent.

The idea is ParetoBandit's (2026): a primal-dual pacer. The policy inside ranks the arms by quality - price * cost,
and after every update the price takes a step of dual ascent on cost - target. The price REPLACES the weight that the
reward setting gives to cost: added to it, it could only make the policy spend less than that weight does, and a
target above would never be reached. The weight in the reward goes on deciding what an update is worth, not what an
arm may cost.

Different from ParetoBandit, on purpose:

- The step is on what the policy would spend on this question *now*, at the price in force, not on what was spent
  under the price of the day of the decision. Feedback comes late; an integral over old costs goes round in circles
  as soon as some fifty decisions are under way. (An LLM is not asked again: there the real cost is taken.)
- What was really spent beyond the target is a debt. It bends the target, by half at most, so that it is paid back
  over `horizon` decisions: the mean over the whole stream is held, not only the rate, and |mean - target| shrinks
  like 1/n. A debt of more than MEMORY decisions' worth of target is forgotten, or a target that was out of
  reach for a year would be avenged for another one.
- A row counts here as one, whatever its sample weight: what was spent was spent. One that counts as none is not
  learned, and not paid either.
- Costs have no unit here. Deviations are measured in their own root mean square about the target, so seconds and
  milliseconds learn the same policy.

A target that no price reaches leaves the price at 0 or at its cap, and the facts of every decision show it. A raw
reward that comes before its decision's outcome is learned with cost 0, and the target is then held on costs that are
too low: report outcomes first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from ragbandit.router.policies.base import (
    Arrays,
    Facts,
    PolicyOutput,
    checked_arrays,
    counted_state,
    epsilon_greedy,
    heads_of,
    pmf_of_one,
    restored_counts,
    rows_of,
    tally,
)
from ragbandit.router.policies.kinds.wrapping import WrappingParams, WrappingPolicy, own_arrays
from ragbandit.router.policies.linear.points import shares_of_points
from ragbandit.router.policies.params import Positive, read_params
from ragbandit.shared.errors import PolicyFault
from ragbandit.shared.types import ArmName, FeatureRows, Json, Query, Update

#: by how much of itself the target is bent to pay a debt back, at most
BEND = 0.5
#: the largest debt that is remembered, in decisions' worth of target
MEMORY = 1000
#: where a policy has no scores: the advantage in reward that makes an arm e times likelier
TEMPERATURE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetParams(WrappingParams):
    """Settings of budget."""

    #: mean cost per decision to hold, in units of reward.cost. That of a default reward counts too
    target: Positive
    #: size of the dual step. A larger one finds the price sooner and varies more around it, which costs quality
    step: Positive = 0.02
    #: decisions over which a debt is paid back; take more than are usually waiting for feedback
    horizon: Annotated[float, Field(ge=1.0, le=1e12, allow_inf_nan=False)] = 100.0
    #: cap of the price, in reward per typical deviation of cost from the target
    price_max: Positive = 1.0


class BudgetPolicy(WrappingPolicy):
    """Holds the mean of `reward.cost` over the learned decisions at a target, with the policy of your choice inside."""

    algorithm: ClassVar[str] = "budget"
    refuses: ClassVar[Mapping[str, tuple[str, str]]] = {
        "budget": ("a budget cannot hold itself", "for example mba"),
        # the price would be put on after the restraint
        "conservative": ("a budget cannot hold what holds it back", "set policy.incumbent: the budget is then inside"),
    }

    def __init__(self, **params: Json) -> None:
        settings = read_params(BudgetParams, given=params)
        super().__init__(settings)
        self.target, self.step, self.price_max = settings.target, settings.step, settings.price_max
        self.horizon = settings.horizon
        self.seen: dict[ArmName, int] = {}
        #: per arm: its updates that count as anything, and their costs, summed
        self._paid: dict[ArmName, int] = {}
        self._cost: dict[ArmName, float] = {}
        #: the dual variable in [0, price_max]; the debt (units of cost); sum of squares of cost - target; the
        #: reward setting's weight of cost in the newest update that had one
        self._dual, self._debt, self._squares, self._weight = 0.0, 0.0, 0.0, 0.0

    @property
    def params(self) -> Mapping[str, Json]:
        """The settings, with all params of the policy inside."""
        own = {name: getattr(self, name) for name in ("target", "step", "horizon", "price_max")}
        return {**own, **self.inner_params}

    @property
    def scale(self) -> float:
        """Root mean square of cost - target over the updates so far, begun with the target itself: never 0."""
        updates = sum(self._paid.values())
        return math.sqrt((self.target * self.target + self._squares) / (1 + updates))

    @property
    def price(self) -> float:
        """Price of one unit of cost, in units of reward."""
        return self._dual / self.scale

    @property
    def spent(self) -> float | None:
        """Mean cost of the updates so far; None before the first."""
        updates = sum(self._paid.values())
        return math.fsum(self._cost.values()) / updates if updates else None

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """The policy's word, with the price in force put on cost.

        With scores: on quality - price * cost, by the points of the inner one's posterior; where it has none,
        epsilon-greedy, epsilon being the inner one's own, or what it spreads beyond its best arm. Quality and cost are
        the inner one's where it keeps them apart; else cost is the arm's mean so far, and quality the score without the
        weight of that cost. Without scores: the inner pmf, every arm made less likely by the factor exp(-price * cost /
        TEMPERATURE).
        """
        outputs = self.inner.pmf(queries, features=features, arms=arms)
        return [self._priced(output, arms=offered) for output, offered in zip(outputs, arms, strict=True)]

    def _priced(self, output: PolicyOutput, *, arms: Sequence[ArmName]) -> PolicyOutput:
        facts = {**output.facts, "price": self.price, "target": self.target, "spent": self.spent}
        quality, cost = self._heads(output, arms=arms)
        facts["cost"] = cost
        if quality is None:
            return replace(output, pmf=_tilted(output.pmf, cost=cost, price=self.price), facts=facts)
        scores = tuple(q - self.price * c for q, c in zip(quality, cost, strict=True))
        facts |= {"quality": quality, "weight": self.price}
        if output.deviations is not None:
            pmf = tuple(shares_of_points(np.array(scores), output.deviations))
            facts["epsilon"] = 1.0 - max(pmf)
            return PolicyOutput(pmf=pmf, scores=scores, deviations=output.deviations, facts=facts)
        epsilon = _exploration(output)
        facts["epsilon"] = epsilon
        return PolicyOutput(pmf=epsilon_greedy(scores, epsilon=epsilon), scores=scores, facts=facts)

    def _heads(self, output: PolicyOutput, *, arms: Sequence[ArmName]) -> tuple[list[float] | None, list[float]]:
        """(quality, cost) of every offered arm; quality is None where the inner policy has no scores."""
        quality, cost = output.facts.get("quality"), output.facts.get("cost")
        if isinstance(quality, list) and isinstance(cost, list):
            return quality, cost
        # An arm that nobody knows yet is taken to cost what the average decision does.
        usual = self.spent or 0.0
        means = [self._cost[arm] / self._paid[arm] if arm in self._paid else usual for arm in arms]
        if output.scores is None:
            return None, means
        return [score + self._weight * mean for score, mean in zip(output.scores, means, strict=True)], means

    def learn(self, update: Update) -> None:
        """Let the policy learn, then take the dual step."""
        cost, rows = update.reward.cost, rows_of(update)
        deviation = cost - self.target
        squares = self._squares + deviation * deviation
        if not math.isfinite(squares):
            raise PolicyFault(f"the cost is {cost!r}, no number or too large to be squared")
        self.inner.learn(update)
        tally(self.seen, update)
        if rows == 0.0:
            return
        tally(self._paid, update)
        self._cost[update.arm] = self._cost.get(update.arm, 0.0) + cost
        *_, self._weight = heads_of(update.reward, weight=self._weight)  # a raw or default reward carries none
        self._squares = squares
        most = MEMORY * self.target
        self._debt = min(most, max(-most, self._debt + deviation))
        bend = min(BEND * self.target, max(-BEND * self.target, self._debt / self.horizon))
        ascent = (self._spending(update) - self.target + bend) / self.scale
        self._dual = min(self.price_max, max(0.0, self._dual + self.step * ascent))

    def _spending(self, update: Update) -> float:
        """Expected cost of this question at the price in force, over the arms whose cost is known."""
        if not self.inner.deterministic:
            return update.reward.cost
        known = tuple(arm for arm in update.arms if arm in self._paid)
        output = pmf_of_one(self, update.query, features=update.features, arms=known)
        cost = output.facts["cost"]
        assert isinstance(cost, list)
        return math.fsum(p * c for p, c in zip(output.pmf, cost, strict=True))  # whatever the order of the arms

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The inner policy's state, its arrays under "inner/", and the pacer's own numbers."""
        nested, facts = self.inner_state()
        nested["pacer"] = np.array([self._dual, self._debt, self._squares, self._weight])
        for arm in sorted(self._cost):
            nested[f"cost/{arm}"] = np.array([self._cost[arm]])
        return nested, {**counted_state(self.seen)[1], "inner": facts, "paid": dict(sorted(self._paid.items()))}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state; the inner policy checks its own part."""
        self.seen, self._paid = restored_counts(facts), dict(facts["paid"])
        own = own_arrays(arrays)
        checked_arrays(own, shapes={"pacer": (4,)} | {f"cost/{arm}": (1,) for arm in self._paid})
        self._dual, self._debt, self._squares, self._weight = own["pacer"].tolist()
        self._cost = {arm: float(own[f"cost/{arm}"][0]) for arm in self._paid}
        self.restore_inner(arrays, facts["inner"])


def _exploration(output: PolicyOutput) -> float:
    """The epsilon of an inner policy with scores: the one it logs, else what it spreads beyond its best arms."""
    epsilon = output.facts.get("epsilon")
    if isinstance(epsilon, float) and 0.0 <= epsilon <= 1.0:
        return epsilon
    assert output.scores is not None
    best = max(output.scores)
    others = [p for p, score in zip(output.pmf, output.scores, strict=True) if score != best]
    if not others:
        return 1.0  # It knows of no better arm yet: what it does is all exploration.
    return min(1.0, math.fsum(others) * len(output.pmf) / len(others))


def _tilted(pmf: Sequence[float], *, cost: Sequence[float], price: float) -> tuple[float, ...]:
    """The pmf times exp(-price * cost / TEMPERATURE), normalised."""
    cheapest = min(c for c, p in zip(cost, pmf, strict=True) if p > 0.0)
    weights = [
        p * math.exp(-price * (c - cheapest) / TEMPERATURE) if p > 0.0 else 0.0 for p, c in zip(pmf, cost, strict=True)
    ]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)

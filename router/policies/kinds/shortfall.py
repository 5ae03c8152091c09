"""Shortfall: what the ledger tells about the reward that a router lost against always playing the incumbent arm.

A row of another arm lost b - r, r its reward and b the incumbent's mean reward so far; a row of the incumbent lost
(r - b) (1/q - 1), q its propensity. The sum is unbiased whatever b is (doubly robust: Dudik et al. 2011), although the
policy leaves the incumbent where it expects it to be weak. Weights 1/q have an upper bound.

Rows of decisions that were made elsewhere, a table's or another router's, tell what the arms are worth; they lost
nothing here.

Each row is read at its own weight of cost: the incumbent's mean reward is its mean quality less that weight times its
mean cost.

All of it is sums, products, quotients and roots of the rows, in their order: the same bits on every machine.
"""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from ragbandit.router.policies.base import Arrays, checked_arrays, heads_of, weight_of
from ragbandit.shared.types import ArmName, Update

#: the promise holds from this question on; what may be lost until then may be lost at once
FROM: Final = 100
#: learned outcomes of the incumbent before anything else is tried
KNOWN: Final = 10
#: decisions' worth of allowance that are kept at most: a policy that has earned much may not lose all of it again
MOST: Final = 1000
#: rows of the incumbent after which an older one counts 1/e in its mean reward
_MEMORY: Final = 1000.0
_MOST_WEIGHT: Final = 10.0
#: share of the rewards' standard deviation that stands for the incumbent's mean reward where that is nearer to 0
_LEAST_SCALE: Final = 0.1


class Shortfall:
    """The tally of one ledger against one incumbent.

    harm: share of the incumbent's reward that may be lost.
    """

    def __init__(self, incumbent: ArmName, *, harm: float) -> None:
        self.incumbent, self.harm = incumbent, harm
        #: rows of each arm, and the sum of their rewards
        self.rows: dict[ArmName, int] = {}
        self._sums: dict[ArmName, float] = {}
        #: rows of decisions that were made here; reward they lost, clamped; of them rows of other arms, faded
        self._own = self._lost = self._others = 0.0
        #: decisions made per row learned, at least 1
        self._ratio = 1.0
        #: over the incumbent's rows, faded, weighted by 1/q: weights, rewards, squares of rewards
        self._weight = self._rewards = self._squares = 0.0
        #: the same of quality and of cost, and the weight between them, faded over all rows
        self._quality = self._cost = self._price = 0.0
        #: rows of the incumbent of before it changed
        self.before = 0
        #: squares of all rewards
        self._all_squares = 0.0

    @property
    def known(self) -> bool:
        """Whether the incumbent has outcomes enough to say what it earns."""
        return self.rows.get(self.incumbent, 0) - self.before >= KNOWN

    @property
    def allowance(self) -> float:
        """`allowance_at` the mean weight of cost of the rows."""
        return self.allowance_at(None)

    def allowance_at(self, weight: float | None) -> float:
        """Reward that one decision may lose on average: harm times the size of the incumbent's mean reward.

        weight: of cost in it; None: the rows' mean. Where that mean is near 0, a tenth of its rewards' standard
        deviation stands for it: a share of nothing would be nothing, for ever.
        """
        if self._weight == 0.0:
            return 0.0
        mean = self._rewards / self._weight
        spread = math.sqrt(max(self._squares / self._weight - mean * mean, 0.0))
        return self.harm * max(abs(self._mean_at(weight)), _LEAST_SCALE * spread)

    def _mean_at(self, weight: float | None) -> float:
        """The incumbent's mean reward where cost has this weight."""
        return (self._quality - (self._price if weight is None else weight) * self._cost) / self._weight

    @property
    def variance(self) -> float:
        """Variance of the rewards around their arms' means, over all rows."""
        rows = sum(self.rows.values())
        if rows == 0:
            return 0.0
        explained = math.fsum(self._sums[arm] * self._sums[arm] / count for arm, count in self.rows.items())
        return max((self._all_squares - explained) / rows, 0.0)

    @property
    def slack(self) -> float:
        """Reward that may still be lost: what was allowed, less what was lost and one standard deviation of that.

        At most MOST decisions' worth. What is learned of some of the decisions stands for all of them: each row for
        `ratio` decisions, whose sum then has the variance ratio * (1 + (ratio - 1) * ratio) a row.
        """
        # the rows' own noise, and that of which decisions were learned
        noise = self._others * self.variance * (1.0 + (self._ratio - 1.0) * self._ratio)
        return self._allowed - self._ratio * self._lost - math.sqrt(noise)

    def mean(self, arm: ArmName) -> float:
        """Mean reward of an arm, begun with one row of reward 0, as the ridge heads begin."""
        return self._sums.get(arm, 0.0) / (1 + self.rows.get(arm, 0))

    @property
    def _allowed(self) -> float:
        decisions = self._ratio * self._own
        return self.allowance * max(decisions, 0.5 * (decisions + FROM))

    def learn(self, update: Update) -> None:
        """One row of the ledger: its arm, its reward, its propensity, and whether it was paid for here."""
        arm, reward = update.arm, update.reward.value
        quality, cost, price = heads_of(update.reward, weight=weight_of(update.query, default=self._price))
        count = sum(self.rows.values()) + 1
        self._price += (price - self._price) * max(1.0 / count, 1.0 / _MEMORY)
        if not update.imported:
            self._pay(update, weight=price)
        if arm == self.incumbent:
            weight, fade = min(1.0 / update.propensity, _MOST_WEIGHT), 1.0 - 1.0 / _MEMORY
            self._weight = fade * self._weight + weight
            self._rewards = fade * self._rewards + weight * reward
            self._squares = fade * self._squares + weight * reward * reward
            self._quality = fade * self._quality + weight * quality
            self._cost = fade * self._cost + weight * cost
        self.rows[arm] = self.rows.get(arm, 0) + 1
        self._sums[arm] = self._sums.get(arm, 0.0) + reward
        self._all_squares += reward * reward
        # A surplus is kept up to MOST decisions, a debt of feedback that came late up to FROM.
        allowed, one = self._allowed, self.allowance
        if one > 0.0:  # else the incumbent has changed, and what is owed is not known in its rewards yet
            lost = min(max(self._ratio * self._lost, allowed - MOST * one), allowed + FROM * one)
            self._lost = lost / self._ratio

    def restart(self) -> None:
        """The incumbent is another arm from now on: its mean reward begins anew, what was lost stays.

        Until it has KNOWN outcomes again nothing else is tried.
        """
        self.before = self.rows.get(self.incumbent, 0)
        self._weight = self._rewards = self._squares = self._quality = self._cost = 0.0

    def _pay(self, update: Update, *, weight: float) -> None:
        """Count what a row lost, by the incumbent's mean before it, at the row's own weight of cost."""
        reward = update.reward.value
        base = self._mean_at(weight) if self._weight > 0.0 else reward
        self._own += 1.0
        elsewhere = sum(self.rows.values()) - (self._own - 1.0)
        self._ratio = max(1.0, (update.decided - elsewhere) / self._own if update.decided else 1.0)
        if update.arm == self.incumbent:
            self._lost += (reward - base) * (min(1.0 / update.propensity, _MOST_WEIGHT) - 1.0)
        else:
            self._lost += base - reward
            self._others = (1.0 - 1.0 / _MEMORY) * self._others + 1.0

    def state(self) -> Arrays:
        """Its numbers, and each arm's rows and rewards."""
        own = (
            *(self._own, self._lost, self._others, self._ratio),
            *(self._weight, self._rewards, self._squares, self._all_squares),
            *(self._quality, self._cost, self._price),
        )
        arrays: Arrays = {"shortfall": np.array(own)}
        for arm in sorted(self.rows):
            arrays[f"rewards/{arm}"] = np.array([self.rows[arm], self._sums[arm]])
        return arrays

    def restore(self, arrays: Arrays, *, seen: Mapping[ArmName, int]) -> None:
        """Take over a saved state, of a policy that has learned these rows of each arm. Raises SnapshotError."""
        checked_arrays(arrays, shapes={"shortfall": (11,)} | {f"rewards/{arm}": (2,) for arm in seen})
        own = arrays["shortfall"].tolist()
        self._own, self._lost, self._others, self._ratio = own[:4]
        self._weight, self._rewards, self._squares, self._all_squares = own[4:8]
        self._quality, self._cost, self._price = own[8:]
        self.rows = dict(seen)
        self._sums = {arm: float(arrays[f"rewards/{arm}"][1]) for arm in seen}

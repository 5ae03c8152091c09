"""What a policy and the best fixed arm earn on questions of a kind, and whether questions need different arms."""

import math
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from ragbandit.router.comparison import Difference
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.types import Matrix, Vector

#: half the width of a 95 % interval, and size that chance exceeds in 5 % of cases, both in standard errors
_NORMAL_95, _CHANCE_5 = 1.96, 1.645
#: number of questions before a question with whose probabilities its own are compared
_BEFORE: Final = 100
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, slots=True)
class KindRewards:
    """Rewards on n questions, of the policy and of K fixed arms; NaN where they are not known."""

    policy: Vector
    fixed: Matrix  #: shape (n, K)
    weights: Matrix  #: 1 / probability that the arm's reward is known, shape (n, K)
    #: whether the rewards confirm that the best arm differs between questions as the policy's probabilities do
    confirmed: bool

    @classmethod
    def of_draws(cls, rewards: Vector, *, drawn: Rows, pmfs: Matrix, most: int) -> Self:
        """From the rewards of the drawn arms, the newest first, NaN where there are none.

        drawn: places of the arms, shape (n,). most: number of newest questions kept; `confirmed` is computed from all
        """
        confirmed = _confirmed_by_draws(rewards[::-1], drawn=drawn[::-1], pmfs=pmfs[::-1])
        rewards, drawn, pmfs = rewards[:most], drawn[:most], pmfs[:most]
        fixed = np.full(pmfs.shape, np.nan)
        fixed[np.arange(len(rewards)), drawn] = rewards
        return cls(policy=rewards, fixed=fixed, weights=1.0 / np.maximum(pmfs, 1e-9), confirmed=confirmed)

    @classmethod
    def of_outcomes(cls, rewards: Matrix, *, pmfs: Matrix) -> Self:
        """From the rewards of every arm, shape (n, K), on questions that the policy had not learned."""
        gains = ((pmfs - pmfs.mean(axis=0)) * rewards).sum(axis=1)
        error = float(gains.std()) / math.sqrt(len(gains))
        confirmed = float(gains.mean()) > _CHANCE_5 * error + 1e-9
        return cls(
            policy=(pmfs * rewards).sum(axis=1), fixed=rewards, weights=np.ones(rewards.shape), confirmed=confirmed
        )

    def newest(self, count: int) -> Self:
        """The rewards of the first `count` questions; confirmed by all."""
        return replace(self, policy=self.policy[:count], fixed=self.fixed[:count], weights=self.weights[:count])

    def best(self) -> int | None:
        """The place of the fixed arm with the highest mean; None if no arm has enough rows."""
        effective, means = self._fixed_means(np.arange(len(self.policy)))
        known = np.where(effective >= FEWEST_EFFECTIVE, means, -np.inf)
        return int(known.argmax()) if np.isfinite(known).any() else None

    def mean(self, places: Rows) -> float | None:
        rated = self.policy[places][~np.isnan(self.policy[places])]
        return float(rated.mean()) if len(rated) >= FEWEST_EFFECTIVE else None

    def over(self, arm: int, *, places: Rows) -> Difference:
        """Mean of the policy minus that of the fixed arm on these questions, with a normal interval of 95 %."""
        rated = places[~np.isnan(self.policy[places])]
        effective, means = self._fixed_means(rated)
        if effective[arm] < FEWEST_EFFECTIVE:
            return Difference()
        policy, fixed = self.policy[rated], self.fixed[rated, arm]
        weights = np.where(np.isnan(fixed), 0.0, self.weights[rated, arm])
        first, second = float(policy.mean()), float(means[arm])
        # how far each question moves the difference of the means
        moves = policy - first - weights / weights.mean() * (np.nan_to_num(fixed) - second)
        half = _NORMAL_95 * math.sqrt(float((moves**2).sum())) / len(rated)
        gap = round(first - second, 9)  # no rounding of equal means
        common = {"effective_rows": float(effective[arm]), "first": first, "second": second}
        return Difference(estimate=gap, low=gap - half, high=gap + half, **common)

    def _fixed_means(self, places: Rows) -> tuple[Vector, Vector]:
        """(effective rows, mean reward) of every fixed arm, shape (K,)."""
        fixed = self.fixed[places]
        weights = np.where(np.isnan(fixed), 0.0, self.weights[places])
        whole = np.maximum(weights.sum(axis=0), 1e-12)
        effective = weights.sum(axis=0) ** 2 / np.maximum((weights**2).sum(axis=0), 1e-12)
        return effective, (weights * np.nan_to_num(fixed)).sum(axis=0) / whole


def _confirmed_by_draws(rewards: Vector, *, drawn: Rows, pmfs: Matrix) -> bool:
    """Whether an arm earns more where the policy preferred it than elsewhere, in a one-sided test at 5 %.

    The probabilities of a question were fixed before its reward was known, so a policy that follows chance fails the
    test. A draw minus its probabilities has mean 0, so the effect of an arm, and of an arm that is preferred, are
    coefficients of least squares without weights of 1 / probability (R-learner: Nie and Wager 2021). A question's
    preference is its probability minus the mean of the questions just before it, so that drift is no preference.
    The oldest question comes first.
    """
    known = ~np.isnan(rewards)
    if known.sum() < FEWEST_EFFECTIVE:
        return False
    count, sums = np.arange(len(pmfs)), np.vstack([np.zeros(pmfs.shape[1]), np.cumsum(pmfs, axis=0)])
    first = np.maximum(count - _BEFORE, 0)
    preference = pmfs - (sums[count] - sums[first]) / np.maximum(count - first, 1)[:, None]
    preference[0] = 0.0
    surprise = np.eye(pmfs.shape[1])[drawn] - pmfs
    preferred = (surprise * preference).sum(axis=1)
    rows = np.column_stack([np.ones(len(pmfs)), surprise[:, 1:], preferred])[known]
    inverse = np.linalg.pinv(rows.T @ rows)
    effects = inverse @ rows.T @ rewards[known]
    # errors of rows with a large say on the effects are larger than their residuals (HC3)
    leverage = np.minimum((rows @ inverse * rows).sum(axis=1), 0.9)
    errors = (rewards[known] - rows @ effects) / (1.0 - leverage)
    spread = math.sqrt(float((((rows @ inverse)[:, -1] * errors) ** 2).sum()))
    return bool(effects[-1] > _CHANCE_5 * spread + 1e-9)

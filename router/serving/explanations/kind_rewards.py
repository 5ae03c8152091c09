"""What a policy earns on questions of a kind, and what the best fixed arm would earn there."""

import math
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from ragbandit.router.comparison import Difference
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.types import Matrix, Vector

#: half the width of a 95 % interval, in standard errors
NORMAL_95: Final = 1.96
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, slots=True)
class KindRewards:
    """Rewards on n questions, of the policy and of K fixed arms; NaN where they are not known."""

    policy: Vector
    fixed: Matrix  #: shape (n, K)
    weights: Matrix  #: 1 / probability that the arm's reward is known, shape (n, K)

    @classmethod
    def of_draws(cls, rewards: Vector, *, drawn: Rows, pmfs: Matrix) -> Self:
        """From the rewards of the drawn arms, NaN where there are none. drawn: places of the arms, shape (n,)."""
        fixed = np.full(pmfs.shape, np.nan)
        fixed[np.arange(len(rewards)), drawn] = rewards
        return cls(policy=rewards, fixed=fixed, weights=1.0 / np.maximum(pmfs, 1e-9))

    def best(self) -> int | None:
        """The place of the fixed arm with the highest mean."""
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
        half = NORMAL_95 * math.sqrt(float((moves**2).sum())) / len(rated)
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

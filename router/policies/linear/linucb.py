"""LinUCB: an upper bound of every arm's reward, and the highest bound wins (Li et al. 2010, algorithm 1, disjoint).

The paper plays argmax of mean + alpha * sqrt(x^T A^-1 x). Different, on purpose:

- Epsilon of the probability goes to all arms alike: argmax alone leaves the other arms probability 0, and then no
  log can judge another policy.
- The width is multiplied by the standard deviation of the noise, which the paper leaves inside alpha: alpha 1 is one
  posterior standard deviation, whatever the units of the reward.
- Quality and cost are two heads, and an intercept has its own prior (router/policies/linear/ridge.py).
"""

from collections.abc import Mapping
from typing import ClassVar

from ragbandit.router.policies.base import epsilon_greedy
from ragbandit.router.policies.linear.ridge import Prediction, RidgePolicy
from ragbandit.router.policies.params import check_number
from ragbandit.router.types import Json

__all__ = ["LinUcb"]


class LinUcb(RidgePolicy):
    """Epsilon-greedy on mean + alpha * width of the reward; an arm without rows has the prior's mean 0 and width.

    alpha: how many standard deviations of optimism (>= 0).
    epsilon: share of the probability that is spread over all arms, in [0, 1].
    ridge, bias_ridge: prior precisions (> 0), as in RidgeHeads.
    """

    algorithm: ClassVar[str] = "linucb"

    def __init__(
        self, *, alpha: float = 1.0, epsilon: float = 0.05, ridge: float = 10.0, bias_ridge: float = 1.0
    ) -> None:
        super().__init__(ridge=ridge, bias_ridge=bias_ridge)
        self.alpha = check_number("alpha", alpha)
        self.epsilon = check_number("epsilon", epsilon, most=1.0)

    @property
    def params(self) -> Mapping[str, Json]:
        """The four numbers above."""
        return {
            "alpha": self.alpha,
            "epsilon": self.epsilon,
            "ridge": self._heads.ridge,
            "bias_ridge": self._heads.bias_ridge,
        }

    def explored(self, prediction: Prediction) -> tuple[tuple[float, ...], dict[str, Json]]:
        """Most on the highest bound; the bounds go to the log as "ucb", with epsilon."""
        bounds = [v + self.alpha * w for v, w in zip(prediction.value, prediction.width, strict=True)]
        return epsilon_greedy(bounds, epsilon=self.epsilon), {"ucb": bounds, "epsilon": self.epsilon}

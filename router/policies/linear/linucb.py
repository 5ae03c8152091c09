"""LinUCB: an upper bound of every arm's reward, and the highest bound wins (Li et al. 2010, algorithm 1, disjoint).

The paper plays argmax of mean + alpha * sqrt(x^T A^-1 x). Different, on purpose:

- Epsilon of the probability goes to all arms alike, beside the floors of the draw: argmax alone leaves the other arms
  probability 0, and then no log can judge another policy.
- The width is multiplied by the standard deviation of the noise, which the paper leaves inside alpha: alpha 1 is one
  posterior standard deviation, whatever the units of the reward.
- Quality and cost are two heads, and an intercept has its own prior (router/policies/linear/ridge.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ragbandit.router.policies.base import Number, PolicyOutput, Share, epsilon_greedy, read_params
from ragbandit.router.policies.linear.policy import RidgeParams, RidgePolicy
from ragbandit.shared.types import ArmName, Features, Json


@dataclass(frozen=True, kw_only=True, slots=True)
class LinUcbParams(RidgeParams):
    """Settings of linucb."""

    #: standard deviations of optimism
    alpha: Number = 1.0
    #: share of the probability that is spread over all arms; the floors keep every arm possible
    epsilon: Share = 0.0


class LinUcb(RidgePolicy):
    """Epsilon-greedy on mean + alpha * width of the reward; an arm without rows has the prior's mean 0 and width."""

    algorithm: ClassVar[str] = "linucb"

    def __init__(self, **params: Json) -> None:
        settings = read_params(LinUcbParams, given=params)
        super().__init__(settings)
        self.alpha, self.epsilon = settings.alpha, settings.epsilon

    def output(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> PolicyOutput:
        """Most on the highest bound; the bounds go to the log as "ucb", with epsilon."""
        prediction = self._heads.predict(features, arms=arms, weight=weight)
        bounds = [v + self.alpha * w for v, w in zip(prediction.value, prediction.width, strict=True)]
        facts = self.facts(prediction, weight=weight) | {"ucb": bounds, "epsilon": self.epsilon}
        return PolicyOutput(pmf=epsilon_greedy(bounds, epsilon=self.epsilon), scores=prediction.value, facts=facts)

"""Boltzmann exploration: the higher an arm's predicted reward, the more often it is drawn.

pmf(a) = exp(value(a) / temperature) / sum over arms, value the posterior mean of the reward (Sutton and Barto 1998,
section 2.3). The temperature stays where it is: exploration falls only as the values come apart, not with time, which
suits traffic that drifts. An arm never learned has value 0. The width of the posterior plays no part.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ragbandit.router.policies.base import PolicyOutput
from ragbandit.router.policies.linear.policy import RidgeParams, RidgePolicy
from ragbandit.router.policies.params import Positive, read_params
from ragbandit.shared.types import ArmName, Features, Json


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftmaxParams(RidgeParams):
    """Settings of softmax."""

    #: in units of reward; of two arms whose values lie that far apart one is drawn e times as often
    temperature: Positive = 0.05


class Softmax(RidgePolicy):
    """The arms' probabilities are the exponentials of their values over the temperature."""

    algorithm: ClassVar[str] = "softmax"

    def __init__(self, **params: Json) -> None:
        settings = read_params(SoftmaxParams, given=params)
        super().__init__(settings)
        self.temperature = settings.temperature

    def output(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> PolicyOutput:
        """Exponentials of the values against the best one, so that none overflows."""
        prediction = self._heads.predict_fast(features, arms=arms, weight=weight)
        best = max(prediction.value)
        shares = [math.exp((value - best) / self.temperature) for value in prediction.value]
        total = math.fsum(shares)
        pmf = tuple(share / total for share in shares)
        return PolicyOutput(pmf=pmf, scores=prediction.value, facts=self.facts(prediction, weight=weight))

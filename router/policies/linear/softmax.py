"""Boltzmann exploration: the higher an arm's predicted reward, the more often it is drawn.

pmf(a) = exp(value(a) / temperature) / sum over arms, value the posterior mean of the reward (Sutton and Barto 1998,
section 2.3). The temperature stays where it is: exploration falls only as the values come apart, not with time, which
suits traffic that drifts. An arm never learned has value 0. The width of the posterior plays no part.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ragbandit.router.policies.linear.ridge import Prediction, RidgePolicy
from ragbandit.router.policies.params import check_positive
from ragbandit.router.types import ArmName, Features, Json

__all__ = ["Softmax"]


class Softmax(RidgePolicy):
    """temperature: in units of reward (> 0); two arms that lie it apart are drawn e : 1.

    ridge, bias_ridge: prior precisions (> 0), as in RidgeHeads.
    """

    algorithm: ClassVar[str] = "softmax"

    def __init__(self, *, temperature: float = 0.1, ridge: float = 10.0, bias_ridge: float = 1.0) -> None:
        super().__init__(ridge=ridge, bias_ridge=bias_ridge)
        self.temperature = check_positive("temperature", temperature)

    @property
    def params(self) -> Mapping[str, Json]:
        """The three numbers above."""
        return {
            "temperature": self.temperature,
            "ridge": self._heads.ridge,
            "bias_ridge": self._heads.bias_ridge,
        }

    def predict(self, features: Features, *, arms: Sequence[ArmName]) -> Prediction:
        """The means alone are needed."""
        return self._heads.predict_fast(features, arms=arms)

    def explored(self, prediction: Prediction) -> tuple[tuple[float, ...], dict[str, Json]]:
        """Exponentials of the values against the best one, so that none overflows."""
        best = max(prediction.value)
        shares = [math.exp((value - best) / self.temperature) for value in prediction.value]
        total = math.fsum(shares)
        return tuple(share / total for share in shares), {}

"""MBA-RAG: epsilon-greedy on DistilBERT, one reward head per arm (arXiv 2412.01572, section 3).

The paper regresses r_a = A(y, y_a) - lambda C(a) on the encoder's output with squared error on the drawn arm
only, and explores with probability 1/ln(e) at step e. Kept: encoder, one head per arm, masked squared error,
epsilon-greedy with that schedule. Different, on purpose:

- The head is the exact minimiser of the ridge-regularised squared error over all updates so far (Bayesian linear
  regression, recursive form), not one gradient step per question: no learning rate, no dependence on the number
  of arms, and an exact function of the ledger.
- Epsilon has a lower bound, since an online service has no last step.
- A failing arm's reward is what the reward setting says (the authors' code turns -1 into 0).
- The pmf, and so the logged propensity, contains the exploration; the authors' dropout noise is absent.

`mba_paper`, the faithful fine-tuning, is another policy.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from router.errors import ConfigError, PolicyFault, SnapshotError
from router.policies.base import (
    Arrays,
    FeatureRows,
    PolicyNeed,
    PolicyOutput,
    counted_state,
    epsilon_greedy,
    restored_counts,
    tally,
)
from router.types import ArmName, Features, Json, Query, Update

__all__ = ["MbaRag"]

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class MbaRag:
    """Ridge regression per arm on z = (1, x / sqrt(d)), x the question's features; epsilon-greedy on its mean.

    ridge: prior precision of the weights (> 0), in units where |x|^2 / d is 1 on average.
    bias_ridge: prior precision of the intercept (> 0).
    epsilon_min, epsilon_max: bounds of 1/ln(n + 2) after n updates, in [0, 1].
    """

    algorithm: ClassVar[str] = "mba"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"features"})
    deterministic: ClassVar[bool] = True

    def __init__(
        self, *, ridge: float = 10.0, bias_ridge: float = 1.0, epsilon_min: float = 0.05, epsilon_max: float = 1.0
    ) -> None:
        for name, value in (("ridge", ridge), ("bias_ridge", bias_ridge)):
            if not 0 < value < math.inf:
                raise ConfigError(
                    f"must be a number above 0, not {value!r}", field=f"policy.params.{name}", remedy="for example 1.0"
                )
        if not 0 <= epsilon_min <= epsilon_max <= 1:
            raise ConfigError(
                f"epsilon_min {epsilon_min!r} and epsilon_max {epsilon_max!r} must be ordered and in [0, 1]",
                field="policy.params.epsilon_min",
                remedy="for example 0.05 and 1.0",
            )
        self.ridge, self.bias_ridge = float(ridge), float(bias_ridge)
        self.epsilon_min, self.epsilon_max = float(epsilon_min), float(epsilon_max)
        self.seen: dict[ArmName, int] = {}
        #: per arm: inverse precision (d+1, d+1), reward-weighted sum of z (d+1,), posterior mean (d+1,)
        self._inverse: dict[str, Matrix] = {}
        self._moment: dict[str, Vector] = {}
        self._mean: dict[str, Vector] = {}

    @property
    def params(self) -> Mapping[str, Json]:
        """The four numbers above."""
        return {
            "ridge": self.ridge,
            "bias_ridge": self.bias_ridge,
            "epsilon_min": self.epsilon_min,
            "epsilon_max": self.epsilon_max,
        }

    @property
    def updates(self) -> int:
        """How many updates it has learned."""
        return sum(self.seen.values())

    @property
    def _size(self) -> int:
        return next(iter(self._mean.values())).size

    @property
    def epsilon(self) -> float:
        """Exploration after the updates so far: 1/ln(n + 2), the paper's schedule from its step e = n + 2 on."""
        return min(self.epsilon_max, max(self.epsilon_min, 1.0 / math.log(self.updates + 2)))

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """Epsilon-greedy on the posterior means; an arm never learned scores the prior mean, 0."""
        del queries
        assert features is not None
        return [self._one(row, arms=offered) for row, offered in zip(features, arms, strict=True)]

    def _one(self, features: Features, *, arms: Sequence[ArmName]) -> PolicyOutput:
        z = _design(features)
        scores = tuple(float((self._mean[a] * z).sum()) if a in self._mean else 0.0 for a in arms)
        return PolicyOutput(
            pmf=epsilon_greedy(scores, epsilon=self.epsilon), scores=scores, facts={"epsilon": self.epsilon}
        )

    def learn(self, update: Update) -> None:
        """Rank-one update of the drawn arm's posterior (Sherman-Morrison), O(d^2) whatever the number of rows.

        Sums by einsum and numpy's own loops, never by BLAS: its result depends on the number of threads.
        """
        if update.features is None or (self._mean and update.features.size + 1 != self._size):
            raise PolicyFault("features are missing or of another length")
        z = _design(update.features)
        arm = update.arm
        if arm not in self._inverse:
            self._start(arm, size=z.size)
        inverse = self._inverse[arm]
        gain = np.einsum("ij,j->i", inverse, z)  # (d+1,)
        inverse -= gain[:, None] * (gain / (1.0 + float((gain * z).sum())))[None, :]
        self._moment[arm] += update.reward.value * z
        self._mean[arm] = np.einsum("ij,j->i", inverse, self._moment[arm])
        tally(self.seen, update)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """Three arrays per arm, named by the arm, and the count."""
        arrays, facts = counted_state(self.seen)
        for arm in sorted(self._inverse):
            arrays[f"inverse/{arm}"] = self._inverse[arm]
            arrays[f"moment/{arm}"] = self._moment[arm]
            arrays[f"mean/{arm}"] = self._mean[arm]
        return arrays, facts

    def restore(self, arrays: Arrays, facts: Mapping[str, Json]) -> None:
        """Take over a saved state; every arm must have its three arrays, finite, of one size."""
        self.seen = restored_counts(arrays, facts)
        arms = sorted(key.removeprefix("inverse/") for key in arrays if key.startswith("inverse/"))
        sizes = {len(np.atleast_1d(arrays[f"inverse/{arm}"])) for arm in arms}
        if len(sizes) > 1 or len(arrays) != 3 * len(arms):
            raise SnapshotError(f"arrays of different sizes or of other arms: {sorted(arrays)}")
        for arm in arms:
            (size,) = sizes
            for kind, shape in (("inverse", (size, size)), ("moment", (size,)), ("mean", (size,))):
                array = arrays.get(f"{kind}/{arm}")
                if array is None or array.shape != shape or array.dtype != np.float64:
                    raise SnapshotError(f"{kind}/{arm} must be float64 of shape {shape}")
        self._inverse = {arm: np.array(arrays[f"inverse/{arm}"], dtype=np.float64) for arm in arms}
        self._moment = {arm: np.array(arrays[f"moment/{arm}"], dtype=np.float64) for arm in arms}
        self._mean = {arm: np.array(arrays[f"mean/{arm}"], dtype=np.float64) for arm in arms}

    def _start(self, arm: str, *, size: int) -> None:
        precision = np.full(size, self.ridge)
        precision[0] = self.bias_ridge
        self._inverse[arm] = np.diag(1.0 / precision)
        self._moment[arm] = np.zeros(size)
        self._mean[arm] = np.zeros(size)


def _design(features: Features) -> Vector:
    """The row z = (1, x / sqrt(d)), shape (d+1,), float64."""
    z = np.empty(features.size + 1)
    z[0] = 1.0
    z[1:] = features
    z[1:] /= math.sqrt(features.size)
    return z

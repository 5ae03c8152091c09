"""A policy: plays the arm with the highest mean reward; an arm without rewards has the mean 0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ragbandit.router.policies.base import (
    HasParams,
    PolicyOutput,
    PolicyParams,
    Share,
    counted_state,
    epsilon_greedy,
    read_params,
    restored_counts,
    rows_of,
    tally,
)
from ragbandit.shared.errors import PolicyFault, SnapshotError


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnParams(PolicyParams):
    epsilon: Share = 0.1  # probability spread over all arms


class OwnPolicy(HasParams):
    needs: ClassVar[frozenset[Any]] = frozenset()
    deterministic: ClassVar[bool] = True

    def __init__(self, **params: Any) -> None:
        settings = read_params(OwnParams, given=params)
        super().__init__(settings)
        self.epsilon = settings.epsilon
        self.seen: dict[Any, int] = {}
        self.sums: dict[str, Any] = {}  # arm -> (sum of rewards, number of rows)

    def pmf(self, queries: Sequence[Any], *, features: Any, arms: Sequence[Sequence[Any]]) -> list[PolicyOutput]:
        del queries, features
        return [self._choose(offered) for offered in arms]

    def _choose(self, arms: Sequence[Any]) -> PolicyOutput:
        scores = tuple(float(np.divide(*self.sums[arm])) if arm in self.sums else 0.0 for arm in arms)
        return PolicyOutput(pmf=epsilon_greedy(scores, epsilon=self.epsilon), scores=scores)

    def learn(self, update: Any) -> None:
        if not np.isfinite(update.reward.value):
            raise PolicyFault(f"the reward is {update.reward.value!r}")
        rows = rows_of(update)
        if rows > 0.0:
            self.sums[update.arm] = self.sums.get(update.arm, 0.0) + rows * np.array([update.reward.value, 1.0])
        tally(self.seen, update)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, facts = counted_state(self.seen)
        kept = {f"mean/{arm}": pair for arm, pair in self.sums.items()}
        return {**arrays, **kept}, {**facts, "learned": sorted(kept)}

    def restore(self, arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        seen = restored_counts(facts)
        if sorted(arrays) != facts.get("learned") or any(pair.shape != (2,) for pair in arrays.values()):
            raise SnapshotError("the sums are missing, or of other arms")
        self.seen, self.sums = {**seen}, {name.removeprefix("mean/"): pair for name, pair in arrays.items()}

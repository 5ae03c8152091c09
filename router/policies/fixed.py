"""Policies that do not learn: always one arm, or all arms alike. Baselines of every table, and safe fallbacks."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ragbandit.router.policies.base import Arrays, PolicyNeed, PolicyOutput, counted_state, restored_counts, tally
from ragbandit.router.policies.params import check_arm
from ragbandit.router.types import ArmName, FeatureRows, Json, Query, Update

__all__ = ["Fixed", "Uniform"]


class Fixed:
    """All probability on one arm; uniform over the offered arms where that one is not offered."""

    algorithm: ClassVar[str] = "fixed"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset()
    deterministic: ClassVar[bool] = True

    def __init__(self, *, arm: str) -> None:
        self.arm = check_arm("arm", arm)
        self.seen: dict[ArmName, int] = {}

    @property
    def params(self) -> Mapping[str, Json]:
        """The arm."""
        return {"arm": self.arm}

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """One on the arm, zero elsewhere."""
        del queries, features
        return [
            PolicyOutput(pmf=tuple(float(name == self.arm) for name in offered))
            if self.arm in offered
            else _uniform(offered)
            for offered in arms
        ]

    def learn(self, update: Update) -> None:
        """Count it: the ledger goes on, so that a learning policy can be trained on it later."""
        tally(self.seen, update)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The updates seen."""
        return counted_state(self.seen)

    def restore(self, arrays: Arrays, facts: Mapping[str, Json]) -> None:
        """Take over the counts."""
        self.seen = restored_counts(arrays, facts)


class Uniform:
    """Every offered arm with the same probability: the best log for judging other policies."""

    algorithm: ClassVar[str] = "uniform"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset()
    deterministic: ClassVar[bool] = True

    def __init__(self) -> None:
        self.seen: dict[ArmName, int] = {}

    @property
    def params(self) -> Mapping[str, Json]:
        """Nothing to set."""
        return {}

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """1/K everywhere."""
        del queries, features
        return [_uniform(offered) for offered in arms]

    def learn(self, update: Update) -> None:
        """Count it."""
        tally(self.seen, update)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The updates seen."""
        return counted_state(self.seen)

    def restore(self, arrays: Arrays, facts: Mapping[str, Json]) -> None:
        """Take over the counts."""
        self.seen = restored_counts(arrays, facts)


def _uniform(arms: Sequence[ArmName]) -> PolicyOutput:
    return PolicyOutput(pmf=(1.0 / len(arms),) * len(arms))

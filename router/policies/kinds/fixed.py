"""Policies that do not learn: always one arm, or all arms alike. Baselines of every table, and safe fallbacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ragbandit.router.policies.base import Arrays, PolicyNeed, PolicyOutput, counted_state, restored_counts, tally
from ragbandit.router.policies.params import ArmParam, HasParams, PolicyParams, read_params
from ragbandit.shared.types import ArmName, FeatureRows, Json, Query, Update

__all__ = ["Fixed", "Uniform"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedParams(PolicyParams):
    """Settings of fixed."""

    arm: ArmParam

    arms_named: ClassVar[tuple[str, ...]] = ("arm",)


class Fixed(HasParams):
    """All probability on one arm; uniform over the offered arms where that one is not offered."""

    algorithm: ClassVar[str] = "fixed"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset()
    deterministic: ClassVar[bool] = True
    lean: ClassVar[bool] = True

    def __init__(self, **params: Json) -> None:
        settings = read_params(FixedParams, given=params)
        super().__init__(settings)
        self.arm = settings.arm
        self.seen: dict[ArmName, int] = {}

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


@dataclass(frozen=True, kw_only=True, slots=True)
class UniformParams(PolicyParams):
    """Uniform has no settings."""


class Uniform(HasParams):
    """Every offered arm with the same probability: the best log for judging other policies."""

    algorithm: ClassVar[str] = "uniform"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset()
    deterministic: ClassVar[bool] = True
    lean: ClassVar[bool] = True

    def __init__(self, **params: Json) -> None:
        super().__init__(read_params(UniformParams, given=params))
        self.seen: dict[ArmName, int] = {}

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

"""Policies that do not learn, for baselines and fallbacks: one arm, two arms in a fixed proportion, all arms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ragbandit.router.policies.base import (
    WHERE,
    ArmParam,
    Arrays,
    Facts,
    HasParams,
    PolicyNeed,
    PolicyOutput,
    PolicyParams,
    Share,
    counted_state,
    read_params,
    restored_counts,
    tally,
)
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import ArmName, FeatureRows, Json, Query, Update


class CountingPolicy(HasParams):
    """A policy that only counts the updates of each arm.

    The ledger is written as for other policies, so that a learning policy can be trained on it later.
    """

    def __init__(self, params: PolicyParams) -> None:
        super().__init__(params)
        self.seen: dict[ArmName, int] = {}

    def learn(self, update: Update) -> None:
        """Count the update."""
        tally(self.seen, update)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The counts."""
        return counted_state(self.seen)

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Load the counts."""
        del arrays
        self.seen = restored_counts(facts)


class _Shares(CountingPolicy):
    """A pmf that depends only on the offered arms, without scores. shares: arm -> share; {} for a uniform pmf."""

    needs: ClassVar[frozenset[PolicyNeed]] = frozenset()
    deterministic: ClassVar[bool] = True
    lean: ClassVar[bool] = True

    def __init__(self, params: PolicyParams, *, shares: Mapping[ArmName, float]) -> None:
        super().__init__(params)
        self.shares = shares

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """The shares. If one arm with a share is offered it gets all; without such an arm the pmf is uniform."""
        del queries, features
        return [PolicyOutput(pmf=self._pmf(offered)) for offered in arms]

    def _pmf(self, arms: Sequence[ArmName]) -> tuple[float, ...]:
        with_share = [arm for arm in arms if arm in self.shares]
        if not with_share:
            return (1.0 / len(arms),) * len(arms)
        if len(with_share) == 1:
            return tuple(float(arm == with_share[0]) for arm in arms)
        return tuple(self.shares.get(arm, 0.0) for arm in arms)


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedParams(PolicyParams):
    """Settings of fixed."""

    arm: ArmParam

    arms_named: ClassVar[tuple[str, ...]] = ("arm",)


class Fixed(_Shares):
    """All probability on one arm; uniform if that arm is not offered."""

    algorithm: ClassVar[str] = "fixed"

    def __init__(self, **params: Json) -> None:
        settings = read_params(FixedParams, given=params)
        super().__init__(settings, shares={settings.arm: 1.0})


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureParams(PolicyParams):
    """Settings of mixture."""

    first: ArmParam
    second: ArmParam
    #: probability of `second`
    share: Share = 0.5

    arms_named: ClassVar[tuple[str, ...]] = ("first", "second")


class Mixture(_Shares):
    """`second` with probability `share`, else `first`: the baseline that a router must beat at equal cost.

    If only one of the two arms is offered it gets all probability; without both the pmf is uniform.
    """

    algorithm: ClassVar[str] = "mixture"

    def __init__(self, **params: Json) -> None:
        settings = read_params(MixtureParams, given=params)
        shares = {settings.first: 1.0 - settings.share, settings.second: settings.share}
        super().__init__(settings, shares=shares)
        if settings.first == settings.second:
            message = f"{settings.second!r} is also the first arm"
            remedy = "name another arm; policy fixed gives all to one arm"
            raise ConfigError(message, field=f"{WHERE}.second", remedy=remedy)


@dataclass(frozen=True, kw_only=True, slots=True)
class UniformParams(PolicyParams):
    """Uniform has no settings."""


class Uniform(_Shares):
    """Every offered arm with the same probability: the best log for judging other policies."""

    algorithm: ClassVar[str] = "uniform"

    def __init__(self, **params: Json) -> None:
        super().__init__(read_params(UniformParams, given=params), shares={})

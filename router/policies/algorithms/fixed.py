"""Policies that do not learn, for baselines and fallbacks.

They count updates, so they have a ledger, and a learning policy can be trained on this ledger later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ragbandit.router.policies.base import (
    PARAMS_KEY,
    ArmParam,
    PerQuestionPolicy,
    PolicyNeed,
    PolicyOutput,
    PolicyParams,
    Share,
    read_params,
)
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import ArmName, Features, Json, Query


class _Shares(PerQuestionPolicy):
    """Base of policies whose pmf depends only on the offered arms. shares: arm -> its share; {} for a uniform pmf."""

    needs: ClassVar[frozenset[PolicyNeed]] = frozenset()
    deterministic: ClassVar[bool] = True
    lean: ClassVar[bool] = True

    def __init__(self, params: PolicyParams, *, shares: Mapping[ArmName, float]) -> None:
        super().__init__(params)
        self.shares = shares

    def output(self, query: Query, *, features: Features | None, arms: Sequence[ArmName]) -> PolicyOutput:
        """If only one arm with a share is offered, it gets all probability. If none is offered, the pmf is uniform."""
        del query, features
        with_share = [arm for arm in arms if arm in self.shares]
        if not with_share:
            return PolicyOutput(pmf=(1.0 / len(arms),) * len(arms))
        if len(with_share) == 1:
            return PolicyOutput(pmf=tuple(float(arm == with_share[0]) for arm in arms))
        return PolicyOutput(pmf=tuple(self.shares.get(arm, 0.0) for arm in arms))


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedParams(PolicyParams):
    arm: ArmParam

    arms_named: ClassVar[tuple[str, ...]] = ("arm",)


class Fixed(_Shares):
    algorithm: ClassVar[str] = "fixed"
    example: ClassVar[Mapping[str, Json]] = {"arm": "multi_step"}

    def __init__(self, **params: Json) -> None:
        settings = read_params(FixedParams, given=params)
        super().__init__(settings, shares={settings.arm: 1.0})


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureParams(PolicyParams):
    first: ArmParam
    second: ArmParam
    share: Share = 0.5

    arms_named: ClassVar[tuple[str, ...]] = ("first", "second")


class Mixture(_Shares):
    """`second` with probability `share`, else `first`. A router must beat this baseline at the same mean cost."""

    algorithm: ClassVar[str] = "mixture"
    example: ClassVar[Mapping[str, Json]] = {"first": "single_step", "second": "multi_step", "share": 0.3}

    def __init__(self, **params: Json) -> None:
        settings = read_params(MixtureParams, given=params)
        shares = {settings.first: 1.0 - settings.share, settings.second: settings.share}
        super().__init__(settings, shares=shares)
        if settings.first == settings.second:
            message = f"{settings.second!r} is also the first arm"
            remedy = "name another arm; policy fixed gives all to one arm"
            raise ConfigError(message, field=f"{PARAMS_KEY}.second", remedy=remedy)


@dataclass(frozen=True, kw_only=True, slots=True)
class UniformParams(PolicyParams):
    pass


class Uniform(_Shares):
    """The same probability for each offered arm. Its log is the best one for evaluating other policies."""

    algorithm: ClassVar[str] = "uniform"

    def __init__(self, **params: Json) -> None:
        super().__init__(read_params(UniformParams, given=params), shares={})

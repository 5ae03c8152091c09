"""Two arms in a fixed proportion, whatever the question: the line that a router must beat.

A router that spends as much as always-single and always-multi mixed at random, and is no better, has learned nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ragbandit.router.policies.base import Arrays, PolicyNeed, PolicyOutput, counted_state, restored_counts, tally
from ragbandit.router.policies.params import WHERE, ArmParam, HasParams, PolicyParams, Share, read_params
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import ArmName, FeatureRows, Json, Query, Update

__all__ = ["Mixture"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureParams(PolicyParams):
    """Settings of mixture."""

    first: ArmParam
    second: ArmParam
    #: probability of `second`
    share: Share = 0.5

    arms_named: ClassVar[tuple[str, ...]] = ("first", "second")


class Mixture(HasParams):
    """`second` with probability `share`, else `first`.

    Where one of them is not offered the other takes all; where neither is, all offered arms are alike.
    """

    algorithm: ClassVar[str] = "mixture"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset()
    deterministic: ClassVar[bool] = True
    lean: ClassVar[bool] = True

    def __init__(self, **params: Json) -> None:
        settings = read_params(MixtureParams, given=params)
        super().__init__(settings)
        self.first, self.second, self.share = settings.first, settings.second, settings.share
        if self.first == self.second:
            raise ConfigError(
                f"{self.second!r} is the first arm too",
                field=f"{WHERE}.second",
                remedy="name another arm; policy fixed gives all to one arm",
            )
        self.seen: dict[ArmName, int] = {}

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """The same for every question with the same offer; it expects nothing of any arm, so it has no scores."""
        del queries, features
        return [PolicyOutput(pmf=self._one(offered)) for offered in arms]

    def _one(self, arms: Sequence[ArmName]) -> tuple[float, ...]:
        wanted: dict[str, float] = {self.first: 1.0 - self.share, self.second: self.share}
        here = [arm for arm in arms if arm in wanted]
        if not here:
            return (1.0 / len(arms),) * len(arms)
        if len(here) == 1:
            return tuple(float(arm == here[0]) for arm in arms)
        return tuple(wanted.get(arm, 0.0) for arm in arms)

    def learn(self, update: Update) -> None:
        """Count it: the ledger goes on, so that a learning policy can be trained on it later."""
        tally(self.seen, update)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The updates seen."""
        return counted_state(self.seen)

    def restore(self, arrays: Arrays, facts: Mapping[str, Json]) -> None:
        """Take over the counts."""
        self.seen = restored_counts(arrays, facts)

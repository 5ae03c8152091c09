"""Two arms in a fixed proportion, whatever the question: the line that a router must beat.

A router that spends as much as always-single and always-multi mixed at random, and is no better, has learned nothing.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ragbandit.router.policies.base import Arrays, PolicyNeed, PolicyOutput, counted_state, restored_counts, tally
from ragbandit.router.policies.params import check_arm, check_number, refused
from ragbandit.router.types import ArmName, FeatureRows, Json, Query, Update

__all__ = ["Mixture"]


class Mixture:
    """`second` with probability `share`, else `first`.

    Where one of them is not offered the other takes all; where neither is, all offered arms are alike.
    share: in [0, 1].
    """

    algorithm: ClassVar[str] = "mixture"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset()
    deterministic: ClassVar[bool] = True

    def __init__(self, *, first: str, second: str, share: float = 0.5) -> None:
        self.first, self.second = check_arm("first", first), check_arm("second", second)
        if first == second:
            raise refused("second", second, wanted="another arm than first", remedy="policy fixed gives all to one arm")
        self.share = check_number("share", share, most=1.0)
        self.seen: dict[ArmName, int] = {}

    @property
    def params(self) -> Mapping[str, Json]:
        """The two arms and the share of the second."""
        return {"first": self.first, "second": self.second, "share": self.share}

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

"""Holdback: a standing share of the questions for one arm, that what the router earns can be compared with it.

    pmf'_a = (1 - share) * pmf_a + share * [a is the holdback's arm]

The draw applies it last, after floors and restraint. What is logged is pmf', so that the propensities are exact and
every row counts for both sides of the comparison.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ragbandit.shared.types import ArmName, Json

#: the key of a decision's facts with the holdback of its draw: arm, share, and the floor that its arms had before it
HOLDBACK: Final = "holdback"


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdback:
    """The arm, and its share of the questions, in (0, 1)."""

    arm: ArmName
    share: float

    def applies(self, arms: Sequence[ArmName]) -> bool:
        """Whether it has a part in a draw from these arms: its arm is offered, beside another one."""
        return len(arms) > 1 and self.arm in arms

    def facts(self, *, floor: float) -> dict[str, Json]:
        """What the row says of it. floor: the least probability before it."""
        return {"arm": self.arm, "share": self.share, "floor": floor}


def holdback_of(facts: Mapping[str, Json]) -> Holdback | None:
    """The holdback that a stored decision was drawn with, out of its facts; None where it had none."""
    row = facts.get(HOLDBACK)
    if not isinstance(row, Mapping):
        return None
    arm, share = row.get("arm"), row.get("share")
    return Holdback(arm=ArmName(str(arm)), share=float(share)) if isinstance(share, int | float) else None

"""Restraint: how much of a policy's pmf, floors included, is drawn from, the rest being the incumbent arm's.

    pmf'_a = share * pmf_a + (1 - share) * [a is the incumbent]

share is the largest in [0, 1] whose expected risk, share * sum over arms of pmf_a * risk_a, is within the allowance.
The draw applies it after the floors: they cost reward as well. What is logged is pmf' and the floor that is left.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ragbandit.shared.types import ArmName, Decision, Json

__all__ = ["INCUMBENT", "Restraint", "configured_floor", "held_back", "held_back_wholly"]

#: the key of a decision's facts with what held it back: arm, share, slack, reason, floor
INCUMBENT: Final = "incumbent"


@dataclass(frozen=True, kw_only=True, slots=True)
class Restraint:
    """What a policy that is protected says about one question, beside its pmf."""

    #: the incumbent
    arm: ArmName
    #: of every offered arm: what drawing it may cost against the incumbent, >= -1; 0 for the incumbent itself
    risks: tuple[float, ...]
    #: the most that the risks may be on average; 0 is the incumbent alone
    allowance: float
    #: reward that may be lost before the promise is broken; below 0 it is broken
    slack: float
    #: why the share is below 1, where it is
    reason: str


def held_back(
    pmf: Sequence[float], *, restraint: Restraint, floor: float, arms: Sequence[ArmName]
) -> tuple[tuple[float, ...], float, dict[str, Json]]:
    """The pmf that is drawn from, its floor, and what the row says of it.

    Where the incumbent is not offered the pmf stays as it is.
    """
    if restraint.arm not in arms:
        return (
            tuple(pmf),
            floor,
            _said(restraint.arm, share=1.0, slack=restraint.slack, reason="not offered", floor=floor),
        )
    risk = math.fsum(p * r for p, r in zip(pmf, restraint.risks, strict=True))
    share = 1.0 if risk <= restraint.allowance else max(restraint.allowance, 0.0) / risk
    mixed = tuple(share * p + (1.0 - share if arm == restraint.arm else 0.0) for p, arm in zip(pmf, arms, strict=True))
    reason = restraint.reason if share < 1.0 else None
    return mixed, floor * share, _said(restraint.arm, share=share, slack=restraint.slack, reason=reason, floor=floor)


def held_back_wholly(
    incumbent: ArmName, *, floor: float, arms: Sequence[ArmName]
) -> tuple[tuple[float, ...], float, dict[str, Json]]:
    """The incumbent alone, where the policy broke its contract: nobody knows what another arm would cost."""
    pmf = tuple(float(arm == incumbent) for arm in arms)
    return pmf, 0.0, _said(incumbent, share=0.0, slack=None, reason="the policy failed", floor=floor)


def _said(arm: ArmName, *, share: float, slack: float | None, reason: str | None, floor: float) -> dict[str, Json]:
    return {"arm": arm, "share": share, "slack": slack, "reason": reason, "floor": floor}


def configured_floor(decision: Decision) -> float:
    """The floor that a decision was made with, before it was held back; its `floor` is what is left of that."""
    found = decision.facts.get(INCUMBENT)
    floor = found.get("floor") if isinstance(found, Mapping) else None
    return float(floor) if isinstance(floor, int | float) else decision.floor

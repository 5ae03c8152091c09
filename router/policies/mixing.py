"""Restraint: how much of a policy's pmf, floors included, is drawn from, the rest being the incumbent arm's.

    pmf'_a = share * pmf_a + (1 - share) * [a is the incumbent]

share is the largest in [0, 1] whose expected risk, share * sum over arms of pmf_a * risk_a, is within the allowance.
The draw applies it after the floors: they cost reward as well. What is logged is pmf' and the floor that is left.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ragbandit.router.policies.base import Restraint
from ragbandit.shared.types import ArmName, Decision, Json

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


#: the key of a decision's facts with what held it back: arm, share, slack, reason, floor
INCUMBENT: Final = "incumbent"


def held_back(
    pmf: Sequence[float], *, restraint: Restraint, floor: float, arms: Sequence[ArmName]
) -> tuple[tuple[float, ...], float, dict[str, Json]]:
    """The pmf that is drawn from, its floor, and what the row says of it.

    Where the incumbent is not offered the pmf stays as it is.
    """
    if restraint.arm not in arms:
        facts = _facts(restraint.arm, share=1.0, slack=restraint.slack, reason="not offered", floor=floor)
        return tuple(pmf), floor, facts
    risk = math.fsum(p * r for p, r in zip(pmf, restraint.risks, strict=True))
    share = 1.0 if risk <= restraint.allowance else max(restraint.allowance, 0.0) / risk
    mixed = tuple(share * p + (1.0 - share if arm == restraint.arm else 0.0) for p, arm in zip(pmf, arms, strict=True))
    reason = restraint.reason if share < 1.0 else None
    return mixed, floor * share, _facts(restraint.arm, share=share, slack=restraint.slack, reason=reason, floor=floor)


def held_back_wholly(
    incumbent: ArmName, *, floor: float, arms: Sequence[ArmName]
) -> tuple[tuple[float, ...], float, dict[str, Json]]:
    """The incumbent alone, where the policy broke its contract: nobody knows what another arm would cost."""
    pmf = tuple(float(arm == incumbent) for arm in arms)
    return pmf, 0.0, _facts(incumbent, share=0.0, slack=None, reason="the policy failed", floor=floor)


def _facts(arm: ArmName, *, share: float, slack: float | None, reason: str | None, floor: float) -> dict[str, Json]:
    return {"arm": arm, "share": share, "slack": slack, "reason": reason, "floor": floor}


def configured_floor(decision: Decision) -> float:
    """The floor that a decision was made with, before restraint and holdback; its `floor` is what is left of that."""
    facts = decision.facts.get(INCUMBENT, decision.facts.get(HOLDBACK))
    floor = facts.get("floor") if isinstance(facts, Mapping) else None
    return float(floor) if isinstance(floor, int | float) else decision.floor


def mixed(champion: Sequence[float], candidate: Sequence[float], *, weight: float) -> tuple[float, ...]:
    """The mixture of two pmfs over the same arms, normalised exactly as `draw.gate` does. weight: in [0, 1]."""
    parts = tuple((1.0 - weight) * p + weight * q for p, q in zip(champion, candidate, strict=True))
    total = math.fsum(parts)
    return tuple(p / total for p in parts)


def mixed_floor(champion: float, candidate: float, *, weight: float, arms: int, added: int = 0) -> float:
    """The least probability that an arm can have in a mixture.

    champion, candidate: their floors. arms: of the mixture. added: those that the champion does not offer.
    """
    known = 0.0 if added else min(champion, 1.0 / arms)
    return (1.0 - weight) * known + weight * min(candidate, 1.0 / arms)

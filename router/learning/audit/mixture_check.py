"""Mixtures of a canary held against their parts: what the row says of champion and candidate must give its pmf."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ragbandit.router.policies.canary import mixed
from ragbandit.shared.types import CANDIDATE, Decision

__all__ = ["champion_part", "mixture_fault"]

#: a mixture is made of floats that the row has: but for this, another release may add them up in another order
_ROUNDING: Final = 1e-12


def mixture_fault(decision: Decision) -> str | None:
    """Why the row's pmf is not the mixture that its facts tell; None where it is, or where no canary had a share."""
    said = _mixture_of(decision)
    if said is None:
        return None
    try:
        weight, champion, candidate = float(said["weight"]), tuple(said["champion"]), tuple(said["pmf"])
        pmf = mixed(champion, candidate, weight=weight)
        added = decision.arms[len(decision.arms) - len(said.get("added", ())) :]
        given = math.fsum(p for arm, p in zip(decision.arms, champion, strict=True) if arm in added)
        far = max(abs(p - q) for p, q in zip(pmf, decision.pmf, strict=True))
    except (KeyError, ValueError, TypeError, ZeroDivisionError) as error:
        return f"its canary's parts cannot be read: {error!r}"
    if not 0.0 < weight < 1.0:
        return f"its canary has the weight {weight!r}"
    if given:
        return f"the champion gives {given!r} to arms that it does not offer"
    return f"the mixture of champion and candidate is {pmf}, not its pmf" if far > _ROUNDING else None


def champion_part(decision: Decision) -> Decision:
    """The decision as the champion alone would have had it; itself where no canary had a share.

    Its facts must have passed `mixture_fault`.
    """
    said = _mixture_of(decision)
    if said is None:
        return decision
    own = len(decision.arms) - len(said.get("added", ()))
    pmf = tuple(float(p) for p in said["champion"][:own])
    return replace(decision, arms=decision.arms[:own], pmf=pmf, floor=float(said["floor"]), scores=None)


def _mixture_of(decision: Decision) -> Mapping[str, Any] | None:
    """What the row says of the canary that had a share of its pmf."""
    said = decision.facts.get(CANDIDATE)
    if not isinstance(said, Mapping) or said.get("state") != "canary" or said.get("pmf") is None:
        return None
    return said

"""What decides questions instead of the policy: a safe start, a warm-up, a ledger that is learned again, a budget.

While it decides more than half of the draws, it is the first thing that a report says: what was served says little
about routing then.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from ragbandit.router.comparison import forecast
from ragbandit.router.storage.sql.json_columns import object_at
from ragbandit.shared.texts.formats import percent
from ragbandit.shared.types import BUDGET_FACTOR, ColdStartFloors, Json, Rebuilding, SafeStart

Kind = Literal["policy", "safe start", "warm-up", "rebuilt ledger", "budget"]

#: number of newest questions that are read: the newer half gives the state, the older half how it changes
NEWEST: Final = 200
#: a budget decides if it raises the price of a question at least by this factor
_RAISED: Final = 2.0
#: a smaller fall of the share from the older to the newer half of the newest questions gives no forecast
_CLEAR: Final = 0.05


class Decider(NamedTuple):
    kind: Kind
    share: float  #: probability that it decided the draw, in [0, 1]
    arm: str = ""  #: the incumbent of a safe start


_POLICY: Final = Decider("policy", 0.0)


def decider_of(facts: Mapping[str, Json], *, request: Mapping[str, Any]) -> Decider:
    """What decided a draw, by its stored facts. request: the parsed column of the decision."""
    if Rebuilding.of(facts):
        return Decider("rebuilt ledger", 1.0)
    incumbent, cold_start = SafeStart.of(facts), ColdStartFloors.of(facts)
    if incumbent is not None and incumbent.share < 1.0:
        return Decider("safe start", 1.0 - incumbent.share, str(incumbent.arm))
    factor = object_at(request, "edge").get(BUDGET_FACTOR)
    if isinstance(factor, int | float) and factor >= _RAISED:
        return Decider("budget", 1.0)
    if cold_start is not None:
        return Decider("warm-up", min(sum(cold_start.floors.values()), 1.0))
    return _POLICY


def state_of(deciders: Sequence[Decider], *, rated: float) -> str | None:
    """The state in words, if something else than the policy decides more than half of these draws; else None.

    deciders: of the newest questions, the newest first. rated: share of the questions that are rated
    """
    shares: dict[Kind, float] = {}
    recent = deciders[: NEWEST // 2]
    for decider in recent:
        shares[decider.kind] = shares.get(decider.kind, 0.0) + decider.share / len(recent)
    if sum(shares.values()) <= 0.5:
        return None
    kind: Kind = max(shares, key=lambda name: shares[name])
    share = shares[kind]
    size = percent(round(share, 2))
    if kind == "rebuilt ledger":
        return f"rebuilt ledger: another policy decides {size} of the questions until the policy is learned again"
    if kind == "budget":
        return f"budget: {size} of the questions are decided at a price that spending has raised"
    if kind == "warm-up":
        return f"warm-up: {size} of the draws still try arms that the policy hardly knows{_ends(deciders, rated=rated)}"
    arm = next(decider.arm for decider in deciders if decider.kind == kind)
    return f"safe start: {size} of the questions still go to {arm}{_ends(deciders, rated=rated)}"


def _ends(deciders: Sequence[Decider], *, rated: float) -> str:
    """When routing can be judged: the line through the shares of the newer and the older half, extended to a half."""
    half = len(deciders) // 2
    newer, older = (sum(d.share for d in part) / max(half, 1) for part in (deciders[:half], deciders[-half:]))
    if half < NEWEST // 4 or rated <= 0.0 or older - newer < _CLEAR:
        return "; routing is judged when it decides most of them"
    questions = (newer - 0.5) * half / (older - newer)
    return f"; routing is judged after {forecast(max(questions * rated, 1.0), noun='rating')}"

"""What decides questions instead of the policy: a safe start, a warm-up, a ledger that is learned again, a budget.

While one of these decides more than half of the questions, a report begins with it: what was served then says little
about routing. A safe start matters only for draws in which the policy prefers other arms than the incumbent, so its
share is computed among these draws. If all draws counted, a policy that gives half of the questions to the incumbent
would hide a safe start that takes most of the other half. Questions without a draw are not decided by a safe start.

If a budget raises the price only for some askers, their questions are judged apart, so that others get a verdict.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from sqlalchemy import ColumnElement, select

from ragbandit.router.reporting.left_out import ASKER_COLUMNS, DECIDED_BY, asker_of, budget_of, decided_by
from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, QueriedFacts
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.texts.formats import percent
from ragbandit.shared.types import ColdStartFloors, HoldbackShare, Json, Rebuilding, SafeStart

Kind = Literal[
    "policy", "safe start", "warm-up", "rebuilt ledger", "budget", "outage", "limit", "kill switch", "no draw"
]

#: words for what decided a question without a draw -> its kind; only deciders that leave after a time
_FOR_A_TIME: Final[Mapping[str, Kind]] = {
    DECIDED_BY["breaker"]: "outage",
    DECIDED_BY["failover"]: "outage",
    DECIDED_BY["limit"]: "limit",
    DECIDED_BY["kill switch"]: "kill switch",
}

#: number of newest questions that are read: the newer half gives the state, all of them who pays a raised price
NEWEST: Final = 200
#: a budget decides a question if it raises the price by at least this factor
_RAISED: Final = 2.0
#: questions at a price that a budget raised are judged apart if other askers ask at least this share of the questions;
#: the state of a safe start names what decides at least this share of the questions without a draw
_OTHERS: Final = 0.1
#: why a report with a state does not forecast its verdict
UNSTEADY: Final = "something else than the policy decides most questions"
#: end of the sentence of a state that ends as the policy learns. When it ends is not foreseen: its share jumps
_VERDICT: Final = "; routing gets a verdict when it decides most of them"
#: if the policy had a smaller share in the draw, its own probabilities are not computed back from the draw's
_KNOWN_FROM: Final = 0.05


class Decider(NamedTuple):
    kind: Kind
    share: float  #: probability that it decided instead of the policy, in [0, 1]
    arm: str = ""  #: the incumbent of a safe start
    #: probability that the policy without the safe start gave to other arms than the incumbent; 1 without an incumbent
    others: float = 1.0
    asker: str = ""  #: the API key that asked, or else the tenant, in words
    by: str = ""  #: what decided a question without a draw, in words
    served: str = ""  #: the arm that the question got


_POLICY: Final = Decider("policy", 0.0)


def without_draw(decided_by: str) -> Decider:
    """What decided a question without a draw. decided_by: the words of `left_out.decided_by`"""
    return Decider(_FOR_A_TIME.get(decided_by, "no draw"), 1.0, by=decided_by)


def newest_deciders(connection: Connection, condition: ColumnElement[bool]) -> list[Decider]:
    """What decided the newest NEWEST questions, the newest first.

    condition: on `decisions`
    """
    query = select(*decisions.c["arm", "arms", "pmf", "facts"], *ASKER_COLUMNS, *FACT_COLUMNS).where(condition)
    query = query.order_by(decisions.c.made_at.desc(), decisions.c.id.desc()).limit(2 * NEWEST)
    deciders = list[Decider]()
    for row in connection.execute(query).mappings():
        arms, facts = json.loads(row["arms"]), QueriedFacts.of_row(row)
        if facts.is_imported:
            continue
        by = decided_by(facts, arms=arms)
        if by is None:
            pmf = dict(zip(arms, json.loads(row["pmf"]), strict=True))
            decider = decider_of(object_or_empty(row["facts"]), budget_factor=facts.budget_factor, pmf=pmf)
        else:
            decider = without_draw(by)
        deciders.append(decider._replace(asker=asker_of(row), served=row["arm"]))
    return deciders[:NEWEST]


def decider_of(
    facts: Mapping[str, Json], *, budget_factor: float | None, pmf: Mapping[str, float] | None = None
) -> Decider:
    """What decided a draw, by its stored facts.

    budget_factor: factor in its QueriedFacts. pmf: arm -> its probability in the draw; None if it is not known
    """
    if Rebuilding.of(facts):
        return Decider("rebuilt ledger", 1.0)
    incumbent, cold_start = SafeStart.of(facts), ColdStartFloors.of(facts)
    others = 1.0 if incumbent is None or pmf is None else _others(incumbent, HoldbackShare.of(facts), pmf=pmf)
    if is_raised(budget_factor):
        return Decider("budget", 1.0)
    if incumbent is not None and incumbent.share < 1.0:
        return Decider("safe start", 1.0 - incumbent.share, str(incumbent.arm), others)
    if cold_start is not None:
        return Decider("warm-up", min(sum(cold_start.floors.values()), 1.0))
    return _POLICY._replace(others=others)


def is_raised(budget_factor: float | None) -> bool:
    return budget_factor is not None and budget_factor >= _RAISED


def paced_askers(questions: Mapping[str, int], *, raised_price: Mapping[str, int]) -> frozenset[str]:
    """Askers whose price a budget raised, if other askers have a large share of the questions. Otherwise none: such
    prices are then a part of routing. questions, raised_price: asker -> number of all, of those at a raised price
    """
    others = sum(count for asker, count in questions.items() if not raised_price.get(asker))
    is_apart = others >= _OTHERS * sum(questions.values())
    return frozenset(asker for asker, count in raised_price.items() if count) if is_apart else frozenset()


def _others(incumbent: SafeStart, holdback: HoldbackShare | None, *, pmf: Mapping[str, float]) -> float:
    """See `Decider.others`; 1 if the policy had so small a share in the draw that its probabilities are not known."""
    if incumbent.share < _KNOWN_FROM:
        return 1.0
    other = 1.0 - pmf.get(str(incumbent.arm), 0.0)
    if holdback is not None:
        held = holdback.share if holdback.arm != incumbent.arm else 0.0
        other = (other - held) / (1.0 - holdback.share)
    return min(max(other / incumbent.share, 0.0), 1.0)


def state_of(deciders: Sequence[Decider]) -> str | None:
    """The state in words if something else than the policy decides more than half of these questions; else None.

    deciders: of the newest questions, the newest first
    """
    raised = [decider for decider in deciders if decider.kind == "budget"]
    paced = paced_askers(Counter(one.asker for one in deciders), raised_price=Counter(one.asker for one in raised))
    deciders = [
        one
        if one.kind != "budget" or one.asker not in paced
        else one._replace(kind="no draw", by=budget_of([one.asker]))
        for one in deciders
    ]
    recent = deciders[: NEWEST // 2]
    ours = [decider for decider in recent if decider.kind in ("policy", "safe start")]
    shares: dict[Kind, float] = {"safe start": _held(ours) * len(ours) / max(len(recent), 1)}
    for decider in recent:
        if decider.kind not in ("policy", "safe start", "no draw"):
            shares[decider.kind] = shares.get(decider.kind, 0.0) + decider.share / len(recent)
    if sum(shares.values()) <= 0.5:
        return None
    kind: Kind = max(shares, key=lambda name: shares[name])
    size = percent(round(shares[kind], 2))
    if kind == "rebuilt ledger":
        return f"rebuilt ledger: another policy decides {size} of the questions until the policy is learned again"
    if kind == "budget":
        return f"budget: {size} of the questions are decided at a price that spending has raised"
    if kind == "warm-up":
        return f"warm-up: {size} of the draws still try arms that the policy hardly knows{_VERDICT}"
    if kind != "safe start":
        names = Counter(decider.by for decider in recent if decider.kind == kind)
        return f"{kind}: {size} of the questions are decided by {', or '.join(by for by, _ in names.most_common())}"
    arm = next(decider.arm for decider in deciders if decider.kind == kind)
    share = percent(round(sum(one.served == arm for one in recent) / len(recent), 2))
    return f"safe start: {share} of the questions still go to {arm}{_decided_without(recent)}{_VERDICT}"


def _decided_without(recent: Sequence[Decider]) -> str:
    """What decides many of the questions without a draw, as the end of a clause; "" if few are."""
    for by, count in Counter(one.by for one in recent if one.by).most_common(1):
        if count >= _OTHERS * len(recent):
            return f", {percent(round(count / len(recent), 2))} are decided by {by}"
    return ""


def _held(deciders: Sequence[Decider]) -> float:
    """Share that something else decides of the draws in which the policy prefers other arms than the incumbent."""
    return math.fsum(one.others * one.share for one in deciders) / max(math.fsum(one.others for one in deciders), 1e-9)

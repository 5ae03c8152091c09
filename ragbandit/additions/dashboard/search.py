"""Search of decisions, newest first, in pages that begin at a key and read few rows, and the later turns of one.

Arm, state and tenant have no index. So a page filtered by them may be short or empty although a next page exists.
"""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, case, func, select, tuple_

from ragbandit.router.storage.rows.outcome_rows import cost_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import closures, decisions, outcomes, updates
from ragbandit.shared.types import (
    ArmName,
    DecisionId,
    DecisionState,
    OutcomeStatus,
    PolicyLabel,
)

#: maximum number of decisions that are read for a page if a filter has no index
LOOKED_AT: Final = 5_000
#: maximum number of decisions on a page
MOST_ROWS: Final = 200
#: (made_at, id) of the last decision of a page; the next page begins after it
PageEnd = tuple[float, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """Filters of a search. None in a filter matches all decisions."""

    #: ledger to which `state`, `reward` and `seq` refer
    label: PolicyLabel
    tenant: str | None = None
    session: str | None = None
    arm: str | None = None
    state: DecisionState | None = None
    #: bounds: since <= made_at < until, seconds since the epoch
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRow:
    id: str
    tenant: str
    text: str
    arm: ArmName
    propensity: float
    explored: bool
    #: whether the policy failed, so that the fallback decided
    faulty: bool
    session: str | None
    made_at: float
    status: OutcomeStatus | None
    #: state of the decision; a later turn has the state of the decision that it continues
    state: DecisionState
    turn_of: str | None
    #: reward and seq are None for later turns, and for decisions that were not learned
    reward: float | None
    seq: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPage:
    decisions: tuple[SearchRow, ...]
    #: key after which the next page begins; None on the last page
    next: PageEnd | None


_STATE: Final[ColumnElement[str]] = case(
    (updates.c.source == "explicit", "learned"),
    (updates.c.seq.is_not(None), "defaulted"),
    else_=func.coalesce(closures.c.state, "waiting"),
)
_COLUMNS: Final = (
    *decisions.c["id", "tenant", "text", "arm", "propensity", "explored", "session", "made_at"],
    decisions.c.fault.is_not(None).label("faulty"),
    outcomes.c.status,
    _STATE.label("state"),
    decisions.c.turn_of,
    case((decisions.c.turn_of.is_(None), updates.c.value)).label("reward"),
    case((decisions.c.turn_of.is_(None), updates.c.seq)).label("seq"),
)


def search(database: Database, wanted: Search, *, after: PageEnd | None = None, limit: int = 50) -> SearchPage:
    """A page of decisions. Raises StoreError. after: `next` of the previous page; None for the first page."""
    limit = min(limit, MOST_ROWS)
    unindexed = [wanted.tenant, wanted.arm, wanted.state]
    looked_at = limit + 1 if unindexed == [None, None, None] else LOOKED_AT
    inner = _newest(wanted, after=after).limit(looked_at).subquery()
    # The oldest row that was read, if `looked_at` rows were read: then older rows may match, too.
    last = select(inner).order_by(inner.c.made_at.desc(), inner.c.id.desc()).offset(looked_at - 1).limit(1)
    with database.read() as connection:
        rows = connection.execute(_matching(inner, wanted).limit(limit + 1)).mappings().all()
        oldest = connection.execute(last).first() if len(rows) <= limit else None
    results = tuple(SearchRow(**row) for row in rows[:limit])
    if len(rows) > limit:
        return SearchPage(decisions=results, next=(results[-1].made_at, results[-1].id))
    return SearchPage(decisions=results, next=None if oldest is None else (oldest.made_at, oldest.id))


def _newest(wanted: Search, *, after: PageEnd | None) -> Select[Any]:
    conditions: list[ColumnElement[bool]] = []
    made_at: ColumnElement[float] = decisions.c.made_at
    if wanted.session is not None:
        conditions.append(decisions.c.session == wanted.session)
        # Without + 0.0 PostgreSQL would search the index of times, and for a short session read all of the index.
        made_at = decisions.c.made_at + 0.0
    if wanted.since is not None:
        conditions.append(made_at >= wanted.since)
    if wanted.until is not None:
        conditions.append(made_at < wanted.until)
    if after is not None:
        conditions.append(made_at <= after[0])  # implied by the next condition, but lets the database use the index
        conditions.append(tuple_(decisions.c.made_at, decisions.c.id) < tuple_(*after))
    order = made_at.desc(), decisions.c.id.desc()
    return select(decisions.c.made_at, decisions.c.id).where(*conditions).order_by(*order)


def _matching(inner: Any, wanted: Search) -> Select[Any]:
    first = func.coalesce(decisions.c.turn_of, decisions.c.id)  # the decision whose state a later turn has
    learned = and_(updates.c.policy == wanted.label, updates.c.decision_id == first)
    closed = and_(closures.c.policy == wanted.label, closures.c.decision_id == first)
    filters = {"tenant": wanted.tenant, "arm": wanted.arm}
    conditions = [decisions.c[name] == value for name, value in filters.items() if value is not None]
    if wanted.state is not None:
        conditions.append(_STATE.in_([wanted.state]))
    joined = inner.join(decisions, decisions.c.id == inner.c.id)
    joined = joined.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.id)
    joined = joined.outerjoin(updates, learned).outerjoin(closures, closed)
    order = decisions.c.made_at.desc(), decisions.c.id.desc()
    return select(*_COLUMNS).select_from(joined).where(*conditions).order_by(*order)


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRow:
    """A later turn of a decision, for a list."""

    id: DecisionId
    arm: ArmName
    made_at: float
    #: the first 300 characters of the turn's question; empty if the store keeps no texts
    text: str
    #: status of the outcome; None without an outcome
    status: OutcomeStatus | None
    stop_reason: str | None
    #: dollars of the turn's answer; None without an outcome
    dollars: float | None


def newest_turns(database: Database, first: str, *, limit: int) -> list[TurnRow]:
    """The newest `limit` later turns of a decision, the newest first. Raises StoreError."""
    text = func.substr(decisions.c.text, 1, 300).label("text")
    query = select(*decisions.c["id", "arm", "made_at"], text, *outcomes.c["status", "stop_reason", "cost"])
    query = query.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.id).where(decisions.c.turn_of == first)
    query = query.order_by(decisions.c.made_at.desc(), decisions.c.id.desc()).limit(limit)
    with database.read() as connection:
        rows = [dict(row) for row in connection.execute(query).mappings()]
    costs = [row.pop("cost") for row in rows]
    dollars = [None if cost is None else cost_value(cost).dollars for cost in costs]
    return [TurnRow(**row, dollars=amount) for row, amount in zip(rows, dollars, strict=True)]

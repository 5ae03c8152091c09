"""Search of decisions, newest first, in pages. Each page begins at a key, and reads a limited number of rows.

Arm, state and tenant have no index. So a page filtered by them may be short or empty although a next page exists.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, RowMapping, Select, and_, bindparam, case, func, select, tuple_

from ragbandit.router.storage.decisions.tool_turns import TOOL_TURN, firsts_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import has_key, has_value
from ragbandit.router.storage.sql.tables import closures, decisions, outcomes, updates
from ragbandit.shared.types import (
    ArmName,
    DecisionId,
    DecisionState,
    OutcomeStatus,
    PinnedArm,
    PolicyLabel,
    StickyTurn,
)

#: maximum number of decisions that are read for a page if a filter has no index
LOOKED_AT: Final = 5_000
#: maximum number of decisions on a page
MOST_ROWS: Final = 200
#: (made_at, id) of the last decision of a page; the next page begins after it
PageEnd = tuple[float, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """Filters of a search. None matches all decisions."""

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
    state: DecisionState
    #: reward and seq are None if the decision was not learned
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
    updates.c.value.label("reward"),
    updates.c.seq,
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
    learned = and_(updates.c.policy == wanted.label, updates.c.decision_id == decisions.c.id)
    closed = and_(closures.c.policy == wanted.label, closures.c.decision_id == decisions.c.id)
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
class SessionTurn:
    """The newest turn of a session, leaving out turns whose arm the caller or the kill switch chose."""

    arm: ArmName
    #: arms that the caller or its key allowed; None for all arms
    allowed: frozenset[ArmName] | None
    #: id of the decision that drew the arm: this decision, or an earlier one of a sticky session
    first: DecisionId
    #: number of this turn; the turn with the draw is 1
    turn: int
    #: row of the newest request, which is this turn or a later turn of its tool loop: "id", "made_at", "facts", and
    #: the "cost" of its outcome (JSON; None without one)
    newest: RowMapping


def newest_turns(database: Database, sessions: Collection[tuple[str, str]]) -> dict[tuple[str, str], SessionTurn]:
    """(session, tenant) -> newest turn. Sessions without such a turn are left out. Raises StoreError."""
    turns: dict[tuple[str, str], SessionTurn] = {}
    with database.read() as connection:
        for session, tenant in sorted(sessions):
            rows = connection.execute(_NEWEST, {"session": session, "tenant": tenant}).mappings().all()
            turn = _turn(rows)
            if turn is None and rows and rows[0]["tool"]:  # a tool loop of more turns than are read
                first = firsts_of(connection, [rows[0]["id"]]).get(rows[0]["id"])
                turn = _turn([rows[0], *connection.execute(_BY_ID, {"id": first}).mappings()])
            if turn is not None:
                turns[session, tenant] = turn
    return turns


# Constants, since SQLAlchemy takes longer to build these queries than the database to answer them. Only four decisions
# are read: if the caller forced the arms of all four, the next turn is drawn again.
_TURN: Final = select(
    *decisions.c["id", "arm", "facts", "allowed", "made_at"],
    has_value(decisions.c.request, "forced", True).label("forced"),
    has_key(decisions.c.request, TOOL_TURN).label("tool"),
    outcomes.c.cost,
).outerjoin_from(decisions, outcomes, outcomes.c.decision_id == decisions.c.id)
_BY_ID: Final = _TURN.where(decisions.c.id == bindparam("id"))
_NEWEST: Final = (
    _TURN.where(decisions.c.session == bindparam("session"), decisions.c.tenant == bindparam("tenant"))
    .order_by(decisions.c.made_at.desc(), decisions.c.id.desc())
    .limit(4)
)


def _turn(newest_first: Iterable[RowMapping]) -> SessionTurn | None:
    """The turn of the first row whose arm neither the caller nor the kill switch chose. Unreadable rows are skipped."""
    newest: RowMapping | None = None
    for row in newest_first:
        if row["tool"]:  # the loop's drawn decision follows
            newest = newest or row
            continue
        try:
            facts = json.loads(row["facts"])
            stay = StickyTurn.of(facts)
            allowed = None if row["allowed"] is None else frozenset(json.loads(row["allowed"]))
        except (ValueError, AttributeError, TypeError):
            continue
        if row["forced"] or PinnedArm.key in facts or (stay is None and StickyTurn.key in facts):
            continue
        if newest is None or newest["arm"] != row["arm"]:
            newest = row
        first, turn = (DecisionId(row["id"]), 1) if stay is None else (stay.first, stay.turn)
        return SessionTurn(arm=ArmName(row["arm"]), allowed=allowed, first=first, turn=turn, newest=newest)
    return None

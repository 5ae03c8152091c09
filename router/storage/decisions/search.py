"""Search of decisions, the newest first: a page at a time, by a key and never by an offset, with a bound on rows read.

Time and session have an index. Arm, state and tenant have none, so that a search by them looks at no more than
LOOKED_AT rows at once: a page may be short, or empty, and still have a next one.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, RowMapping, Select, and_, bindparam, case, func, select, tuple_

from ragbandit.router.storage.rows.conversion import object_or_empty
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import closures, decisions, outcomes, updates
from ragbandit.shared.types import KILLED, STICKY, ArmName, DecisionId, DecisionState, Json, OutcomeStatus, PolicyLabel

#: decisions that one search by a column without an index looks at
LOOKED_AT: Final = 5_000
#: decisions on one page
MOST_ROWS: Final = 200


#: where a page ended, (made_at, id) of a decision: the next one holds what is older
PageEnd = tuple[float, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """What to look for; None: any."""

    #: the ledger whose state is meant
    label: PolicyLabel
    tenant: str | None = None
    session: str | None = None
    arm: str | None = None
    state: DecisionState | None = None
    #: made at or after, and before, seconds since the epoch
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRow:
    """One decision of a page."""

    id: str
    tenant: str
    text: str
    arm: ArmName
    propensity: float
    explored: bool
    #: the fallback decided
    faulty: bool
    session: str | None
    made_at: float
    #: None: there is no outcome
    status: OutcomeStatus | None
    state: DecisionState
    #: None if it is not learned
    reward: float | None
    seq: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPage:
    """One page of a search."""

    decisions: tuple[SearchRow, ...]
    #: where the next page begins; None: this was the last
    next: PageEnd | None


#: the state of a decision in the ledger that is meant; and the columns of a page, named as the fields of SearchRow
_STATE: Final[ColumnElement[str]] = case(
    (updates.c.source == "explicit", "learned"),
    (updates.c.seq.is_not(None), "defaulted"),
    else_=func.coalesce(closures.c.state, "waiting"),
)
_COLUMNS: Final = (
    *decisions.c["id", "tenant", "text", "arm", "propensity", "explored", "session", "made_at"],
    decisions.c.fault.is_not(None).label("faulty"),
    *(outcomes.c.status, _STATE.label("state"), updates.c.value.label("reward"), updates.c.seq),
)


def search(database: Database, wanted: Search, *, after: PageEnd | None = None, limit: int = 50) -> SearchPage:
    """A page of decisions, the newest first. Raises StoreError."""
    limit = min(limit, MOST_ROWS)
    unindexed = [wanted.tenant, wanted.arm, wanted.state]
    looked_at = limit + 1 if unindexed == [None, None, None] else LOOKED_AT
    inner = _newest(wanted, after=after).limit(looked_at).subquery()
    # That row is there only where the bound on rows ended the search.
    last = select(inner).order_by(inner.c.made_at.desc(), inner.c.id.desc()).offset(looked_at - 1).limit(1)
    with database.read() as connection:
        rows = connection.execute(_matching(inner, wanted).limit(limit + 1)).mappings().all()
        oldest = connection.execute(last).first() if len(rows) <= limit else None
    results = tuple(SearchRow(**row) for row in rows[:limit])
    if len(rows) > limit:
        return SearchPage(decisions=results, next=(results[-1].made_at, results[-1].id))
    return SearchPage(decisions=results, next=None if oldest is None else (oldest.made_at, oldest.id))


def _newest(wanted: Search, *, after: PageEnd | None) -> Select[Any]:
    """Ids in the order of the search, by what has an index."""
    conditions: list[ColumnElement[bool]] = []
    made_at: ColumnElement[float] = decisions.c.made_at
    if wanted.session is not None:
        conditions.append(decisions.c.session == wanted.session)
        # Or PostgreSQL walks the index of times, through the whole table where the session is short.
        made_at = decisions.c.made_at + 0.0
    if wanted.since is not None:
        conditions.append(made_at >= wanted.since)
    if wanted.until is not None:
        conditions.append(made_at < wanted.until)
    if after is not None:
        conditions.append(made_at <= after[0])  # by which the index is entered
        conditions.append(tuple_(decisions.c.made_at, decisions.c.id) < tuple_(*after))
    order = made_at.desc(), decisions.c.id.desc()
    return select(decisions.c.made_at, decisions.c.id).where(*conditions).order_by(*order)


def _matching(inner: Any, wanted: Search) -> Select[Any]:
    learned = and_(updates.c.policy == wanted.label, updates.c.decision_id == decisions.c.id)
    closed = and_(closures.c.policy == wanted.label, closures.c.decision_id == decisions.c.id)
    given = {"tenant": wanted.tenant, "arm": wanted.arm}
    conditions = [decisions.c[name] == value for name, value in given.items() if value is not None]
    if wanted.state is not None:
        conditions.append(_STATE.in_([wanted.state]))
    joined = inner.join(decisions, decisions.c.id == inner.c.id)
    joined = joined.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.id)
    joined = joined.outerjoin(updates, learned).outerjoin(closures, closed)
    order = decisions.c.made_at.desc(), decisions.c.id.desc()
    return select(*_COLUMNS).select_from(joined).where(*conditions).order_by(*order)


#: newest decisions of a session that are looked at: more forced ones in a row end the stay
_LOOKED_AT: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionTurn:
    """The newest turn of a session that no caller chose the arm of."""

    arm: ArmName
    #: the arms that its caller, or its key, allowed; None: all
    allowed: frozenset[ArmName] | None
    #: id of the decision that drew the arm: this decision, or an earlier one of a sticky session
    first: DecisionId
    #: its place since that draw, from 1
    turn: int
    #: its own decision
    last: DecisionId


def newest_turns(database: Database, sessions: Collection[tuple[str, str]]) -> dict[tuple[str, str], SessionTurn]:
    """(session, tenant) -> newest turn, if there is one. Raises StoreError."""
    turns: dict[tuple[str, str], SessionTurn] = {}
    with database.read() as connection:
        for session, tenant in sorted(sessions):
            rows = connection.execute(_NEWEST, {"session": session, "tenant": tenant}).mappings().all()
            turn = _turn(rows)
            if turn is not None:
                turns[session, tenant] = turn
    return turns


# Made once: SQLAlchemy takes longer to put a statement together than a database to answer this one.
#: the newest decisions of a session, the newest first, each with whether its caller chose the arm
_NEWEST: Final = (
    select(
        decisions.c.id,
        decisions.c.arm,
        decisions.c.facts,
        decisions.c.allowed,
        # In the column's JSON quotes within texts are escaped: this is the key, and no word of a message.
        decisions.c.request.contains('"forced":true').label("forced"),
    )
    .where(decisions.c.session == bindparam("session"), decisions.c.tenant == bindparam("tenant"))
    .order_by(decisions.c.made_at.desc(), decisions.c.id.desc())
    .limit(_LOOKED_AT)
)


def _turn(newest_first: Iterable[RowMapping]) -> SessionTurn | None:
    """The first of these whose arm neither caller nor kill switch chose; a row that cannot be read is passed over."""
    for row in newest_first:
        try:
            facts = json.loads(row["facts"])
            stayed = facts.get(STICKY)
            first, turn = (row["id"], 1) if stayed is None else (stayed.get("first"), stayed.get("turn"))
            allowed = None if row["allowed"] is None else frozenset(json.loads(row["allowed"]))
        except (ValueError, AttributeError, TypeError):
            continue
        if not row["forced"] and KILLED not in facts and isinstance(first, str) and isinstance(turn, int):
            arm, last = ArmName(row["arm"]), DecisionId(row["id"])
            return SessionTurn(arm=arm, allowed=allowed, first=DecisionId(first), turn=turn, last=last)
    return None


def traces_of(database: Database, ids: Iterable[str]) -> dict[str, Mapping[str, Json]]:
    """What the edge knew of the requests of these decisions, among it their places in traces; of those that know some.

    Raises StoreError.
    """
    query = select(decisions.c.id, decisions.c.request)
    query = query.where(decisions.c.id.in_(list(ids)), decisions.c.request.is_not(None))
    with database.read() as connection:
        return {row.id: object_or_empty(row.request).get("edge", {}) for row in connection.execute(query)}

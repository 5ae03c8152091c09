"""Decisions of sessions: where a conversation stands. Reads are bounded, and by an index."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import RowMapping, bindparam, select

from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.types import KILLED, STICKY, ArmName, DecisionId

#: newest decisions of a session that are looked at: more forced ones in a row end the stay
_LOOKED_AT: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionTurn:
    """The newest turn of a session that no caller chose the arm of."""

    arm: ArmName
    #: the arms that its caller, or its key, allowed; None: all
    allowed: frozenset[ArmName] | None
    #: the decision that drew the arm: this one, or the one that this one stayed with
    first: DecisionId
    #: its place since that draw, from 1
    turn: int


def newest_turns(database: Database, sessions: Collection[tuple[str, str]]) -> dict[tuple[str, str], SessionTurn]:
    """(session, tenant) -> its newest turn, of those that have one. Raises StoreError."""
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
            return SessionTurn(arm=ArmName(row["arm"]), allowed=allowed, first=DecisionId(first), turn=turn)
    return None

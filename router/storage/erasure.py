"""Erasure: texts about decisions become blank; what was learned stays.

Blank are the question, its context, the answer, the trace, messages of errors, labels, raters, reasons of a judge, ids
of other systems, and texts among the policy's facts; on request also features. Probabilities, the arm, rewards,
costs, ratings and the order of the ledger stay. A decision that waits is closed: it is neither learned nor answered.

An entry in the audit log is written first. The same request again completes an interrupted one. An erased decision has
`types.ERASED` in its facts, by which `verify` distinguishes it from a damaged one. The judge does not see it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Final, get_args

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Table,
    and_,
    bindparam,
    case,
    false,
    func,
    insert,
    or_,
    select,
    update,
)

from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.decisions.tool_turns import TOOL_TURN, first_of
from ragbandit.router.storage.rows.conversion import Row, canonical, object_or_empty, without_messages
from ragbandit.router.storage.rows.outcome_rows import JobKind, drop_jobs
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.counters import Moves, counting
from ragbandit.router.storage.sql.database import Database, overwrite_freed
from ragbandit.router.storage.sql.tables import (
    answer_queue,
    cancellations,
    closures,
    decisions,
    feedback,
    outcomes,
    waiting,
)
from ragbandit.router.storage.sql.waiting import take_out
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.failures import SUCCESSOR
from ragbandit.shared.types import ERASED, IMPORTED, Json

#: decisions that one transaction looks at
BATCH: Final = 500
_REASON: Final = "erased before it was learned"


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The decisions to erase: all given conditions must hold. Raises InvalidInput if none is given."""

    decision: str | None = None
    tenant: str | None = None
    #: made before that time, seconds since 1970
    before: float | None = None

    def __post_init__(self) -> None:
        if all(value is None for value in asdict(self).values()):
            raise InvalidInput("nothing says what to erase", remedy="give --decision, --tenant or --before")

    def own_rows(self) -> ColumnElement[bool]:
        """As a condition on `decisions`, without the loops of tools that these decisions are a part of."""
        conditions = []
        if self.decision is not None:
            # With the decisions of a failover, which are rows of their own.
            named = json.dumps(self.decision)
            made_by = select(outcomes.c.made_by).where(outcomes.c.decision_id == decisions.c.id).scalar_subquery()
            marks = [(made_by, f'"{SUCCESSOR}":{named}'), (decisions.c.request, f'"first":{named},"left":')]
            # Not by LIKE, for which _ is any character, and for SQLite an A is an a.
            same = [func.replace(column, mark, "") != column for column, mark in marks]
            conditions.append(or_(decisions.c.id == self.decision, *same))
        if self.tenant is not None:
            conditions.append(decisions.c.tenant == self.tenant)
        if self.before is not None:
            conditions.append(decisions.c.made_at < self.before)
        return and_(*conditions)

    def rows(self, database: Database) -> ColumnElement[bool]:
        """As a condition on `decisions`: a loop of tools is meant whole if any part of it is meant."""
        with database.read() as connection:
            if self.decision is None:
                return or_(self.own_rows(), decisions.c.id.in_(self._later_turns(connection)))
            rows = connection.execute(select(decisions.c.id, decisions.c.request).where(self.own_rows())).all()
        if not rows:
            return false()
        named = next((row.request for row in rows if row.id == self.decision), None)
        first = first_of(named) or self.decision
        turn = f'"{TOOL_TURN}":{{"first":{json.dumps(first)}'
        # Not by LIKE, for which _ is any character, and for SQLite an A is an a.
        ids = decisions.c.id.in_([first, *(row.id for row in rows)])
        return or_(ids, func.replace(decisions.c.request, turn, "") != decisions.c.request)

    def _later_turns(self, connection: Connection) -> Sequence[str]:
        """Turns that are not meant themselves, of loops of tools of which an earlier part is meant."""
        taken, is_taken = outcomes.c.taken_by, outcomes.c.taken_by.is_not(None)
        own = select(taken.label("id")).join(decisions, decisions.c.id == outcomes.c.decision_id)
        turns = own.where(self.own_rows(), is_taken).cte(recursive=True)
        turns = turns.union(select(taken).join(turns, outcomes.c.decision_id == turns.c.id).where(is_taken))
        later = select(decisions.c.id).join(turns, decisions.c.id == turns.c.id).where(~self.own_rows())
        return connection.execute(later).scalars().all()


@dataclass(frozen=True, kw_only=True, slots=True)
class Erased:
    """What an erasure has blanked, or would blank."""

    #: in the database
    decisions: int
    #: number of these that a ledger waited for, which are closed
    waiting: int


def erasable(database: Database, selection: Selection) -> Erased:
    """What `erase` would blank now; nothing is changed."""
    waits = select(waiting.c.decision_id).distinct().join(decisions, decisions.c.id == waiting.c.decision_id)
    meant = selection.rows(database)
    with database.read() as connection:
        here = connection.execute(select(func.count()).select_from(decisions).where(meant)).scalar_one()
        subquery = waits.where(meant).subquery()
        unfinished = connection.execute(select(func.count()).select_from(subquery)).scalar_one()
    return Erased(decisions=int(here), waiting=int(unfinished))


def erase(
    database: Database,
    selection: Selection,
    *,
    features: bool,
    actor: str,
    now: float,
    progress: Callable[[int], None] = lambda _erased: None,
) -> Erased:
    """Blank what is selected; one process at a time may call it. actor: for the audit log.

    features: also the vectors that policies learned from. They cannot learn those updates again then;
    snapshots go on. progress: told after every batch how many decisions are blank. Raises StoreError.
    """
    with database.write() as connection:
        facts: dict[str, Json] = {**asdict(selection), "features": features}
        record(connection, actor=actor, action="store.erase", target="store", facts=facts, now=now)
    after, done = "", Erased(decisions=0, waiting=0)
    meant, is_one = selection.rows(database), selection.decision is not None
    while step := _erase_batch(database, meant, is_one=is_one, after=after, features=features, now=now):
        after, done = step[0], Erased(decisions=done.decisions + step[1], waiting=done.waiting + step[2])
        progress(done.decisions)
    if database.is_sqlite:
        # Its log of changes has the texts until it is folded into the file. What is read meanwhile keeps it.
        with closing(database.engine.raw_connection()) as raw, closing(raw.cursor()) as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return done


def _erase_batch(
    database: Database, meant: ColumnElement[bool], *, is_one: bool, after: str, features: bool, now: float
) -> tuple[str, int, int] | None:
    """The last id read, the number of erased decisions and of those that waited; None after the last batch."""
    with counting(database) as (connection, moves):
        overwrite_freed(connection)
        window = select(decisions.c.id).where(decisions.c.id > after).order_by(decisions.c.id).limit(BATCH)
        if is_one:
            window = window.where(meant)
        ids = connection.execute(window).scalars().all()
        if not ids:
            return None
        columns = decisions.c["id", "policy", "run_by", "facts", "fault", "request"]
        chosen = select(*columns).where(decisions.c.id > after, decisions.c.id <= ids[-1], meant)
        # Not against who refers to a decision: feedback and updates do so after they have locked its row of `waiting`.
        locked = chosen.order_by(decisions.c.id).with_for_update(key_share=True)
        rows = connection.execute(locked).mappings().all()
        waited = 0
        if rows:
            waited = _close(connection, rows, moves=moves, now=now)
            for kind in get_args(JobKind):
                drop_jobs(connection, [row["id"] for row in rows], kind=kind, moves=moves)
            _blank_rows(connection, rows, features=features)
    return ids[-1], len(rows), waited


def _close(connection: Connection, rows: Sequence[RowMapping], *, moves: Moves, now: float) -> int:
    """Close what any ledger still waits for, and cancel what no worker has answered; how many decisions waited."""
    by_id = {row["id"]: row for row in rows}
    waits = take_out(connection, waiting.c.decision_id.in_(by_id), moves=moves)
    if not waits:
        return 0
    common = {"state": "closed", "field": None, "reason": _REASON, "made_at": now}
    closed = [{"policy": one["policy"], "decision_id": one["decision_id"], **common} for one in waits]
    connection.execute(insert(closures), closed)
    moves.closures(closed)
    unanswered = {w["decision_id"] for w in waits if w["run_by"] == "worker" and not w["has_outcome"]}
    cancelled = [{"decision_id": key, "asked_at": now} for key in sorted(unanswered)]
    insert_new(connection, cancellations, cancelled, key="decision_id")
    own = [w["decision_id"] for w in waits if by_id[w["decision_id"]]["policy"] == w["policy"]]
    late = update(feedback).where(feedback.c.decision_id.in_(own), ~feedback.c.late).values(late=True)
    moves.add("late_feedback", connection.execute(late).rowcount)
    return len({one["decision_id"] for one in waits})


def _blank_rows(connection: Connection, rows: Sequence[RowMapping], *, features: bool) -> None:
    """Blank decisions and all texts about them."""
    ids = [row["id"] for row in rows]
    connection.execute(update(answer_queue).where(answer_queue.c.decision_id.in_(ids)).values(chat=None))
    _overwrite(connection, decisions, {row["id"]: _blank_decision(row, features=features) for row in rows})
    texts = dict.fromkeys(("answer", "trace", "sources", "reply", "call"))
    blank = update(outcomes).where(outcomes.c.decision_id.in_(ids))
    connection.execute(blank.values(**texts, error=case((outcomes.c.error.is_not(None), ERASED))))
    about, is_label = feedback.c.decision_id.in_(ids), and_(feedback.c.kind == "label", feedback.c.value != "null")
    value = case((is_label, "[]"), else_=feedback.c.value)
    rater = case((feedback.c.rater.is_not(None), ERASED))
    connection.execute(update(feedback).where(about).values(value=value, rater=rater))
    # A judge's scores stay, its reasons go.
    facts = connection.execute(select(feedback.c.id, feedback.c.facts).where(about, feedback.c.facts.is_not(None)))
    numbers = {row.id: {"facts": canonical(_without_texts(object_or_empty(row.facts)))} for row in facts}
    _overwrite(connection, feedback, numbers)
    reasons = update(closures).where(closures.c.decision_id.in_(ids), closures.c.state == "quarantined")
    connection.execute(reasons.values(reason=ERASED))


def _overwrite(connection: Connection, table: Table, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Give rows other values, by their ids; all of them in the same columns."""
    names = next(iter(changes.values()), {})
    if names:
        new = {name: bindparam(f"new_{name}", type_=table.c[name].type) for name in names}
        rows = [{"of": key} | {f"new_{name}": value[name] for name in names} for key, value in changes.items()]
        connection.execute(update(table).where(table.c.id == bindparam("of")).values(new), rows)


def _blank_decision(row: Row, *, features: bool) -> dict[str, Any]:
    """The columns of a row of `decisions` that change."""
    facts = object_or_empty(row["facts"])
    gone = features or facts.get(ERASED) == "texts and features"
    imported = {name: facts[name] for name in (IMPORTED,) if name in facts}
    known = {**_without_texts(facts), **imported, ERASED: "texts and features" if gone else "texts"}
    blank: dict[str, Any] = {"text": "", "context": "{}", "facts": canonical(known), "session": None}
    blank["request"] = without_messages(row["request"], keep=(TOOL_TURN,))
    blank["fault"] = None if row["fault"] is None else ERASED
    return blank | ({"features": None} if features else {})


def _without_texts(value: Any) -> Any:
    """JSON without its texts: a policy may log what a model wrote."""
    if isinstance(value, dict):
        return {name: _without_texts(item) for name, item in value.items() if not isinstance(item, str)}
    if isinstance(value, list):
        return [_without_texts(item) for item in value if not isinstance(item, str)]
    return value

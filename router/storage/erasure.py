"""Erasure: blanks texts of decisions, and keeps everything that was learned.

It blanks the question, its context, the answer, the trace, error messages, unknown stop reasons, labels, raters, a
judge's reasons, answers of paired comparisons, ids of other systems, and on request the features. Only the facts in
`facts_without_texts` and the columns of QueriedFacts stay. A waiting decision is closed, so it is neither learned nor
answered. To complete an interrupted erasure, repeat it. An erased decision has `types.ERASED` in its facts, so that
`verify` can distinguish it from a damaged one.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, get_args

from sqlalchemy import ColumnElement, RowMapping, Select, Table, and_, bindparam, case, delete, func, or_, select

from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.access.turn_sums import forget_sums
from ragbandit.router.storage.begun_pairs import forget_pairs
from ragbandit.router.storage.decisions.chains import followers
from ragbandit.router.storage.jobs.answers import erase_chats
from ragbandit.router.storage.jobs.claims import ScoreKind, drop_jobs
from ragbandit.router.storage.paired_answers import erase_answers
from ragbandit.router.storage.rows.conversion import arms_value, canonical, erased_feedback, without_words
from ragbandit.router.storage.rows.outcome_rows import erased_reason
from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, QueriedFacts
from ragbandit.router.storage.rows.waiting import delete_waiting
from ragbandit.router.storage.sql import tables
from ragbandit.router.storage.sql.bulk_insert import Row, insert_new, send
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments, WriteTransaction
from ragbandit.router.storage.sql.database import Database, overwrite_freed
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import closures, decisions, feedback, outcomes, waiting
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ERASED, IMPORTED, Json, facts_without_texts

#: number of decisions per transaction
BATCH: Final = 500
#: locks outcomes before rows of `waiting`, see LOCK_ORDER in `rows/waiting.py`
_LOCK_OUTCOMES: Final = "SELECT decision_id FROM outcomes WHERE decision_id IN ? ORDER BY decision_id FOR UPDATE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Conditions that an erased decision must meet; None for no condition. Raises InvalidInput if all are None."""

    decision: str | None = None
    session: str | None = None
    tenant: str | None = None
    #: upper bound: made_at < before, seconds since 1970
    before: float | None = None

    def __post_init__(self) -> None:
        if all(value is None for value in asdict(self).values()):
            remedy = "give --decision, --session, --tenant or --before"
            raise InvalidInput("no condition selects what to erase", remedy=remedy)

    def condition(self, database: Database) -> ColumnElement[bool]:
        """Condition on `decisions` for the selected rows and their `followers`; with chains if `before` is None."""
        columns = {decisions.c.id: self.decision, decisions.c.session: self.session, decisions.c.tenant: self.tenant}
        conditions = [column == value for column, value in columns.items() if value is not None]
        if self.before is not None:
            conditions.append(decisions.c.made_at < self.before)
        own = and_(*conditions)
        with database.read() as connection:
            return or_(own, decisions.c.id.in_(followers(connection, own, chains=self.before is None)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Erased:
    """Numbers of decisions that an erasure has blanked, or would blank."""

    decisions: int
    #: number of these decisions that some ledger had neither learned nor closed
    waiting: int
    #: number of other decisions in the same sessions, whose questions may repeat the erased words
    may_repeat: int = 0


def erasable(database: Database, selection: Selection) -> Erased:
    """The counts that `erase` would return now. Nothing is changed."""
    return _counts(database, selection.condition(database))


def _counts(database: Database, is_selected: ColumnElement[bool]) -> Erased:
    erased = select(*decisions.c["id", "session", "tenant"]).where(is_selected).cte()
    waits = select(func.count(waiting.c.decision_id.distinct())).join(erased, erased.c.id == waiting.c.decision_id)
    same = and_(decisions.c.session == erased.c.session, decisions.c.tenant == erased.c.tenant)
    others = select(func.count(decisions.c.id.distinct())).join(erased, same)
    others = others.where(decisions.c.text != "", decisions.c.id.not_in(select(erased.c.id)))
    queries = {"decisions": select(func.count()).select_from(erased), "waiting": waits, "may_repeat": others}
    with database.read() as connection:
        return Erased(**{name: int(connection.execute(query).scalar_one()) for name, query in queries.items()})


def erase(
    database: Database,
    selection: Selection,
    *,
    features: bool,
    actor: str,
    now: float,
    progress: Callable[[int], None] = lambda _erased: None,
) -> Erased:
    """Blank the selected decisions; only one process at a time may call this. Raises StoreError.

    features: whether to blank features too. Policies then cannot learn these updates again, but snapshots stay valid
    progress: called after every batch with the number of decisions blanked so far
    """
    with database.write() as connection:
        request: dict[str, Json] = {**asdict(selection), "features": features}
        record(connection, actor=actor, action="store.erase", target="store", facts=request, now=now)
    is_selected = selection.condition(database)
    counts, after, done = _counts(database, is_selected), "", 0
    query = select(decisions.c.id).where(is_selected).order_by(decisions.c.id).limit(BATCH)
    while batch := _ids(database, query.where(decisions.c.id > after)):
        _erase_batch(database, batch, features=features, now=now)
        after, done = batch[-1], done + len(batch)
        progress(done)
    if database.is_sqlite:
        # The WAL contains the texts until a checkpoint, which waits for open readers.
        with database.connection() as connection:
            connection.driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return counts


def _ids(database: Database, query: Select[Any]) -> list[str]:
    # A separate transaction, since a scan of a large store must not delay writers.
    with database.read() as connection:
        return list(connection.execute(query).scalars())


def _erase_batch(database: Database, ids: Sequence[str], *, features: bool, now: float) -> None:
    """Erase these decisions in one transaction, which locks rows in LOCK_ORDER."""
    with WriteTransaction(database) as (connection, tally):
        overwrite_freed(connection)
        chosen = select(*decisions.c["id", "policy", "run_by", "arms", "facts", "fault", "request"], *FACT_COLUMNS)
        # key_share avoids deadlocks: writers lock a decision's row of `waiting`, then insert rows that refer to it.
        locked = chosen.where(decisions.c.id.in_(ids)).order_by(decisions.c.id).with_for_update(key_share=True)
        rows = connection.execute(locked).mappings().all()
        # The next question of the task must begin a new decision, since no ledger learns an erased one.
        connection.execute(delete(tables.units).where(tables.units.c.first.in_(ids)))
        forget_sums(connection, ids, tally=tally)  # must precede the deletion of the session in the rows
        send(connection, _LOCK_OUTCOMES, [*ids])
        _close(connection, rows, tally=tally, now=now)
        _blank_rows(connection, rows, features=features)
        erase_chats(connection, ids)
        for kind in get_args(ScoreKind):
            drop_jobs(connection, ids, kind=kind, tally=tally)


def _close(connection: Connection, rows: Sequence[RowMapping], *, tally: Increments, now: float) -> None:
    """Close the decisions in every ledger that waits for them, and cancel unanswered ones."""
    by_id = {row["id"]: row for row in rows}
    waits = delete_waiting(connection, waiting.c.decision_id.in_(by_id), tally=tally)
    if not waits:
        return
    common = {"state": "closed", "field": None, "reason": "erased before it was learned", "made_at": now}
    closed = [{"policy": row["policy"], "decision_id": row["decision_id"], **common} for row in waits]
    connection.execute(closures.insert(), closed)
    tally.count_closures(closed)
    unanswered = {row["decision_id"] for row in waits if row["run_by"] == "worker" and not row["has_outcome"]}
    cancelled = [{"decision_id": key, "asked_at": now} for key in sorted(unanswered)]
    insert_new(connection, tables.cancellations, cancelled, key="decision_id")
    of_deciding_ledger = [row["decision_id"] for row in waits if by_id[row["decision_id"]]["policy"] == row["policy"]]
    late = feedback.update().where(feedback.c.decision_id.in_(of_deciding_ledger), ~feedback.c.late).values(late=True)
    tally.add("late_feedback", connection.execute(late).rowcount)


def _blank_rows(connection: Connection, rows: Sequence[RowMapping], *, features: bool) -> None:
    ids = [row["id"] for row in rows]
    _overwrite(connection, decisions, {row["id"]: _blank_decision(row, features=features) for row in rows})
    texts = dict.fromkeys(("answer", "trace", "sources", "reply", "call"))
    blank = outcomes.update().where(outcomes.c.decision_id.in_(ids))
    error = case((outcomes.c.error.is_not(None), ERASED))
    connection.execute(blank.values(**texts, error=error, stop_reason=erased_reason(outcomes.c.stop_reason)))
    judged = connection.execute(select(feedback).where(feedback.c.decision_id.in_(ids))).mappings()
    _overwrite(connection, feedback, {row["id"]: erased_feedback(row) for row in judged})
    erase_answers(connection, ids)
    forget_pairs(connection, ids)
    reasons = closures.update().where(closures.c.decision_id.in_(ids), closures.c.state == "quarantined")
    connection.execute(reasons.values(reason=ERASED))


def _overwrite(connection: Connection, table: Table, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Update rows by id. changes: id -> column -> new value, with the same columns for all ids."""
    names = next(iter(changes.values()), {})
    if names:
        new = {name: bindparam(f"new_{name}", type_=table.c[name].type) for name in names}
        rows = []
        for key, values in changes.items():
            rows.append({"of": key, **{f"new_{name}": value for name, value in values.items()}})
        connection.execute(table.update().where(table.c.id == bindparam("of")).values(new), rows)


def _blank_decision(row: Row, *, features: bool) -> dict[str, Any]:
    facts = object_or_empty(row["facts"])
    no_features = features or facts.get(ERASED) == "texts and features"
    arms: Sequence[str] = ()
    with suppress(ValueError, TypeError):  # a damaged row is erased, too
        arms = arms_value(row["arms"])
    kept = facts_without_texts(facts, arms=arms)
    kept[ERASED] = "texts and features" if no_features else "texts"
    if IMPORTED in facts:
        kept[IMPORTED] = facts[IMPORTED]
    blank: dict[str, Any] = {"text": "", "context": "{}", "facts": canonical(kept), "session": None}
    queried = QueriedFacts.of_row(row)
    blank |= queried._asdict()  # a row without these columns has the facts only in its JSON, which is blanked now
    blank["request"] = without_words(row["request"], arm_by=queried.arm_by, is_erased=True)
    blank["fault"] = None if row["fault"] is None else ERASED
    if features:
        blank["features"] = None
    return blank

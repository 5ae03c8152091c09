"""Inheritance: a new ledger gets a row in `waiting` for every older decision, in short batches.

From its registration on, new decisions get a row for the ledger. A first pass inserts rows for older decisions in the
order of ids. On PostgreSQL a second pass sets flags of rows whose outcome or feedback came in during their insertion.

Each batch stores its position in the ledger's row of `policies`, so a process that dies loses nothing. The learner does
this work under the ledger's lease, and learns nothing before the work is finished. So the ledger has the same order as
if every decision had had its row from the start.

Nothing is locked. On PostgreSQL a transaction that is open while a step is committed may not see the step, so the next
step begins only when all such transactions have ended (`_have_older_ended`). SQLite has one writer at a time.
"""

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from sqlalchemy import RowMapping, Select, and_, delete, exists, select, text, update

from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.waiting import STOPPED, flag_as_stored, insert_missing_waiting, lock_rows
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import closures, decisions, policies, updates, waiting
from ragbandit.shared.errors import Conflict, NotFound
from ragbandit.shared.types import PolicyLabel

#: number of decisions per transaction, which blocks other writers for a few milliseconds
BATCH: Final[Mapping[str, int]] = {"sqlite": 100, "postgresql": 300}
#: maximum number of decisions, in multiples of BATCH, that one transaction scans for those without a row in `waiting`
SCANNED: Final = 50
#: shortest pause after a batch, and further pause while other transactions have to end, seconds
REST_S, WAIT_S = 0.002, 0.02

#: result of a step: a batch was processed, other transactions have to end first, or nothing is left to do
Step = Literal["batch", "wait", "done"]

#: columns of `policies` at the start of an inheritance
BEGUN: Final[dict[str, Any]] = {"inheriting": "insert", "inherited_to": "", "inherit_after": None, "retired_at": None}


def _batch(ledger: Ledger, work: Callable[[Connection, Increments], Step], *, holder: str) -> Step:
    """Do one step in a transaction, then pause as long as the step took, so that other writers of SQLite can write."""
    with ledger.writing(holder=holder) as (connection, tally, _):
        began = time.monotonic()
        step = work(connection, tally)
    time.sleep(max(REST_S, time.monotonic() - began) + (WAIT_S if step == "wait" else 0.0))
    return step


def is_inheriting(ledger: Ledger) -> bool:
    row = ledger.policy_row()
    return row is not None and row["inheriting"] is not None


def inherit(ledger: Ledger, *, holder: str) -> Step:
    """Process the next batch under the lease of this ledger, then pause. Raises Conflict if the lease is lost."""
    return _batch(ledger, partial(_inherit, ledger.label), holder=holder) if is_inheriting(ledger) else "done"


def _inherit(label: PolicyLabel, connection: Connection, tally: Increments) -> Step:
    row = _policy_row(connection, label=label)
    assert row is not None
    if row["inherit_after"] is None:
        _store_transaction_number(connection, label)
        return "batch"
    if not _have_older_ended(connection, row["inherit_after"]):
        return "wait"
    if row["inheriting"] == "insert":
        last = _insert_batch(connection, row, tally=tally)
        # On SQLite every writer sees the inserted rows, so a second pass is not needed.
        following = "again" if not connection.is_sqlite else None
    else:
        last, following = _set_missed_flags(connection, row, tally=tally), None
    changed: dict[str, Any] = {"inherited_to": last}
    if last is None:
        changed = {"inheriting": following, "inherited_to": "", "inherit_after": None}
    connection.execute(update(policies).where(policies.c.label == label).values(**changed))
    return "batch"


def retire(ledger: Ledger, *, holder: str, now: float) -> Step:
    """Retire the ledger: delete a batch of its waiting rows under its lease, then pause. Raises NotFound.

    Its updates stay. If a router opens the label again, the ledger inherits the decisions without update or closure.
    """
    return _batch(ledger, partial(_retire, ledger.label, now), holder=holder)


def _retire(label: PolicyLabel, now: float, connection: Connection, tally: Increments) -> Step:
    row = _policy_row(connection, label=label)
    if row is None:
        raise NotFound(f"the store has no ledger {label!r}", field="label")
    if row["retired_at"] is None:
        retired = {"inheriting": None, "inherited_to": "", "inherit_after": None, "retired_at": now}
        connection.execute(update(policies).where(policies.c.label == label).values(**retired))
        return "batch"
    if row["inherit_after"] is None:
        _store_transaction_number(connection, label)
    oldest = select(waiting).where(waiting.c.policy == label).order_by(waiting.c.decision_id)
    rows = connection.execute(oldest.limit(BATCH[connection.dialect.name]).with_for_update()).mappings().all()
    ids = [waiting_row["decision_id"] for waiting_row in rows]
    connection.execute(delete(waiting).where(waiting.c.policy == label, waiting.c.decision_id.in_(ids)))
    tally.count_waiting(rows, sign=-1)
    if rows:
        return "batch"
    # A transaction that has not seen the retirement may still insert a row.
    all_ended = row["inherit_after"] is not None and _have_older_ended(connection, row["inherit_after"])
    return "done" if all_ended else "wait"


def _insert_batch(connection: Connection, row: RowMapping, *, tally: Increments) -> str | None:
    """Insert the missing rows in `waiting` of the next decisions. Returns the last id, or None after the last one."""
    after, size = row["inherited_to"], BATCH[connection.dialect.name]
    query = select(decisions.c.id)
    last, is_full = _end_of_batch(connection, query, decisions.c.id, after=after, limit=SCANNED * size)
    unseen = [
        # The range is repeated for each table, or PostgreSQL may read a whole table in every batch.
        ~exists().where(
            table.c.policy == row["label"],
            table.c.decision_id == decisions.c.id,
            table.c.decision_id > after,
            table.c.decision_id <= last,
        )
        for table in (waiting, updates, closures)
    ]
    missing = select(decisions.c.id).where(decisions.c.id > after, decisions.c.id <= last, *unseen)
    missing = missing.where(decisions.c.turn_of.is_(None))
    ids = connection.execute(missing.order_by(decisions.c.id).limit(size)).scalars().all()
    if ids:
        others = set(ids) - _close_stopped(connection, ids, label=row["label"], tally=tally)
        insert_missing_waiting(connection, decisions.c.id.in_(others), label=row["label"], tally=tally)
    if len(ids) == size:
        return str(ids[-1])
    return str(last) if is_full else None


def _close_stopped(connection: Connection, ids: Sequence[str], *, label: str, tally: Increments) -> set[str]:
    """Close the decisions whose task a budget has stopped: older ledgers have closed them, too. Returns their ids."""
    of_ledgers = closures.c.policy.in_(select(policies.c.label)), closures.c.decision_id.in_(ids)
    stored = connection.execute(select(closures).where(*of_ledgers, closures.c.reason == STOPPED)).mappings()
    stopped = {row["decision_id"]: {**row, "policy": label} for row in stored}
    if stopped:
        connection.execute(closures.insert(), [*stopped.values()])
        tally.count_closures(stopped.values())
    return set(stopped)


def _set_missed_flags(connection: Connection, row: RowMapping, *, tally: Increments) -> str | None:
    """Set flags that writers did not set because they did not see the row. Returns the last id, or None at the end."""
    after = row["inherited_to"]
    of_label = waiting.c.policy == row["label"]
    ids = select(waiting.c.decision_id).where(of_label)
    limit = BATCH[connection.dialect.name]
    last, is_full = _end_of_batch(connection, ids, waiting.c.decision_id, after=after, limit=limit)
    batch = of_label, waiting.c.decision_id > after, waiting.c.decision_id <= last
    incomplete = ~and_(waiting.c.has_outcome, waiting.c.has_feedback, waiting.c.has_reward)
    flag_as_stored(connection, lock_rows(connection, *batch, incomplete), tally=tally)
    return last if is_full else None


def _end_of_batch(connection: Connection, query: Select[Any], key: Any, *, after: str, limit: int) -> tuple[str, bool]:
    """Returns (last id of the next batch, whether the batch is full).

    A batch that is not full ends the pass: since decisions keep coming, an empty batch might never come. Decisions that
    are committed later need no pass, since their transactions have seen the previous step.
    """
    ids = connection.execute(query.where(key > after).order_by(key).limit(limit)).scalars().all()
    return ids[-1] if ids else after, len(ids) == limit


def _store_transaction_number(connection: Connection, label: str) -> None:
    """Store this transaction's number: transactions that have not seen the previous step have lower numbers."""
    number = ""
    if not connection.is_sqlite:
        number = str(connection.execute(text("SELECT pg_current_xact_id()::text")).scalar_one())
    connection.execute(update(policies).where(policies.c.label == label).values(inherit_after=number))


def _have_older_ended(connection: Connection, number: str) -> bool:
    """Whether every transaction with a number up to `number` has ended.

    Every writer has a number before it reads what inheritance changes: PostgreSQL assigns it at the first write, and
    writers of feedback request it (`number_transaction`). A number that this server has not assigned yet comes from a
    restored backup, and counts as ended.
    """
    if not number:
        return True
    query = (
        "SELECT pg_snapshot_xmin(seen) > number OR pg_snapshot_xmax(seen) <= number "
        "FROM (SELECT pg_current_snapshot() AS seen, CAST(CAST(:number AS text) AS xid8) AS number) AS asked"
    )
    return bool(connection.execute(text(query), {"number": number}).scalar_one())


OTHER_ENCODER: Final = "set the encoder back (auto is the one that the store began with), or begin another policy.label"


def register_policy(
    database: Database,
    *,
    label: PolicyLabel,
    algorithm: str,
    params: str,
    encoder_hash: str,
    now: float,
    encoder: str | None = None,
) -> None:
    """Register a ledger, so that new decisions get a row in `waiting` for it; `inherit` adds the older ones.

    Raises Conflict if the ledger was learned with another encoder, since its features would not fit. encoder: JSON of
    `encoders.base.origin_of`, which is stored once for each encoder of the ledger.
    """
    with database.write() as connection:
        origin = {} if encoder is None else {"encoder": encoder}
        kind = {"algorithm": algorithm, "params": params, "encoder_hash": encoder_hash}
        row = {"label": label, "made_at": now, **kind}
        stored = _policy_row(connection, label=label)
        if stored is None:
            if any(insert_new(connection, policies, [row | BEGUN | origin], key="label")):
                _record(connection, "ledger.register", row)
                return
            stored = _policy_row(connection, label=label)  # another router has registered it first
            assert stored is not None
        unfit = _unfit_encoder(connection, stored["encoder_hash"], configured=encoder_hash, label=label)
        if unfit is not None:
            how = f"with encoder {unfit[:12]}" if unfit else "without features, as rows of a log are imported"
            message = f"the ledger {label!r} was learned {how}, the configured encoder is {encoder_hash[:12]}"
            remedy = OTHER_ENCODER if unfit else "begin another policy.label; a log belongs into a ledger of its own"
            raise Conflict(message, field="encoder", remedy=remedy)
        changed: dict[str, Any] = row if any(stored[name] != value for name, value in kind.items()) else {}
        if stored["retired_at"] is not None:
            changed = changed | BEGUN
        if changed:
            _record(connection, "ledger.change" if "algorithm" in changed else "ledger.return", row)
        if stored["encoder"] is None or not stored["encoder_hash"]:
            changed = changed | origin
        if changed:
            connection.execute(update(policies).where(policies.c.label == label).values(**changed))


def stored_origin(database: Database, *, label: PolicyLabel) -> dict[str, Any] | None:
    """`policies.encoder` of this ledger, else of the newest ledger with a value; None if no ledger has a value."""
    query = select(policies.c.encoder).where(policies.c.encoder.is_not(None))
    query = query.order_by((policies.c.label == label).desc(), policies.c.made_at.desc())
    with database.read() as connection:
        text = connection.execute(query.limit(1)).scalar()
    return None if text is None else dict(json.loads(text))


def _record(connection: Connection, action: str, row: dict[str, Any]) -> None:
    changes = {name: row[name] for name in ("algorithm", "params", "encoder_hash")}
    host = socket.gethostname()
    record(connection, actor=f"process:router@{host}", action=action, target=f"ledger:{row['label']}", facts=changes)


def _unfit_encoder(connection: Connection, stored: str, *, configured: str, label: PolicyLabel) -> str | None:
    """Hash of the encoder with which this ledger was learned, if the configured encoder does not fit; else None."""
    if stored or not configured:
        return stored if configured not in ("", stored) else None
    # So far this ledger's policy used no features. Its decisions may have features of any encoder.
    learned = decisions.c.encoder_hash
    query = select(learned).join_from(decisions, updates, updates.c.decision_id == decisions.c.id)
    query = query.where(updates.c.policy == label, learned != configured)
    return connection.execute(query.limit(1)).scalar()


def _policy_row(connection: Connection, *, label: PolicyLabel) -> RowMapping | None:
    return connection.execute(select(policies).where(policies.c.label == label)).mappings().first()

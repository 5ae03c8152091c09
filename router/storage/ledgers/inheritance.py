"""Inheritance: a new label gets its place in `waiting` for every decision that was there before it, in short batches.

    register   the label is known: from now on new decisions wait for it
    insert     every other decision, in the order of ids, BATCH per transaction
    again      the same walk: outcomes and feedback that came in while a decision's row was being inserted

How far it is stands in the label's row of `policies`, written with each batch: a process that dies loses nothing.
The learner does it, under the ledger's lease, and learns nothing before it is done: the order of the ledger is what
it would be had every decision waited from the start.

Nothing is locked. On PostgreSQL a transaction that is going on while a step is committed may not see it; the next step
begins when all of those have ended (`_older_ended`). On SQLite there is one writer at a time, and no such transaction.
"""

import json
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, and_, delete, exists, select, text, update

from ragbandit.router.storage.access.audit_log import last_entry, record
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.counters import Moves
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import closures, decisions, policies, updates, waiting
from ragbandit.router.storage.sql.waiting import add_stored, flag_as_stored, lock_rows
from ragbandit.shared.errors import Conflict, NotFound
from ragbandit.shared.types import PolicyLabel

#: decisions of one transaction, for a few milliseconds: other writers wait for it meanwhile
BATCH: Final[Mapping[str, int]] = {"sqlite": 100, "postgresql": 300}
#: batches' worth of decisions that one transaction looks through for those that the label lacks; most have their place
SCANNED: Final = 50
#: least rest after a batch, and rest while transactions of others have to end, seconds
REST_S, WAIT_S = 0.002, 0.02

#: what a call has done: a batch; nothing, since transactions of others have to end first; nothing, since all is done
Step = Literal["batch", "wait", "done"]

#: columns of `policies` for a label that is to get its place for every decision before it
BEGUN: Final[dict[str, Any]] = {"inheriting": "insert", "inherited_to": "", "inherit_after": None, "retired_at": None}


def _batch(ledger: Ledger, work: Callable[[Connection, Moves], Step], *, holder: str) -> Step:
    """One step in its transaction, and after it a rest as long as it took, in which SQLite's other writers come in."""
    with ledger.writing(holder=holder) as (connection, moves, _):
        began = time.monotonic()
        step = work(connection, moves)
    time.sleep(max(REST_S, time.monotonic() - began) + (WAIT_S if step == "wait" else 0.0))
    return step


def is_inheriting(ledger: Ledger) -> bool:
    """Whether decisions of before the label have no place in its ledger yet."""
    row = ledger.registered()
    return row is not None and row["inheriting"] is not None


def inherit(ledger: Ledger, *, holder: str) -> Step:
    """Do the next batch, under the lease of this ledger, and rest. Raises Conflict if the lease is lost."""
    return _batch(ledger, partial(_inherit, ledger.label), holder=holder) if is_inheriting(ledger) else "done"


def _inherit(label: PolicyLabel, connection: Connection, moves: Moves) -> Step:
    row = _policy_row(connection, label=label)
    assert row is not None
    if row["inherit_after"] is None:
        _number(connection, label)
        return "batch"
    if not _older_ended(connection, row["inherit_after"]):
        return "wait"
    if row["inheriting"] == "insert":
        last = _insert_batch(connection, row, moves=moves)
        # Only where a writer may have missed a row that was being inserted.
        following = "again" if connection.dialect.name == "postgresql" else None
    else:
        last, following = _look_again(connection, row, moves=moves), None
    changed: dict[str, Any] = {"inherited_to": last}
    if last is None:
        changed = {"inheriting": following, "inherited_to": "", "inherit_after": None}
    connection.execute(update(policies).where(policies.c.label == label).values(**changed))
    return "batch"


def retire(ledger: Ledger, *, holder: str, now: float) -> Step:
    """Let no decision wait for this label any more; remove a batch of those that do, under its lease, and rest.

    Its updates stay. A router that opens the label again brings it back by inheriting. Raises NotFound.
    """
    return _batch(ledger, partial(_retire, ledger.label, now), holder=holder)


def _retire(label: PolicyLabel, now: float, connection: Connection, moves: Moves) -> Step:
    row = _policy_row(connection, label=label)
    if row is None:
        raise NotFound(f"the store has no ledger {label!r}", field="label")
    if row["retired_at"] is None:
        ended = {"inheriting": None, "inherited_to": "", "inherit_after": None, "retired_at": now}
        connection.execute(update(policies).where(policies.c.label == label).values(**ended))
        return "batch"
    if row["inherit_after"] is None:
        _number(connection, label)
    oldest = select(waiting).where(waiting.c.policy == label).order_by(waiting.c.decision_id)
    rows = connection.execute(oldest.limit(_size(connection)).with_for_update()).mappings().all()
    ids = [one["decision_id"] for one in rows]
    connection.execute(delete(waiting).where(waiting.c.policy == label, waiting.c.decision_id.in_(ids)))
    moves.waiting(rows, sign=-1)
    if rows:
        return "batch"
    # A decision whose transaction has not seen that the label is retired may still come to wait for it.
    ended_all = row["inherit_after"] is not None and _older_ended(connection, row["inherit_after"])
    return "done" if ended_all else "wait"


def _size(connection: Connection) -> int:
    return BATCH[connection.dialect.name]


def _insert_batch(connection: Connection, row: RowMapping, *, moves: Moves) -> str | None:
    """Insert what the label lacks of the next decisions; the last id, None if these were the last."""
    after, size = row["inherited_to"], _size(connection)
    last, more = _next(connection, select(decisions.c.id), decisions.c.id, after=after, limit=SCANNED * size)
    unknown = select(decisions.c.id).where(*_unknown(row["label"], after=after, last=last))
    ids = connection.execute(unknown.order_by(decisions.c.id).limit(size)).scalars().all()
    if ids:
        add_stored(connection, decisions.c.id.in_(ids), label=row["label"], moves=moves)
    if len(ids) == size:
        return str(ids[-1])
    return str(last) if more else None


def _look_again(connection: Connection, row: RowMapping, *, moves: Moves) -> str | None:
    """Set the flags that writers could not set, since they did not see the row; the last id, None after the last."""
    after = row["inherited_to"]
    ours = select(waiting.c.decision_id).where(waiting.c.policy == row["label"])
    last, more = _next(connection, ours, waiting.c.decision_id, after=after, limit=_size(connection))
    here = waiting.c.policy == row["label"], waiting.c.decision_id > after, waiting.c.decision_id <= last
    incomplete = ~and_(waiting.c.has_outcome, waiting.c.has_feedback, waiting.c.has_reward)
    flag_as_stored(connection, lock_rows(connection, *here, incomplete), moves=moves)
    return last if more else None


def _next(connection: Connection, query: Select[Any], key: Any, *, after: str, limit: int) -> tuple[str, bool]:
    """The id that ends the next batch, and whether there is more.

    A batch that is not full is the last one. What is committed after it was begun when the step before was known, so
    it needs no walk; a walk that waited for an empty batch would follow ids that grow for ever.
    """
    ids = connection.execute(query.where(key > after).order_by(key).limit(limit)).scalars().all()
    return ids[-1] if ids else after, len(ids) == limit


def _unknown(label: str, *, after: str, last: str) -> list[ColumnElement[bool]]:
    """Decisions with ids in (after, last] of which this ledger knows nothing: of before it, or while it was retired."""
    unseen = [
        # The range for each table: PostgreSQL may read all of the table that it is left out for, in every batch.
        ~exists().where(
            table.c.policy == label,
            table.c.decision_id == decisions.c.id,
            table.c.decision_id > after,
            table.c.decision_id <= last,
        )
        for table in (waiting, updates, closures)
    ]
    return [decisions.c.id > after, decisions.c.id <= last, *unseen]


def _number(connection: Connection, label: str) -> None:
    """Keep the number of this transaction: the step before is committed, so who has not seen it has a lower one."""
    number = ""
    if connection.dialect.name == "postgresql":
        number = str(connection.execute(text("SELECT pg_current_xact_id()::text")).scalar_one())
    connection.execute(update(policies).where(policies.c.label == label).values(inherit_after=number))


def _older_ended(connection: Connection, number: str) -> bool:
    """Whether every transaction with a number up to this one has ended.

    Writers have theirs before they look at what a step changes: PostgreSQL gives it at the first write, feedback asks
    for it. A number that the server has not given out yet is of the server that this database was restored from.
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
    """Make the ledger known: from now on decisions wait for it.

    Those from before a new label, or from while it was retired, get their place by `inheritance.inherit`. Nothing is
    counted or locked. encoder: JSON of `encoders.base.origin_of`, kept from the first time on for as long as the ledger
    has this encoder. Raises Conflict if the ledger was learned with another encoder: its features would not fit.
    """
    with database.write() as connection:
        origin = {} if encoder is None else {"encoder": encoder}
        kind = {"algorithm": algorithm, "params": params, "encoder_hash": encoder_hash}
        row = {"label": label, "made_at": now, **kind}
        known = _policy_row(connection, label=label)
        if known is None:
            if any(insert_new(connection, policies, [row | BEGUN | origin], key="label")):
                _record(connection, "ledger.register", row)
                return
            known = _policy_row(connection, label=label)  # another router was first
            assert known is not None
        other = _other_encoder(connection, known["encoder_hash"], ours=encoder_hash, label=label)
        if other is not None:
            raise Conflict(
                f"the ledger {label!r} was learned with encoder {other[:12]}, "
                f"the configured encoder is {encoder_hash[:12]}",
                field="encoder",
                remedy=OTHER_ENCODER,
            )
        changed: dict[str, Any] = row if any(known[name] != value for name, value in kind.items()) else {}
        if known["retired_at"] is not None:
            changed = changed | BEGUN
        if changed:
            _record(connection, "ledger.change" if "algorithm" in changed else "ledger.return", row)
        if known["encoder"] is None or not known["encoder_hash"]:
            changed = changed | origin
        if changed:
            connection.execute(update(policies).where(policies.c.label == label).values(**changed))


def origin_in(database: Database, *, label: PolicyLabel) -> dict[str, Any] | None:
    """`policies.encoder` of this ledger, else of the newest of the store that has it; None: no ledger does."""
    has = policies.c.encoder.is_not(None)
    query = (
        select(policies.c.encoder).where(has).order_by((policies.c.label == label).desc(), policies.c.made_at.desc())
    )
    with database.read() as connection:
        text = connection.execute(query.limit(1)).scalar()
    return None if text is None else dict(json.loads(text))


def replaced_encoders(database: Database) -> frozenset[str]:
    """Encoders whose features an earlier release made again with another one, as its verb wrote in the audit log."""
    with database.read() as connection:
        entry = last_entry(connection, action="features.encode", target="store")
    replaced: Any = () if entry is None else entry.facts["replaced"]
    return frozenset(replaced)


def _record(connection: Connection, action: str, row: dict[str, Any]) -> None:
    facts = {name: row[name] for name in ("algorithm", "params", "encoder_hash")}
    host = socket.gethostname()
    record(connection, actor=f"process:router@{host}", action=action, target=f"ledger:{row['label']}", facts=facts)


def _other_encoder(connection: Connection, kept: str, *, ours: str, label: PolicyLabel) -> str | None:
    """The encoder of what this ledger learned, where a policy that needs features of `ours` cannot follow it."""
    if kept or not ours:
        return kept if ours not in ("", kept) else None
    # Learned so far by a policy that needs no features: whichever encoder the decisions had.
    learned = decisions.c.encoder_hash
    query = select(learned).join_from(decisions, updates, updates.c.decision_id == decisions.c.id)
    query = query.where(updates.c.policy == label, learned != ours)
    return connection.execute(query.limit(1)).scalar()


def _policy_row(connection: Connection, *, label: PolicyLabel) -> RowMapping | None:
    return connection.execute(select(policies).where(policies.c.label == label)).mappings().first()

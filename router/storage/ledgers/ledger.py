"""Ledger: the learner's reads and writes. Decisions that are ready, updates, snapshots, leases.

The ledger is append-only and gapless. Every append says where it believes the ledger ends; if another learner
has been there, the append is refused and nothing of it is kept.
"""

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, RowMapping, case, delete, exists, func, select, tuple_, update

from ragbandit.router.storage.decisions.store import readable
from ragbandit.router.storage.ledgers.appending import LedgerBatch
from ragbandit.router.storage.rows.conversion import (
    REWARD,
    Row,
    body_hash,
    decision_value,
    features_value,
    feedback_value,
    snapshot_row,
    snapshot_value,
    update_value,
)
from ragbandit.router.storage.rows.outcome_rows import REPORTED, outcome_value
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.counters import ClosingRule, Moves, counting, kept
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.tables import decisions, feedback, outcomes, policies, snapshots, updates, waiting
from ragbandit.shared.errors import Conflict, StoreError
from ragbandit.shared.types import (
    IMPORTED,
    ArmName,
    ClosedDecision,
    Decision,
    JoinedDecision,
    Json,
    Outcome,
    PolicyLabel,
    Query,
    SnapshotInfo,
    Update,
)

#: Newest snapshots of a ledger whose rows are kept, in addition to the newest one of every policy that it had. The
#: deep check makes the others from the ledger. Not a setting: with another number, pruned rows would look deleted.
SNAPSHOT_ROWS = 1000
#: rows that are forgotten in one transaction
FORGOTTEN_AT_ONCE = 1000

#: snapshots that are tried, newest first, before a policy is learned again from the beginning
TRIES = 5
#: A snapshot is made at every KEPT_EVERY-th update, and the newest KEPT_MOST of these are kept in addition.
KEPT_EVERY = 10_000
KEPT_MOST = 4

#: seconds between two attempts to take a lease
LOOK_S = 0.1
#: updates that say which arms are new to a ledger
COUNTED = 10_000


def is_kept(last_seq: int) -> bool:
    """Whether a snapshot of this place in a ledger is one that is kept longer than the others."""
    return last_seq > 0 and last_seq % KEPT_EVERY == 0


class Ledger:
    """The learner's side of the database, for one label."""

    def __init__(self, database: Database, *, label: PolicyLabel) -> None:
        self.database = database
        self.label = label
        self._lease = Lease(database=database, name=f"learn:{label}")

    def ready(
        self, rule: ClosingRule, *, now: float, limit: int, after: tuple[float, str] = (-1.0, "")
    ) -> list[JoinedDecision | ClosedDecision]:
        """Waiting decisions that the rule lets be closed now, oldest first, `limit` at most.

        One that cannot be read comes as its ClosedDecision. after: (made_at, id) of the last one of the page before.
        """
        ready: set[tuple[float, str]] = set()
        with self.database.read() as connection:
            for condition in (*rule.complete_ranges(now=now), rule.expired_rows(now=now)):  # no index serves them all
                ready |= self._oldest(connection, condition, limit=limit, after=after)
            return self._joined(connection, [key for _, key in sorted(ready)[:limit]])

    def _oldest(
        self, connection: Connection, condition: ColumnElement[bool], *, limit: int, after: tuple[float, str]
    ) -> set[tuple[float, str]]:
        """The time and id of the oldest rows with this condition, `limit` or more, and none of a time that is cut.

        Sorted by time only, as the index waiting_ready is: SQLite would read all that waits to sort by id as well.
        """
        at, key = waiting.c.decided_at, waiting.c.decision_id
        here = select(at, key).where(waiting.c.policy == self.label, condition, at >= after[0])
        here = here.where((at > after[0]) | (key > after[1])).order_by(at)
        size, whole = limit, set[tuple[float, str]]()
        while len(whole) < limit:
            size *= 2
            rows = connection.execute(here.limit(size)).all()
            last = rows[-1][0] if len(rows) == size else math.inf
            whole = {(row[0], row[1]) for row in rows if row[0] < last}
            if last == math.inf:
                break
        return whole

    def _joined(self, connection: Connection, ids: list[str]) -> list[JoinedDecision | ClosedDecision]:
        made_rows = connection.execute(select(decisions).where(decisions.c.id.in_(ids))).mappings()
        done = connection.execute(select(*REPORTED).where(outcomes.c.decision_id.in_(ids))).mappings()
        notes = select(feedback).where(feedback.c.decision_id.in_(ids))
        by_id = {row["id"]: row for row in made_rows}
        outcome = {row["decision_id"]: row for row in done}
        collected = defaultdict[str, list[RowMapping]](list)
        for note in connection.execute(notes.order_by(feedback.c.received_at, feedback.c.id)).mappings():
            collected[note["decision_id"]].append(note)
        return [_read_together(by_id[key], outcome.get(key), collected[key]) for key in ids]

    def last_seq(self, *, connection: Connection | None = None) -> int:
        """The last seq of the ledger; 0 if it is empty. connection: as in `latest_snapshots`."""
        query = select(func.coalesce(func.max(updates.c.seq), 0)).where(updates.c.policy == self.label)
        with self._reading(connection) as reading:
            return int(reading.execute(query).scalar_one())

    def decided(self) -> int:
        """Decisions of this ledger: learned, closed or waiting."""
        with self.database.read() as connection:
            counters = kept(connection, label=self.label)
            others = counters["waiting"] + counters["closed"] + counters["quarantined"]
            return self.last_seq(connection=connection) + others

    def _reading(self, connection: Connection | None) -> AbstractContextManager[Connection]:
        return self.database.read() if connection is None else nullcontext(connection)

    @contextmanager
    def writing(self, *, holder: str) -> Iterator[tuple[Connection, Moves, int]]:
        """A transaction that nobody else can append in, what it changes of the counters, and where the ledger ends.

        Raises Conflict if the lease is lost.
        """
        with counting(self.database) as (connection, moves):
            if not self._lease.is_held(connection, holder=holder):
                raise Conflict("the lease of this ledger is not held any more")
            yield connection, moves, self.last_seq(connection=connection)

    def append(self, batch: LedgerBatch) -> None:
        """One transaction: the updates, the closures, and the decisions out of the waiting room.

        Feedback of the decisions that are done and that did not come in time is marked late. Raises Conflict, with
        nothing written, if the lease is lost or the ledger does not end where the first entry begins.
        """
        with self.writing(holder=batch.holder) as (connection, moves, end):
            batch.write(connection, moves, end=end)

    def read(self, *, after: int, upto: int | None = None) -> Iterator[Update]:
        """The updates with seq > after (and <= upto), in order, a page at a time."""
        for entry, _ in self.read_with_decisions(after=after, upto=upto):
            yield entry

    def read_with_decisions(
        self, *, after: int, upto: int | None = None, page: int = 1000
    ) -> Iterator[tuple[Update, Decision]]:
        """`read`, each update with the decision that it is about.

        A decision whose features another encoder made than the ledger's comes without them: it had no text when an
        earlier release made the others again. Raises StoreError at a decision that cannot be
        read: what it taught cannot be taught again.
        """
        encoder_hash = self.encoder_hash()
        for row, decision_row in rows_of_ledger(self.database, label=self.label, after=after, upto=upto, page=page):
            decision = readable(decision_row)
            if isinstance(decision, StoreError):
                raise decision
            if encoder_hash and decision.encoder_hash != encoder_hash:
                decision = replace(decision, features=None)
            yield update_value(row, decision=decision), decision

    def learned_lately(self) -> dict[ArmName, int]:
        """Arm -> its updates among the newest COUNTED of the ledger."""
        with self.database.read() as connection:
            after = self.last_seq(connection=connection) - COUNTED
            counts = select(updates.c.arm, func.count()).where(updates.c.policy == self.label, updates.c.seq > after)
            return {ArmName(arm): int(count) for arm, count in connection.execute(counts.group_by(updates.c.arm))}

    def registered(self) -> dict[str, Any] | None:
        """The policy's row (algorithm, params, encoder_hash), or None before the first router opened it."""
        with self.database.read() as connection:
            row = connection.execute(select(policies).where(policies.c.label == self.label)).mappings().first()
        return None if row is None else dict(row)

    def encoder_hash(self) -> str:
        """The encoder whose features this ledger is learned from; "" where its policy needs none."""
        return str((self.registered() or {"encoder_hash": ""})["encoder_hash"])

    def newest_encoder_hash(self) -> str | None:
        """The encoder of the newest decision in the store, whatever its ledger; None while there is none."""
        query = select(decisions.c.encoder_hash).order_by(decisions.c.made_at.desc()).limit(1)
        with self.database.read() as connection:
            newest: str | None = connection.execute(query).scalar()
        return newest

    def newest_decisions(self, *, limit: int, encoder_hash: str) -> list[Decision]:
        """Readable ones of the newest `limit` decisions that were drawn here with this encoder, oldest first."""
        query = select(decisions).order_by(decisions.c.made_at.desc()).limit(limit)
        with self.database.read() as connection:
            rows = connection.execute(query).mappings().all()
        read = [one for one in map(readable, reversed(rows)) if isinstance(one, Decision)]
        ours = (one for one in read if one.encoder_hash == encoder_hash and one.features is not None)
        return [one for one in ours if IMPORTED not in one.facts]

    def newest_outcomes(self, *, limit: int) -> list[tuple[Decision, Outcome]]:
        """The newest outcomes of the store with their decisions, newest first; of `limit` those that can be read."""
        newest = select(outcomes.c.decision_id).order_by(outcomes.c.made_at.desc()).limit(limit)
        with self.database.read() as connection:
            read = self._joined(connection, list(connection.execute(newest).scalars()))
        here = [one for one in read if isinstance(one, JoinedDecision) and IMPORTED not in one.decision.facts]
        return [(one.decision, one.outcome) for one in here if one.outcome is not None]

    def note(self, **texts: str | None) -> None:
        """Store facts about the policy as JSON, by column: `diagnosis`, `frontier`."""
        with self.database.write() as connection:
            connection.execute(update(policies).where(policies.c.label == self.label).values(**texts))

    def frontier(self) -> str | None:
        """The JSON of the column `frontier`."""
        with self.database.read() as connection:
            return connection.execute(select(policies.c.frontier).where(policies.c.label == self.label)).scalar()

    def add_snapshot(self, info: SnapshotInfo) -> None:
        """Make a snapshot known; known already is fine (the same ledger gives the same snapshot)."""
        with self.database.write() as connection:
            insert_new(connection, snapshots, [snapshot_row(info)], key="version")

    def latest_snapshots(
        self,
        *,
        limit: int,
        algorithm: str | None = None,
        params: Mapping[str, Json] | None = None,
        encoder_hash: str | None = None,
        connection: Connection | None = None,
        kept: bool = False,
    ) -> list[SnapshotInfo]:
        """The newest snapshots of this ledger with this algorithm, params and encoder (None: any), newest first.

        connection: a transaction to read in; None opens one. kept: only those that are kept longer.
        """
        params_sha256 = None if params is None else body_hash(dict(params))
        wanted = {"algorithm": algorithm, "params_sha256": params_sha256, "encoder_hash": encoder_hash}
        same = [snapshots.c[name] == value for name, value in wanted.items() if value is not None]
        query = select(snapshots).where(snapshots.c.policy == self.label, *same)
        if kept:
            query = query.where(snapshots.c.last_seq > 0, snapshots.c.last_seq % KEPT_EVERY == 0)
        newest = query.order_by(snapshots.c.last_seq.desc(), snapshots.c.made_at.desc()).limit(limit)
        with self._reading(connection) as reading:
            return [snapshot_value(row) for row in reading.execute(newest).mappings()]

    def snapshots_to_try(self, **of: Any) -> list[SnapshotInfo]:
        """The newest snapshots, and the older ones that are kept, newest first. of: as `latest_snapshots` takes it."""
        newest = self.latest_snapshots(limit=TRIES, **of)
        return newest + [info for info in self.latest_snapshots(limit=KEPT_MOST, kept=True, **of) if info not in newest]

    def prune_snapshots(self) -> list[SnapshotInfo]:
        """Forget rows of snapshots beyond SNAPSHOT_ROWS, at most FORGOTTEN_AT_ONCE; those that were forgotten.

        The newest of every algorithm, params and encoder stays: the deep check must know which policies there were.
        So do the newest KEPT_MOST of those that are kept longer.
        """
        kept = [info.version for info in self.latest_snapshots(limit=KEPT_MOST, kept=True)]
        newer = snapshots.alias()
        order = ("last_seq", "made_at", "version")
        same = [newer.c[name] == snapshots.c[name] for name in ("policy", "algorithm", "params_sha256", "encoder_hash")]
        later = tuple_(*(newer.c[name] for name in order)) > tuple_(*(snapshots.c[name] for name in order))
        old = select(snapshots.c.version).where(snapshots.c.policy == self.label)
        old = old.order_by(*(snapshots.c[name].desc() for name in order)).offset(SNAPSHOT_ROWS).limit(FORGOTTEN_AT_ONCE)
        doomed = select(snapshots).where(snapshots.c.version.in_(old), exists().where(*same, later))
        doomed = doomed.where(snapshots.c.version.not_in(kept))
        with self.database.write() as connection:
            forgotten = [snapshot_value(row) for row in connection.execute(doomed).mappings()]
            gone = [info.version for info in forgotten]
            connection.execute(delete(snapshots).where(snapshots.c.version.in_(gone)))
        return forgotten

    def feedback_times(self, *, after: int, upto: int) -> list[float]:
        """Times at which the last feedback of each update in (after, upto] came in, for measuring the lag."""
        with self.database.read() as connection:
            here = updates.c.policy == self.label, updates.c.seq > after, updates.c.seq <= upto
            times = select(updates.c.feedback_at).where(*here, updates.c.feedback_at.is_not(None))
            return list(connection.execute(times).scalars())

    def acquire(self, *, holder: str, lease_s: float, patience_s: float = 0.0) -> bool:
        """Take or renew the lease; False if another process holds it. patience_s: longest wait for it."""
        give_up = time.monotonic() + patience_s
        while not self._lease.acquire(holder=holder, lease_s=lease_s):
            if time.monotonic() >= give_up:
                return False
            time.sleep(LOOK_S)
        return True

    def release(self, *, holder: str) -> None:
        """Give the lease back, if it is ours."""
        self._lease.release(holder=holder)


def rows_of_ledger(
    database: Database, *, label: str, after: int, upto: int | None, page: int
) -> Iterator[tuple[Row, Row]]:
    """The rows of updates in (after, upto], in order, a page at a time, each with its decision's row."""
    while True:
        query = select(updates).where(updates.c.policy == label, updates.c.seq > after)
        query = query if upto is None else query.where(updates.c.seq <= upto)
        with database.read() as connection:
            batch = connection.execute(query.order_by(updates.c.seq).limit(page)).mappings().all()
            about = select(decisions).where(decisions.c.id.in_([row["decision_id"] for row in batch]))
            by_id = {row["id"]: row for row in connection.execute(about).mappings()}
        if not batch:
            return
        for row in batch:
            yield row, by_id[row["decision_id"]]
        after = batch[-1]["seq"]


def _read_together(
    row: RowMapping, outcome: RowMapping | None, notes: Sequence[RowMapping]
) -> JoinedDecision | ClosedDecision:
    """The values of these rows; if one cannot be read, the decision's quarantine with the field's name."""
    field = "decision"
    try:
        decision = decision_value(row)
        field = "outcome"
        done = None if outcome is None else outcome_value(outcome)
        field = "feedback.value"
        feedback = tuple(feedback_value(note) for note in notes)
        for item in feedback:
            if item.value is not None and not isinstance(item.value, tuple if item.kind == "label" else int | float):
                raise ValueError(f"{item.value!r} is no {item.kind}")
    except (ValueError, TypeError, KeyError) as error:
        if field == "decision":
            field = getattr(error, "field", field)
        return ClosedDecision(
            decision_id=row["id"], state="quarantined", reason=f"cannot be read: {error}", field=field
        )
    return JoinedDecision(decision=decision, outcome=done, feedback=feedback)


#: columns of `updates` besides the reward's
_PLAIN: Final = ("seq", "decision_id", "arm", "propensity", "made_at", "decided", "restarts")
#: the columns of `updates` that a policy learns from, which needs the features and no text
_COLUMNS: Final = (*_PLAIN, *REWARD.names)
#: whether the facts have that key: a text in them has its quotes escaped
_IMPORTED = decisions.c.facts.contains(f'"{IMPORTED}":', autoescape=True)
_NO_QUESTION = Query(text="")
#: columns of a row that every policy is given: _COLUMNS, the features, whether it was imported, its own weight of cost
_LEARNED = len(_COLUMNS) + 3
#: the columns of `decisions` that a policy with a schema of the context reads, in the order in which it needs them
_QUESTION = ("context", "tenant", "text")


def lean_updates(
    ledger: Ledger, *, after: int, upto: int | None = None, page: int = 4000, context: bool = False, text: bool = False
) -> Iterator[Update]:
    """`Ledger.read` for a policy that learns from arm, features and reward alone: an eighth of the work.

    The question has its weight of cost and the text "", the arms are the drawn one, and there are no feedback ids.
    context: the question has its context and its tenant; text: and its text.
    """
    question = _QUESTION[: 3 if text else 2] if context or text else ()
    while upto is None or after < upto:
        for row in (rows := _page(ledger, after=after, upto=upto, page=page, question=question)):
            yield _update(row, label=ledger.label)
            after = row.seq
        if not rows:
            return


def _page(ledger: Ledger, *, after: int, upto: int | None, page: int, question: Sequence[str]) -> Sequence[Any]:
    features: ColumnElement[Any] = decisions.c.features
    if encoder_hash := ledger.encoder_hash():  # as in `Ledger.read_with_decisions`
        features = case((decisions.c.encoder_hash == encoder_hash, features))
    columns = [updates.c[name] for name in _COLUMNS]
    joined = updates.join(decisions, decisions.c.id == updates.c.decision_id)
    query = select(
        *columns, features, _IMPORTED, decisions.c.cost_weight, *(decisions.c[name] for name in question)
    ).select_from(joined)
    query = query.where(updates.c.policy == ledger.label, updates.c.seq > after)
    if upto is not None:
        query = query.where(updates.c.seq <= upto)
    with ledger.database.read() as connection:
        return connection.execute(query.order_by(updates.c.seq).limit(page)).all()


def _update(row: Any, *, label: PolicyLabel) -> Update:
    """The update of _COLUMNS, features, imported or not, and some of _QUESTION."""
    seq, decision_id, arm, propensity, made_at, decided, restarts = row[: len(_PLAIN)]
    features, imported, weight = row[len(_COLUMNS) : _LEARNED]
    return Update(
        policy=label,
        seq=seq,
        decision_id=decision_id,
        query=_query(weight, *row[_LEARNED:]),
        arm=arm,
        arms=(arm,),
        pmf=(propensity,),
        scores=None,
        propensity=propensity,
        reward=REWARD.read(row[len(_PLAIN) : len(_COLUMNS)]),
        feedback_ids=(),
        features=features_value(features),
        made_at=made_at,
        imported=bool(imported),
        decided=decided,
        restarts=() if restarts is None else tuple(json.loads(restarts)),
    )


def _query(weight: float | None, context: str | None = None, tenant: str = "default", text: str = "") -> Query:
    if context is None:
        return _NO_QUESTION if weight is None else Query(text="", cost_weight=weight)
    return Query(text=text, context=json.loads(context), tenant=tenant, cost_weight=weight)

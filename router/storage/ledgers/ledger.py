"""A ledger: the learner reads decisions that are ready from it, and writes updates, closures and snapshots to it.

The ledger is append-only and has no gaps. If an append does not continue at the ledger's end, because another learner
has appended meanwhile, the whole append is refused.
"""

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from sqlalchemy import ColumnElement, RowMapping, and_, delete, exists, func, select, tuple_, update

from ragbandit.router.storage.ledgers.appending import LedgerBatch
from ragbandit.router.storage.ledgers.closing import ClosingRule
from ragbandit.router.storage.rows.conversion import (
    REWARD,
    arms_value,
    body_hash,
    decision_value,
    features_value,
    feedback_value,
    read_decision,
    snapshot_row,
    snapshot_value,
    update_value,
)
from ragbandit.router.storage.rows.outcome_rows import REPORTED, outcome_value, spent_of
from ragbandit.router.storage.rows.queried_facts import IMPORTED_COLUMNS, is_imported
from ragbandit.router.storage.rows.waiting import with_open_turn
from ragbandit.router.storage.sql.bulk_insert import Row, insert_new
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments, WriteTransaction, count_not_by_policy, stored_counts
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.tables import decisions, feedback, outcomes, policies, snapshots, updates, waiting
from ragbandit.shared.errors import Conflict, StoreError
from ragbandit.shared.types import (
    IMPORTED,
    ArmName,
    ClosedDecision,
    Decision,
    DecisionUnit,
    JoinedDecision,
    Json,
    Outcome,
    PolicyLabel,
    Query,
    SnapshotInfo,
    Update,
    decided_unit,
    is_released,
)

#: Number of newest snapshots whose rows are kept, in addition to the newest one of every algorithm, params and encoder.
#: The deep check of `verify` computes pruned rows again. This number is not a setting: if it changed, `verify` would
#: report rows as deleted that were pruned with the former number.
SNAPSHOT_ROWS = 1000
#: maximum number of snapshots that one call of `prune_snapshots` deletes
PRUNED_AT_ONCE = 1000
#: number of newest snapshots that are tried before a policy is learned again from the beginning
TRIES = 5
#: a snapshot is made after every KEPT_EVERY-th update; the newest KEPT_MOST of these snapshots are not pruned
KEPT_EVERY = 10_000
KEPT_MOST = 4

#: rows of a query that are in memory at once
_AT_ONCE: Final = 1000

#: pause between two attempts to take the lease, seconds
LOOK_S = 0.1
#: an arm counts as new if it does not occur in this number of newest updates
COUNTED = 10_000


def is_kept(last_seq: int) -> bool:
    """Whether a snapshot whose last update has this seq is kept longer than others."""
    return last_seq > 0 and last_seq % KEPT_EVERY == 0


class Ledger:
    def __init__(self, database: Database, *, label: PolicyLabel) -> None:
        self.database = database
        self.label = label
        self._lease = Lease(database=database, name=f"learn:{label}")

    def ready(
        self, rule: ClosingRule, *, now: float, limit: int, after: tuple[float, str] = (-1.0, "")
    ) -> list[JoinedDecision | ClosedDecision]:
        """At most `limit` decisions that may be learned or closed now, oldest first.

        An unreadable decision is returned as a ClosedDecision. after: (made_at, id) of the last decision of the former
        call. now: seconds since 1970
        """
        ready: set[tuple[float, str]] = set()
        with self.database.read() as connection:
            for condition in (*rule.closable_ranges(now=now), rule.expired_rows(now=now)):  # no index serves them all
                ready |= self._oldest(connection, condition, limit=limit, after=after)
            return self._joined(connection, [key for _, key in sorted(ready)[:limit]])

    def _oldest(
        self, connection: Connection, condition: ColumnElement[bool], *, limit: int, after: tuple[float, str]
    ) -> set[tuple[float, str]]:
        """(decided_at, id) of the oldest rows, at least `limit` if there are as many, with all rows of equal times."""
        # Sorted by time only, like the index waiting_rated: to sort by id too, SQLite would read all rows.
        at, key = waiting.c.decided_at, waiting.c.decision_id
        query = select(at, key).where(waiting.c.policy == self.label, condition, at >= after[0])
        query = query.where((at > after[0]) | (key > after[1])).order_by(at)
        size, oldest = limit, set[tuple[float, str]]()
        while len(oldest) < limit:
            size *= 2
            rows = connection.execute(query.limit(size)).all()
            last = rows[-1][0] if len(rows) == size else math.inf
            oldest = {(row[0], row[1]) for row in rows if row[0] < last}
            if last == math.inf:
                break
        return oldest

    def _joined(self, connection: Connection, ids: list[str]) -> list[JoinedDecision | ClosedDecision]:
        decision_rows = connection.execute(select(decisions).where(decisions.c.id.in_(ids))).mappings()
        outcome_rows = connection.execute(select(*REPORTED).where(outcomes.c.decision_id.in_(ids))).mappings()
        query = select(feedback).where(feedback.c.decision_id.in_(ids))
        ends = select(*waiting.c["decision_id", "open_until"]).where(waiting.c.policy == self.label)
        ends = ends.where(waiting.c.decision_id.in_(ids), waiting.c.open_until.is_not(None))
        until: dict[str, float] = {row[0]: row[1] for row in connection.execute(ends)}
        still_open = with_open_turn(connection, ids)
        by_id = {row["id"]: row for row in decision_rows}
        outcome = {row["decision_id"]: row for row in outcome_rows}
        feedback_rows = defaultdict[str, list[RowMapping]](list)
        for row in connection.execute(query.order_by(feedback.c.received_at, feedback.c.id)).mappings():
            feedback_rows[row["decision_id"]].append(row)
        return [
            _join(
                by_id[key],
                outcome.get(key),
                feedback_rows[key],
                open_until=until.get(key),
                has_open_turn=key in still_open,
            )
            for key in ids
        ]

    def last_seq(self, *, connection: Connection | None = None) -> int:
        """The last seq of the ledger; 0 without updates. connection: of the caller's transaction; None to open one."""
        query = select(func.coalesce(func.max(updates.c.seq), 0)).where(updates.c.policy == self.label)
        with self._reading(connection) as reading:
            return int(reading.execute(query).scalar_one())

    def count_decided(self, *, connection: Connection | None = None) -> int:
        """Number of decisions of this ledger: learned, closed or in `waiting`. Decisions that no policy has made
        (NOT_BY_POLICY) are left out once the totals count them, after about 20 s. connection: as for `last_seq`
        """
        with self._reading(connection) as reading:
            counters, of_ledger = stored_counts(reading, label=self.label), self.last_seq(connection=reading)
            of_ledger += counters["waiting"] + counters["closed"] + counters["quarantined"]
            others = max(0, counters["decided"] - of_ledger)  # perhaps without a policy
            return of_ledger - max(0, count_not_by_policy(reading) - others)

    def _reading(self, connection: Connection | None) -> AbstractContextManager[Connection]:
        return self.database.read() if connection is None else nullcontext(connection)

    @contextmanager
    def writing(self, *, holder: str) -> Iterator[tuple[Connection, Increments, int]]:
        """Yields (connection, changes of counters, last seq) in a transaction. Raises Conflict if the lease is lost."""
        with WriteTransaction(self.database) as (connection, tally):
            if not self._lease.is_held(connection, holder=holder):
                raise Conflict("this process does not hold the lease of the ledger any more")
            yield connection, tally, self.last_seq(connection=connection)

    def append(self, batch: LedgerBatch) -> None:
        """Write the batch in one transaction. Raises Conflict; then nothing is written."""
        with self.writing(holder=batch.holder) as (connection, tally, end):
            batch.write(connection, tally, end=end)

    def read(self, *, after: int, upto: int | None = None) -> Iterator[Update]:
        """The updates with seq > after (and <= upto), in order."""
        return (entry for entry, _ in self.read_with_decisions(after=after, upto=upto))

    def read_with_decisions(
        self, *, after: int, upto: int | None = None, page: int = 1000
    ) -> Iterator[tuple[Update, Decision]]:
        """Like `read`, with each update's decision. Raises StoreError at an unreadable one. page: rows per query."""
        for row, decision_row in rows_of_ledger(self.database, label=self.label, after=after, upto=upto, page=page):
            decision = read_decision(decision_row)
            if isinstance(decision, StoreError):
                raise decision
            yield update_value(row, decision=decision), decision

    def count_recent_updates(self) -> dict[ArmName, int]:
        """Arm -> number of its updates among the newest COUNTED updates of the ledger."""
        with self.database.read() as connection:
            after = self.last_seq(connection=connection) - COUNTED
            counts = select(updates.c.arm, func.count()).where(updates.c.policy == self.label, updates.c.seq > after)
            return {ArmName(arm): int(count) for arm, count in connection.execute(counts.group_by(updates.c.arm))}

    def count_updates_of(self, arm: ArmName) -> int:
        """Number of the arm's updates."""
        with self.database.read() as connection:
            query = select(func.count()).where(updates.c.policy == self.label, updates.c.arm == arm)
            return connection.execute(query).scalar_one()

    def late_dollars(self, *, since: float | None = None) -> dict[ArmName, float]:
        """Arm -> dollars of learned decisions' turns after all ledgers had closed the decision: no reward has them.

        since: leave out decisions made before this time, seconds since 1970; None for all
        """
        turns = decisions.alias()
        has_turns = decisions.c.id.in_(select(turns.c.turn_of).where(turns.c.turn_of.is_not(None)))
        learned = and_(updates.c.policy == self.label, updates.c.decision_id == decisions.c.id)
        query = select(decisions.c.arm, *outcomes.c["cost", "steps"]).where(has_turns)
        query = query.join(outcomes, outcomes.c.decision_id == decisions.c.id).join(updates, learned)
        query = query if since is None else query.where(decisions.c.made_at >= since)
        late = defaultdict[ArmName, float](float)
        with self.database.read() as connection:
            for arm, cost, steps in connection.execute(query.execution_options(yield_per=_AT_ONCE)):
                _, (dollars, *_) = spent_of(cost, steps=steps)
                late[arm] += dollars
        return {arm: dollars for arm, dollars in sorted(late.items()) if dollars}

    def policy_row(self) -> dict[str, Any] | None:
        """The ledger's row of `policies`; None if no router has registered it."""
        with self.database.read() as connection:
            row = connection.execute(select(policies).where(policies.c.label == self.label)).mappings().first()
        return None if row is None else dict(row)

    def encoder_hash(self) -> str:
        """Hash of the encoder that this ledger learns with; "" if its policy uses no features."""
        return str((self.policy_row() or {"encoder_hash": ""})["encoder_hash"])

    def newest_encoder_hash(self) -> str | None:
        """Encoder hash of the newest decision of any ledger; None without decisions."""
        query = select(decisions.c.encoder_hash).order_by(decisions.c.made_at.desc()).limit(1)
        with self.database.read() as connection:
            return connection.execute(query).scalar()

    def newest_decisions(self, *, limit: int, encoder_hash: str) -> list[Decision]:
        """Decisions with features of this encoder among the newest `limit`, oldest first, without imported ones."""
        query = select(decisions).order_by(decisions.c.made_at.desc()).limit(limit)
        with self.database.read() as connection:
            rows = connection.execute(query).mappings().all()
        read = (decision for decision in map(read_decision, reversed(rows)) if isinstance(decision, Decision))
        encoded = (item for item in read if item.encoder_hash == encoder_hash and item.features is not None)
        return [decision for decision in encoded if IMPORTED not in decision.facts]

    def newest_outcomes(self, *, limit: int) -> list[tuple[Decision, Outcome]]:
        """The newest `limit` outcomes with their decisions, newest first, without unreadable and imported ones."""
        newest = select(outcomes.c.decision_id).order_by(outcomes.c.made_at.desc()).limit(limit)
        with self.database.read() as connection:
            joined = self._joined(connection, list(connection.execute(newest).scalars()))
        read = [item for item in joined if isinstance(item, JoinedDecision) and IMPORTED not in item.decision.facts]
        return [(item.decision, item.outcome) for item in read if item.outcome is not None]

    def store_texts(self, **texts: str | None) -> None:
        """Set the columns `diagnosis` or `frontier` of the ledger's row of `policies`; texts are JSON."""
        with self.database.write() as connection:
            connection.execute(update(policies).where(policies.c.label == self.label).values(**texts))

    def frontier(self) -> str | None:
        """The ledger's cost-quality frontier as JSON; None if none is stored."""
        with self.database.read() as connection:
            return connection.execute(select(policies.c.frontier).where(policies.c.label == self.label)).scalar()

    def add_snapshot(self, info: SnapshotInfo) -> None:
        """Insert a snapshot's row, unless it exists."""
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
        """Snapshots with these values (None for any), newest first. kept: True for only those with `is_kept`."""
        params_sha256 = None if params is None else body_hash(dict(params))
        values = {"algorithm": algorithm, "params_sha256": params_sha256, "encoder_hash": encoder_hash}
        same = [snapshots.c[name] == value for name, value in values.items() if value is not None]
        query = select(snapshots).where(snapshots.c.policy == self.label, *same)
        if kept:
            query = query.where(snapshots.c.last_seq > 0, snapshots.c.last_seq % KEPT_EVERY == 0)
        newest = query.order_by(snapshots.c.last_seq.desc(), snapshots.c.made_at.desc()).limit(limit)
        with self._reading(connection) as reading:
            return [snapshot_value(row) for row in reading.execute(newest).mappings()]

    def snapshots_to_try(self, **filters: Any) -> list[SnapshotInfo]:
        """The TRIES newest snapshots, and older snapshots that are kept longer. filters: see `latest_snapshots`."""
        newest = self.latest_snapshots(limit=TRIES, **filters)
        kept = self.latest_snapshots(limit=KEPT_MOST, kept=True, **filters)
        return newest + [info for info in kept if info not in newest]

    def prune_snapshots(self) -> list[SnapshotInfo]:
        """Delete and return rows of old snapshots (see SNAPSHOT_ROWS and KEPT_EVERY), at most PRUNED_AT_ONCE."""
        kept = [info.version for info in self.latest_snapshots(limit=KEPT_MOST, kept=True)]
        newer = snapshots.alias()
        order = ("last_seq", "made_at", "version")
        same = [newer.c[name] == snapshots.c[name] for name in ("policy", "algorithm", "params_sha256", "encoder_hash")]
        later = tuple_(*(newer.c[name] for name in order)) > tuple_(*(snapshots.c[name] for name in order))
        old = select(snapshots.c.version).where(snapshots.c.policy == self.label)
        old = old.order_by(*(snapshots.c[name].desc() for name in order)).offset(SNAPSHOT_ROWS).limit(PRUNED_AT_ONCE)
        doomed = select(snapshots).where(snapshots.c.version.in_(old), exists().where(*same, later))
        doomed = doomed.where(snapshots.c.version.not_in(kept))
        with self.database.write() as connection:
            forgotten = [snapshot_value(row) for row in connection.execute(doomed).mappings()]
            versions = [info.version for info in forgotten]
            connection.execute(delete(snapshots).where(snapshots.c.version.in_(versions)))
        return forgotten

    def feedback_times(self, *, after: int, upto: int) -> list[float]:
        """Times at which the last feedback of each update with a seq in (after, upto] came in."""
        with self.database.read() as connection:
            times = select(updates.c.feedback_at).where(updates.c.policy == self.label, updates.c.seq > after)
            times = times.where(updates.c.seq <= upto, updates.c.feedback_at.is_not(None))
            return list(connection.execute(times).scalars())

    def acquire(self, *, holder: str, lease_s: float, patience_s: float = 0.0) -> bool:
        """Take or renew the lease; False if another process holds it for longer than `patience_s` seconds."""
        give_up = time.monotonic() + patience_s
        while not self._lease.acquire(holder=holder, lease_s=lease_s):
            if time.monotonic() >= give_up:
                return False
            time.sleep(LOOK_S)
        return True

    def release(self, *, holder: str) -> None:
        self._lease.release(holder=holder)


def rows_of_ledger(
    database: Database, *, label: str, after: int, upto: int | None, page: int
) -> Iterator[tuple[Row, Row]]:
    """Yield (row of an update, row of its decision) for seqs in (after, upto], in order. page: rows per query."""
    while True:
        query = select(updates).where(updates.c.policy == label, updates.c.seq > after)
        query = query if upto is None else query.where(updates.c.seq <= upto)
        with database.read() as connection:
            batch = connection.execute(query.order_by(updates.c.seq).limit(page)).mappings().all()
            decided = select(decisions).where(decisions.c.id.in_([row["decision_id"] for row in batch]))
            by_id = {row["id"]: row for row in connection.execute(decided).mappings()}
        if not batch:
            return
        for row in batch:
            yield row, by_id[row["decision_id"]]
        after = batch[-1]["seq"]


def _join(
    row: RowMapping, outcome_row: RowMapping | None, feedback_rows: Sequence[RowMapping], **ends: Any
) -> JoinedDecision | ClosedDecision:
    """Convert a decision's rows. If a row is unreadable, returns a quarantined ClosedDecision that names the field.

    ends: the fields `open_until` and `has_open_turn` of JoinedDecision
    """
    field = "decision"
    try:
        decision = decision_value(row)
        field = "outcome"
        outcome = None if outcome_row is None else outcome_value(outcome_row)
        field = "feedback.value"
        feedback = tuple(map(feedback_value, feedback_rows))
        for item in feedback:
            if item.value is not None and not isinstance(item.value, tuple if item.kind == "label" else int | float):
                raise ValueError(f"{item.value!r} is not a {item.kind}")
    except (ValueError, TypeError, KeyError) as error:
        if field == "decision":
            field = getattr(error, "field", field)
        reason = f"cannot be read: {error}"
        return ClosedDecision(decision_id=row["id"], state="quarantined", reason=reason, field=field)
    return JoinedDecision(decision=decision, outcome=outcome, feedback=feedback, **ends)


#: columns of `updates` other than those of the reward
_PLAIN: Final = ("seq", "decision_id", "arm", "propensity", "made_at", "decided", "restarts")
#: columns of `updates` that a policy learns from
_COLUMNS: Final = _PLAIN + REWARD.names
_NO_QUESTION = Query(text="")
#: number of columns that are always read: _COLUMNS, features, cost_weight and IMPORTED_COLUMNS
_LEARNED = len(_COLUMNS) + 4
#: columns of `decisions` for policies that learn from the context, and for policies that learn from the draw
_CONTEXT, _DRAW = ("context", "tenant"), ("arms", "facts")


def lean_updates(
    ledger: Ledger, *, after: int, upto: int | None = None, page: int = 4000, context: bool = False, draws: bool = False
) -> Iterator[Update]:
    """Like `Ledger.read`, in an eighth of the time, for policies that learn only from arm, features and reward.

    Yields the updates with seqs in (after, upto], without feedback ids and without arms that were not drawn. Their
    questions have only the weight of cost. context: include context and tenant. draws: include the offered arms, the
    question's unit, and whether the draw was released
    """
    more = (*(_CONTEXT if context else ()), *(_DRAW if draws else ()))
    while upto is None or after < upto:
        rows = _page(ledger, after=after, upto=upto, page=page, more=more)
        for row in rows:
            yield _update(row, label=ledger.label, more=more)
            after = row.seq
        if not rows:
            return


def _page(ledger: Ledger, *, after: int, upto: int | None, page: int, more: tuple[str, ...]) -> Sequence[Any]:
    columns = [*updates.c[_COLUMNS], *decisions.c["features", "cost_weight"], *IMPORTED_COLUMNS]
    columns += [decisions.c[name] for name in more]
    query = select(*columns).join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
    query = query.where(updates.c.policy == ledger.label, updates.c.seq > after)
    if upto is not None:
        query = query.where(updates.c.seq <= upto)
    with ledger.database.read() as connection:
        return connection.execute(query.order_by(updates.c.seq).limit(page)).all()


def _update(row: Any, *, label: PolicyLabel, more: tuple[str, ...]) -> Update:
    seq, decision_id, arm, propensity, made_at, decided, restarts = row[: len(_PLAIN)]
    features, weight, *imported = row[len(_COLUMNS) : _LEARNED]
    texts = dict(zip(more, row[_LEARNED:], strict=True))
    facts = object_or_empty(texts.get("facts"))
    return Update(
        policy=label,
        seq=seq,
        decision_id=decision_id,
        query=_query(weight, unit=decided_unit(facts), texts=texts),
        arm=arm,
        arms=arms_value(texts["arms"]) if "arms" in texts else (arm,),
        pmf=(propensity,),
        scores=None,
        propensity=propensity,
        reward=REWARD.read(row[len(_PLAIN) : len(_COLUMNS)]),
        feedback_ids=(),
        features=features_value(features),
        made_at=made_at,
        imported=is_imported(imported),
        decided=decided,
        released=is_released(facts),
        restarts=() if restarts is None else tuple(json.loads(restarts)),
    )


def _query(weight: float | None, *, unit: DecisionUnit | None, texts: Mapping[str, str]) -> Query:
    if "context" in texts:
        context = json.loads(texts["context"])
        return Query(text="", context=context, tenant=texts["tenant"], cost_weight=weight, unit=unit)
    return _NO_QUESTION if weight is None and unit is None else Query(text="", cost_weight=weight, unit=unit)

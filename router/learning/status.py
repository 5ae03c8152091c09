"""Status of a ledger, read from the database: counters, lag, quarantined decisions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Final

from sqlalchemy import Double, Select, bindparam, func, or_, select, union_all

from ragbandit.router.learning.monitoring.diagnosis import Diagnosis, read_diagnosis
from ragbandit.router.policies.base import Policy
from ragbandit.router.storage.jobs.judge_days import today
from ragbandit.router.storage.jobs.judged_arms import judged_arms
from ragbandit.router.storage.judgements import JudgeState
from ragbandit.router.storage.ledgers.closing import ClosingRule
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import stored_counts
from ragbandit.router.storage.sql.tables import closures, feedback, policies, updates, waiting
from ragbandit.shared.errors import NotFound
from ragbandit.shared.types import ArmName, Counters

#: largest number of ready decisions from which the lag is computed; at least this number is a backlog
LEARNED_NEXT: Final = 100
#: number of newest updates from which the learner's speed is computed
PACE: Final = 2000
#: if the newest update is older than this, in seconds, the learner's speed is unknown
WORKS_S: Final = 60.0
#: selects a ledger that still inherits decisions or is retired, so that some decisions have no state in it
_INCOMPLETE: Final = select(policies.c.label).where(
    policies.c.label == bindparam("label"), or_(policies.c.inheriting.is_not(None), policies.c.retired_at.is_not(None))
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    counters: Counters
    last_seq: int
    snapshot: str | None
    snapshot_last_seq: int
    behind: int  #: number of updates that the newest snapshot does not contain
    #: seconds for which the longest-waiting decision has been ready to be learned; 0 if none is ready
    lag_s: float
    unanswered: int
    #: number of decisions with feedback, but without an outcome yet, because callers run their arms
    missing_outcome: int
    #: number of decisions that are ready to be learned; 0 if there are fewer than LEARNED_NEXT
    backlog: int = 0
    #: seconds until the backlog is learned, at the speed of the newest updates; None if there is no backlog or no speed
    caught_up_s: float | None = None
    learning: Diagnosis | None = None
    #: work of the judge for all ledgers of the store
    judge: JudgeState = field(default_factory=JudgeState)
    #: number of answers that `reward.check` has still to check
    unchecked: int = 0


def check_registered(ledger: Ledger) -> None:
    """Raise NotFound, with the existing labels, if neither a router nor an import has opened the ledger."""
    with ledger.database.read() as connection:
        labels = sorted(connection.execute(select(policies.c.label)).scalars())
    if ledger.label not in labels:
        remedy = (
            f"give --label: {', '.join(labels)}" if labels else "there is none yet: start a router, or import a log"
        )
        raise NotFound(f"the store has no ledger {ledger.label!r}", field="label", remedy=remedy)


def counters(ledger: Ledger) -> Counters:
    with ledger.database.read() as connection:
        return _counters(connection, stored_counts(connection, label=ledger.label), label=ledger.label)


def _counters(connection: Connection, stored: Mapping[str, int], *, label: str) -> Counters:
    read = Counters(**{field.name: stored[field.name] for field in fields(Counters) if field.name in stored})
    if connection.execute(_INCOMPLETE, {"label": label}).first() is None:
        return read
    return replace(read, unseen=read.decided - read.placed)


@cache
def _next_to_learn(rule: ClosingRule) -> Select[Any]:
    """For each of the next decisions to be learned, selects decided_at and the received_at of its first feedback."""
    now: Any = bindparam("now", type_=Double)
    firsts = [
        select(waiting.c.decision_id, waiting.c.decided_at)
        .where(waiting.c.policy == bindparam("label"), waiting.c.has_feedback, part)
        .order_by(waiting.c.decided_at)
        .limit(LEARNED_NEXT)
        .subquery()
        for part in rule.closable_ranges(now=now)
    ]
    next_ones = union_all(*(select(first.c.decision_id, first.c.decided_at) for first in firsts)).subquery()
    received = func.min(feedback.c.received_at).label("received_at")
    joined = select(received, next_ones.c.decided_at).join(
        feedback, (feedback.c.decision_id == next_ones.c.decision_id) & (feedback.c.value != "null")
    )
    return joined.group_by(next_ones.c.decision_id, next_ones.c.decided_at)


def _backlog(connection: Connection, *, rule: ClosingRule, label: str, now: float) -> tuple[int, float | None]:
    rated = waiting.c.policy == label, waiting.c.has_feedback
    ranges = rule.closable_ranges(now=now)
    counts = [select(func.count()).select_from(waiting).where(*rated, condition) for condition in ranges]
    count = sum(int(connection.execute(query).scalar_one()) for query in counts)
    of_ledger = select(updates.c.seq, updates.c.made_at).where(updates.c.policy == label)
    newest = connection.execute(of_ledger.order_by(updates.c.seq.desc()).limit(1)).first()
    if newest is None or newest.made_at < now - WORKS_S:
        return count, None
    recent = of_ledger.where(updates.c.seq > newest.seq - PACE).order_by(updates.c.seq)
    oldest = connection.execute(recent.limit(1)).one()
    passed = newest.made_at - oldest.made_at
    return count, count * passed / (newest.seq - oldest.seq) if passed > 0.0 else None


def read_status(
    ledger: Ledger, *, serving: Policy | None, rule: ClosingRule, now: float, arms: Iterable[ArmName] = ()
) -> Status:
    """Read a ledger's status.

    serving: policy of the routers; None for an imported ledger without one
    arms: the arms whose rated answers are counted
    """
    maker: dict[str, Any] = {} if serving is None else {"algorithm": serving.algorithm, "params": serving.params}
    with ledger.database.read() as connection:  # one transaction: all numbers belong to the same moment
        last_seq = ledger.last_seq(connection=connection)
        snapshots = ledger.latest_snapshots(limit=1, **maker, connection=connection)
        newest = snapshots[0] if snapshots else None
        counts_of_label = stored_counts(connection, label=ledger.label)
        counts = _counters(connection, counts_of_label, label=ledger.label)
        learned_next = connection.execute(_next_to_learn(rule), {"label": ledger.label, "now": now}).all()
        judge = JudgeState(
            waiting=counts_of_label["judge_due"],
            today=today(connection, now=now),
            arms=judged_arms(connection, arms=arms, now=now),
        )
        is_served = serving is not None
        learning = _diagnosis(connection, ledger=ledger, last_seq=last_seq, is_served=is_served)
        is_behind = serving is not None and len(learned_next) >= LEARNED_NEXT
        backlog, caught_up_s = _backlog(connection, rule=rule, label=ledger.label, now=now) if is_behind else (0, None)
    waits = (now - max(row.received_at, row.decided_at + rule.wait_s) for row in learned_next)
    snapshot_last_seq = 0 if newest is None else newest.last_seq
    return Status(
        counters=counts,
        last_seq=last_seq,
        snapshot=None if newest is None else newest.version,
        snapshot_last_seq=snapshot_last_seq,
        behind=0 if serving is None else last_seq - snapshot_last_seq,
        lag_s=0.0 if serving is None else max([0.0, *waits]),
        backlog=backlog,
        caught_up_s=caught_up_s,
        unanswered=counts_of_label["unanswered"],
        missing_outcome=counts_of_label["missing_outcome"],
        learning=learning,
        judge=judge,
        unchecked=counts_of_label["check_due"],
    )


def stored_diagnosis(ledger: Ledger) -> Diagnosis | None:
    """The diagnosis of the ledger's policy; None if no learner has stored one. Raises StoreError."""
    with ledger.database.read() as connection:
        last_seq = ledger.last_seq(connection=connection)
        return _diagnosis(connection, ledger=ledger, last_seq=last_seq, is_served=False)


def diagnosis_text(connection: Connection, *, label: str) -> str | None:
    """The diagnosis of a ledger's policy as JSON; None if no learner has stored one."""
    text: str | None = connection.execute(select(policies.c.diagnosis).where(policies.c.label == label)).scalar()
    return text


def _diagnosis(connection: Connection, *, ledger: Ledger, last_seq: int, is_served: bool) -> Diagnosis | None:
    """The ledger's diagnosis; None without one. is_served: whether a router serves it, and labels may be missing."""
    label = ledger.label
    diagnosis = diagnosis_text(connection, label=label)
    if diagnosis is None and not is_served:
        return None
    learned = select(updates.c.decided).where(updates.c.policy == label, updates.c.decided.is_not(None))
    decided_then = connection.execute(learned.order_by(updates.c.seq.desc()).limit(1)).scalar()
    decided = ledger.count_decided(connection=connection)
    return read_diagnosis(diagnosis, unlabelled=max(0, decided - (decided_then or last_seq)))


def quarantined_decisions(ledger: Ledger, *, limit: int = 100, newest: int | None = None) -> list[Mapping[str, Any]]:
    """The quarantined decisions, newest first: decision_id, field, reason, made_at.

    newest: number of newest closed decisions, by id, that are searched; None to search all.
    """
    columns = closures.c.decision_id, closures.c.field, closures.c.reason, closures.c.made_at
    closed = select(*columns, closures.c.state).where(closures.c.policy == ledger.label)
    if newest is not None:
        closed = closed.order_by(closures.c.decision_id.desc()).limit(newest)
    rows = closed.subquery()
    query = select(*(rows.c[column.name] for column in columns)).where(rows.c.state == "quarantined")
    with ledger.database.read() as connection:
        quarantined = connection.execute(query.order_by(rows.c.made_at.desc()).limit(limit)).mappings()
        return [dict(row) for row in quarantined]

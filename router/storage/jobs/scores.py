"""Jobs for scores: which new outcomes are queued for the judge, for the check `reward.check` or for a person's label.

The transaction that stores an outcome inserts its jobs. The transaction that stores a score, or gives up, deletes the
job.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import func, select

from ragbandit.router.storage.access.shared_secrets import draw_number
from ragbandit.router.storage.jobs.claims import ScoreKind, count_jobs, drop_jobs
from ragbandit.router.storage.jobs.judge_days import move_day
from ragbandit.router.storage.sql.bulk_insert import insert_new, insert_rows
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import ALL, Increments, stored_counts
from ragbandit.router.storage.sql.tables import decisions, jobs
from ragbandit.shared.types import CANCELLED, IMPORTED, NOT_PERMITTED, DecisionId, Json, Outcome, call_ids, is_textless

#: maximum number of answers in the queue of the check; further answers are not checked
MAX_CHECKS: Final = 10_000
CHECK_ATTEMPTS: Final = 3
CHECK_EXPIRE_S: Final = 2 * 86400.0
#: maximum number of answers in the label queue
MAX_LABELS: Final = 10_000
#: maximum time of an answer in the label queue, seconds
LABEL_EXPIRE_S: Final = 7 * 86400.0
#: difference of `made_at` between answers that are queued together, seconds; the newest is shown first
_ORDER_S: Final = 1e-3
#: stop reasons of failures that are not caused by the arm
NOT_ITS_FAULT: Final = frozenset({CANCELLED, "unknown_arm", "unreadable", "request_refused", NOT_PERMITTED})


def is_judgeable(outcome: Outcome) -> bool:
    """Whether the outcome has an answer or is a failure of the arm. False if a caller answered and reported no text."""
    if IMPORTED in outcome.made_by or call_ids(outcome):  # not an answer yet: it comes after the tool calls
        return False
    if is_textless(outcome):
        return False
    if outcome.answer is not None and outcome.answer.strip():
        return True
    return outcome.stop_reason not in NOT_ITS_FAULT and (outcome.run_by == "worker" or outcome.status != "answered")


def add_jobs(
    connection: Connection,
    group: Iterable[Outcome],
    *,
    kind: ScoreKind,
    room: int,
    tally: Increments,
    facts: Mapping[str, Json] | None = None,
) -> int:
    """Insert up to `room` jobs for the outcomes that can be judged. Returns how many outcomes had no room."""
    judgeable = sorted(filter(is_judgeable, group), key=lambda outcome: outcome.decision_id)
    if not judgeable:
        return 0
    rows = [
        _row(outcome.decision_id, kind=kind, made_at=outcome.made_at, facts=facts or {})
        for outcome in judgeable[: max(0, room)]
    ]
    insert_rows(connection, jobs, rows)
    count_jobs(kind, len(rows), tally=tally)
    return len(judgeable) - len(rows)


def add_labels(connection: Connection, group: Sequence[Outcome], *, tally: Increments) -> None:
    """Put new outcomes into the label queue. If it is full, the oldest of the tenant with the most are removed."""
    if not group:
        return
    room = MAX_LABELS - stored_counts(connection, label=ALL)["label_due"]
    excess = len(group) - room
    if excess > 0:
        of_tenant = func.count().over(partition_by=decisions.c.tenant)
        oldest = select(jobs.c.decision_id).join(decisions, decisions.c.id == jobs.c.decision_id)
        oldest = oldest.where(jobs.c.kind == "label").order_by(of_tenant.desc(), jobs.c.made_at).limit(excess)
        room += len(drop_jobs(connection, connection.execute(oldest).scalars(), kind="label", tally=tally))
    add_jobs(connection, group, kind="label", room=room, tally=tally)


def queue_for_labels(connection: Connection, ids: Sequence[DecisionId], *, now: float, tally: Increments) -> int:
    """Put stored answers into the label queue, as far as it has room. The page shows them first, in this order.

    Returns the number of new jobs. now: seconds since 1970
    """
    room = max(MAX_LABELS - stored_counts(connection, label=ALL)["label_due"], 0)
    rows = [_row(key, kind="label", made_at=now - number * _ORDER_S, facts={}) for number, key in enumerate(ids[:room])]
    count = sum(insert_new(connection, jobs, rows, key="decision_id"))
    count_jobs("label", count, tally=tally)
    return count


def _row(key: DecisionId, *, kind: ScoreKind, made_at: float, facts: Mapping[str, Json]) -> dict[str, Any]:
    common = {"kind": kind, "turn": 0, "tries": 0, "facts": json.dumps(facts)}
    return {"decision_id": key, "made_at": made_at, "due_at": made_at, **common}


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeSample:
    """Which outcomes are judged: the given share, as long as the judge's queue is shorter than `max_waiting`."""

    share: float
    max_waiting: int
    #: all outcomes are judged until this number of decisions has been learned or queued for the judge
    first: int = 0
    #: secret of the store, for `draw_number`
    secret: bytes = b""


def sample_outcomes(
    connection: Connection,
    group: Iterable[Outcome],
    *,
    counts: Mapping[str, int],
    sample: JudgeSample,
    drawn: Mapping[str, bool],
    tally: Increments,
    shard: int,
) -> None:
    """Queue a sample of new outcomes for the judge, as far as its queue has room.

    counts: counters of the ledger, see `counters.stored_counts`
    drawn: decision -> whether it was drawn for the judge, if the draw was made with the decision
    """
    share = 1.0 if counts["learned"] + counts["judge_due"] < sample.first else sample.share
    sampled = [
        item
        for item in group
        if drawn.get(item.decision_id, draw_number("judge", item.decision_id, secret=sample.secret) < share)
    ]
    facts: dict[str, Json] = {"share": share, "failures": 0}
    skipped = add_jobs(
        connection, sampled, kind="judge", room=sample.max_waiting - counts["judge_due"], tally=tally, facts=facts
    )
    if skipped:
        move_day(connection, {"skipped": skipped}, now=sampled[0].made_at, shard=1 + shard)

"""Rows of `outcomes`, and of `jobs`: decisions that wait for the judge, a check or a label.

The transaction that stores an outcome inserts its jobs. The transaction that stores a score, or gives up, deletes the
job. Judges and checks claim jobs (leases.Claims), so if a process dies, only a try is lost. Rows of `waiting` are
locked before rows of `jobs`.
"""

import hmac
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from sqlalchemy import Connection, RowMapping, and_, delete, func, null, select

from ragbandit.router.storage.rows.conversion import (
    JSON_OBJECT,
    Form,
    Row,
    TableRows,
    body_hash,
    canonical,
    json_object,
    of_known,
)
from ragbandit.router.storage.sql.bulk_insert import insert_into, insert_rows
from ragbandit.router.storage.sql.counters import ALL, CounterName, Moves
from ragbandit.router.storage.sql.tables import counters, decisions, jobs, judge_days, outcomes, updates
from ragbandit.shared.message_parts import MEDIA
from ragbandit.shared.types import (
    CANCELLED,
    IMPORTED,
    Branch,
    CallFailed,
    Cost,
    Generated,
    Json,
    LabelRequest,
    Outcome,
    Retrieved,
    Round,
    Source,
    TraceEvent,
    calls_of,
)

#: compression dictionary; the most frequent strings come last
_DICTIONARY: Final = (
    b'{"error":"","purpose":"remote","seconds":0.,"type":"call_failed"},{"rule":"unknown_event","type":"branch","value":'
    b'"true"},{"rule":"","type":"branch","value":"false"},"dollars":null,"purpose":"rewrite","note","judge","reason","'
    b'{"ids":["","","","",""],"query":"Who was the first","scores":[1.,2.,3.,4.,5.,6.,7.,8.,9.,1],"seconds":0.00,'
    b'"type":"retrieved"},[{"number":1,"type":"round"},{"ids":["","query":"","scores":[],"seconds":0.00,"type":"retrieved"},'
    b'{"number":2,"type":"round"},{"number":3,"type":"round"},{"ids":["","type":"retrieved"},'
    b'[{"completion_tokens":1,"prompt_tokens":1,"purpose":"answer","seconds":0.,"text":"","type":"generated"}]'
)
_MARK: Final = b"\x01"
#: maximum characters of images, audio and video that an outcome stores. Larger media pass to the waiting client, but
#: are missing in the reply to a repeated request, and in answers of workers
MAX_STORED_MEDIA: Final = 2_000_000
#: maximum bytes of an unpacked trace, so that a damaged row cannot fill the memory
_MOST: Final = 64 * 1024 * 1024


def packed(text: str, *, answer: str) -> bytes:
    """Compress the JSON of a trace. answer: the outcome's answer; most traces repeat it, so it helps to compress."""
    writer = zlib.compressobj(level=6, wbits=-15, zdict=_DICTIONARY + answer.encode())
    return _MARK + writer.compress(text.encode()) + writer.flush()


def unpacked(data: bytes, *, answer: str) -> str:
    """The inverse of `packed`. Raises ValueError for other bytes."""
    if data[:1] != _MARK:
        raise ValueError("the trace was packed by a newer version, or is damaged")
    reader = zlib.decompressobj(wbits=-15, zdict=_DICTIONARY + answer.encode())
    try:
        text = reader.decompress(data[1:], _MOST)
    except zlib.error as error:
        raise ValueError(f"the trace cannot be unpacked: {error}") from error
    if not reader.eof:
        raise ValueError("the trace cannot be unpacked: it is cut off")
    return text.decode()


_EVENTS: dict[str, type[Round | Retrieved | Generated | Branch | CallFailed]] = {
    "round": Round,
    "retrieved": Retrieved,
    "generated": Generated,
    "branch": Branch,
    "call_failed": CallFailed,
}


def trace_json(trace: tuple[TraceEvent, ...]) -> list[dict[str, Any]]:
    """Each event as a JSON object with the key "type"."""
    names = {kind: name for name, kind in _EVENTS.items()}
    return [{"type": names[type(event)], **_fields(event)} for event in trace]


def _fields(value: Any) -> dict[str, Any]:
    """Like `asdict`, ten times as fast, for dataclasses that contain no others."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def trace_value(events: list[dict[str, Any]]) -> tuple[TraceEvent, ...]:
    """The inverse of `trace_json`. An event of a type that only a newer release has becomes a Branch."""
    trace: list[TraceEvent] = []
    for event in events:
        kind = _EVENTS.get(event["type"])
        if kind is None:
            trace.append(Branch(rule="unknown_event", value=canonical(event)))
            continue
        trace.append(of_known(kind, {k: tuple(v) if isinstance(v, list) else v for k, v in event.items()}))
    return tuple(trace)


#: key in the JSON of a cost: part of the cost that later turns of the tool loop added
LATER: Final = "later"


def cost_value(text: str) -> Cost:
    return of_known(Cost, json_object(text))


def own_cost(text: str) -> Cost:
    """The cost without the part of later turns of the tool loop, which have their own outcomes."""
    whole, later = cost_value(text), json_object(text).get(LATER)
    return Cost(**{name: amount - later.get(name, 0) for name, amount in asdict(whole).items()}) if later else whole


def with_later(cost: str, *, before: str, added: Cost) -> str:
    """JSON of a cost with the part LATER. before: the stored JSON. added: the cost of the newest turn."""
    later = of_known(Cost, json_object(before).get(LATER, {})) + added
    return canonical({**json_object(cost), LATER: _nonzero(later)})


def _nonzero(cost: Cost) -> dict[str, Any]:
    """The fields that are not 0. So hashes stay the same when a release adds a field."""
    return {name: amount for name, amount in _fields(cost).items() if amount}


def storable(text: str | None) -> str | None:
    """Replace NUL and lone surrogates, which models may write and databases refuse."""
    return None if text is None else text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def outcome_body(outcome: Outcome) -> dict[str, Any]:
    """The fields that decide whether an outcome repeats the stored one."""
    unchanged = ("status", "answer", "steps", "stop_reason", "error", "run_by")
    body = {name: getattr(outcome, name) for name in unchanged}
    return body | {"trace": trace_json(outcome.trace), "cost": _nonzero(outcome.cost), "made_by": dict(outcome.made_by)}


def _sources_json(sources: tuple[Source, ...]) -> str | None:
    values = [asdict(source) for source in sources]
    for value in values:
        value.update({name: storable(text) for name, text in value.items() if isinstance(text, str)})
    return canonical(values) if values else None


def _reply_json(reply: Mapping[str, Json]) -> str | None:
    """The reply without its media if they have more than MAX_STORED_MEDIA characters; "omitted" names them."""
    message = reply.get("message")
    media = {name: message[name] for name in MEDIA if name in message} if isinstance(message, dict) else {}
    if isinstance(message, dict) and media and len(canonical(media)) > MAX_STORED_MEDIA:
        kept = {name: value for name, value in message.items() if name not in media}
        reply = {**reply, "message": kept, "omitted": list[Json](media)}
    return storable(canonical(dict(reply))) if reply else None


_OUTCOME: Final = TableRows(
    outcomes,
    Outcome,
    without=("trace",),
    answer=Form(write=storable),
    error=Form(write=storable),
    stop_reason=Form(write=lambda text: (storable(text) or "")[:64]),
    cost=Form(write=lambda cost: canonical(_nonzero(cost)), read=cost_value),
    made_by=JSON_OBJECT,
    sources=Form(
        write=_sources_json, read=lambda text: tuple(of_known(Source, item) for item in json.loads(text or "[]"))
    ),
    reply=Form(write=_reply_json, read=json_object),
)


#: columns of `outcomes`, with NULL for the long columns that rewards do not need
REPORTED: Final = [null().label(c.name) if c.name in ("trace", "sources", "reply") else c for c in outcomes.c]


def outcome_row(outcome: Outcome) -> dict[str, Any]:
    """A row of `outcomes`. Its hash leaves out the sources, since the corpus may change before a repetition."""
    row, body = _OUTCOME.row(outcome), outcome_body(outcome)
    trace = packed(storable(canonical(body["trace"])) or "", answer=row["answer"] or "")
    return row | {"body_hash": body_hash(body), "trace": trace}


def outcome_value(row: Row) -> Outcome:
    """The outcome of a row; its trace may be NULL."""
    events = [] if row["trace"] is None else json.loads(unpacked(row["trace"], answer=row["answer"] or ""))
    return _OUTCOME.value(row, trace=trace_value(events))


JobKind = Literal["judge", "check", "label"]
_DUE: Final[Mapping[JobKind, CounterName]] = {"judge": "judge_due", "check": "check_due", "label": "label_due"}

#: maximum number of answers that wait for a check; further answers are not checked
MAX_CHECKS: Final = 10_000
CHECK_ATTEMPTS: Final = 3
CHECK_EXPIRE_S: Final = 2 * 86400.0
#: maximum number of answers that wait for a person's label, and their longest wait, seconds
MAX_LABELS: Final = 10_000
LABEL_EXPIRE_S: Final = 7 * 86400.0
#: stop reasons of failures that are not caused by the arm
_NOT_ITS_FAULT: Final = frozenset({CANCELLED, IMPORTED, "unknown_arm", "unreadable", "request_refused"})
#: condition on `updates` and `decisions`: the decision was labelled because its label was most useful, not at random
CHOSEN_FOR_USE: Final = and_(
    updates.c.judged_by == "label",
    decisions.c.facts.like(f'%"{LabelRequest.key}":{{"asked":true,%"uniform":false}}%'),
)


def is_judgeable(outcome: Outcome) -> bool:
    """Whether the outcome has an answer or is a failure of the arm. False if a caller answered without reporting it."""
    if calls_of(outcome):
        return False  # the answer comes after the tool calls
    if outcome.answer is not None and outcome.answer.strip():
        return outcome.stop_reason != IMPORTED
    return outcome.stop_reason not in _NOT_ITS_FAULT and (outcome.run_by == "worker" or outcome.status != "answered")


def add_jobs(
    connection: Connection,
    group: Iterable[Outcome],
    *,
    kind: JobKind,
    room: int,
    moves: Moves,
    facts: Mapping[str, Json] | None = None,
) -> int:
    """Insert jobs for the outcomes that can be judged, up to `room` waiting jobs. Returns how many had no room."""
    judgeable = sorted(filter(is_judgeable, group), key=lambda outcome: outcome.decision_id)
    if not judgeable:
        return 0
    common = {"kind": kind, "tries": 0, "facts": json.dumps(facts or {})}
    rows = [
        {"decision_id": outcome.decision_id, "made_at": outcome.made_at, "due_at": outcome.made_at, **common}
        for outcome in judgeable[: max(0, room - waiting_jobs(connection, kind=kind))]
    ]
    insert_rows(connection, jobs, rows)
    moves.add(_DUE[kind], len(rows))
    return len(judgeable) - len(rows)


def add_labels(connection: Connection, group: Sequence[Outcome], *, moves: Moves) -> None:
    """Let new outcomes wait for a label. If too many wait, the oldest of the tenant with the most are removed."""
    if not group:
        return
    excess = waiting_jobs(connection, kind="label") + len(group) - MAX_LABELS
    dropped = []
    if excess > 0:
        of_tenant = func.count().over(partition_by=decisions.c.tenant)
        oldest = select(jobs.c.decision_id).join(decisions, decisions.c.id == jobs.c.decision_id)
        oldest = oldest.where(jobs.c.kind == "label").order_by(of_tenant.desc(), jobs.c.made_at).limit(excess)
        dropped = drop_jobs(connection, connection.execute(oldest).scalars(), kind="label", moves=moves)
    add_jobs(connection, group, kind="label", room=MAX_LABELS + len(dropped), moves=moves)


def drop_jobs(connection: Connection, ids: Iterable[str], *, kind: JobKind, moves: Moves) -> list[str]:
    """Delete the jobs of these decisions. Returns the ids of decisions that had one."""
    matching = delete(jobs).where(jobs.c.kind == kind, jobs.c.decision_id.in_(sorted(ids)))
    dropped = list(connection.execute(matching.returning(jobs.c.decision_id)).scalars())
    moves.add(_DUE[kind], -len(dropped))
    return dropped


def waiting_jobs(connection: Connection, *, kind: JobKind) -> int:
    return _counter(connection, label=ALL, name=_DUE[kind])


def _counter(connection: Connection, *, label: str, name: CounterName) -> int:
    total = select(func.coalesce(func.sum(counters.c.value), 0))
    return int(connection.execute(total.where(counters.c.label == label, counters.c.name == name)).scalar_one())


DAY_S: Final = 86_400
_COUNTS: Final = tuple(column.name for column in judge_days.columns if column.name not in ("day", "shard"))


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeSample:
    """Which outcomes are judged: the given share, as long as fewer than `max_waiting` wait."""

    share: float
    max_waiting: int
    #: all outcomes are judged until this number of decisions has been learned or waits for the judge
    first: int = 0
    #: secret of the store, for `drawn_for`
    secret: bytes = b""


def drawn_for(kind: JobKind, decision_id: str, *, secret: bytes) -> float:
    """A pseudorandom number in [0, 1) that decides whether a job is made. Callers cannot predict it."""
    # The space makes the number independent of the arm's draw, which hashes a text without a space.
    text = f"ragbandit {kind}:{decision_id}".encode("utf-8", "surrogatepass")
    return (int.from_bytes(hmac.digest(secret, text, "sha256")[:8], "big") >> 11) * 2.0**-53


def sample_outcomes(
    connection: Connection, group: Iterable[Outcome], *, label: str, sample: JudgeSample, moves: Moves, shard: int
) -> None:
    """Let the sampled share of new outcomes wait for the judge, if there is room."""
    share = sample.share
    if sample.first:
        learned = _counter(connection, label=label, name="learned")
        share = 1.0 if learned + waiting_jobs(connection, kind="judge") < sample.first else share
    sampled = [item for item in group if drawn_for("judge", item.decision_id, secret=sample.secret) < share]
    facts: dict[str, Json] = {"share": share, "failures": 0}
    skipped = add_jobs(connection, sampled, kind="judge", room=sample.max_waiting, moves=moves, facts=facts)
    if skipped:
        move_day(connection, {"skipped": skipped}, now=sampled[0].made_at, shard=1 + shard)


def move_day(
    connection: Connection, counts: Mapping[str, float] | None = None, *, now: float, shard: int = 0
) -> RowMapping:
    """Add to the judge's counts on the day of `now`. Returns the day's row, locked until the transaction ends."""
    counts = counts or {}
    day = day_of(now)
    values = {"day": day, "shard": shard, **dict.fromkeys(_COUNTS, 0), **counts}
    move = insert_into(connection, judge_days).values(**values)
    added = {name: judge_days.c[name] + move.excluded[name] for name in _COUNTS}
    move = move.on_conflict_do_update(index_elements=judge_days.primary_key, set_=added)
    row = connection.execute(move.returning(judge_days)).mappings().one()
    if counts.get("begun") == row["begun"]:  # the first of the day
        connection.execute(delete(judge_days).where(judge_days.c.day < day_of(now - 400 * DAY_S)))
    return row


def today(connection: Connection, *, now: float) -> dict[str, Any]:
    """The judge's counts on the day of `now`, summed over all processes."""
    sums = [func.coalesce(func.sum(judge_days.c[name]), 0).label(name) for name in _COUNTS]
    row = connection.execute(select(*sums).where(judge_days.c.day == day_of(now))).mappings().one()
    return {name: float(row[name]) if name == "dollars" else int(row[name]) for name in _COUNTS}


def day_of(now: float) -> str:
    """The UTC day, for example "2026-11-21"."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def next_day(now: float) -> float:
    return (now // DAY_S + 1) * DAY_S

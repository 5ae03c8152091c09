"""Rows of `outcomes`: packed traces, costs, sources and replies."""

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from functools import lru_cache
from itertools import compress
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import ColumnElement, case, null

from ragbandit.router.storage.rows.conversion import JSON_OBJECT, Form, TableRows, body_hash, canonical, from_json
from ragbandit.router.storage.sql.bulk_insert import Row
from ragbandit.router.storage.sql.json_columns import json_object
from ragbandit.router.storage.sql.tables import outcomes
from ragbandit.shared.types import (
    ABANDONED,
    AMOUNTS,
    CANCELLED,
    CUT,
    DIED,
    ERASED,
    IMPORTED,
    LARGE_FIELDS,
    NO_TEXT,
    NOT_PERMITTED,
    Branch,
    CallFailed,
    Cost,
    Generated,
    Json,
    Outcome,
    Retrieved,
    Round,
    Source,
    TraceEvent,
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
#: maximum characters of images, audio and video that an outcome stores. Larger media are only in the first reply of a
#: service that asks the model itself: they are missing in replies to repeated requests, and in answers of workers
MAX_STORED_MEDIA: Final = 2_000_000
#: maximum bytes of an unpacked trace, so that a damaged row cannot fill the memory
_MOST: Final = 64 * 1024 * 1024


def compress_trace(text: str, *, answer: str) -> bytes:
    """Compress the JSON of a trace. answer: the outcome's answer, which most traces repeat; used as dictionary."""
    writer = zlib.compressobj(level=6, wbits=-15, zdict=_DICTIONARY + answer.encode())
    return _MARK + writer.compress(text.encode()) + writer.flush()


def decompress_trace(data: bytes, *, answer: str) -> str:
    """The inverse of `compress_trace`. Raises ValueError for other bytes."""
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
_EVENT_NAMES: Final = {kind: name for name, kind in _EVENTS.items()}


def trace_json(trace: tuple[TraceEvent, ...]) -> list[dict[str, Any]]:
    """Each event as a JSON object with the key "type"."""
    return [{"type": _EVENT_NAMES[type(event)], **_fields(event)} for event in trace]


def _fields(value: Any) -> dict[str, Any]:
    """Like `asdict`, ten times as fast, for dataclasses without nested dataclasses."""
    return dict(zip(value.__dataclass_fields__, _fields_of(value.__class__)(value), strict=True))


@lru_cache(maxsize=16)
def _fields_of(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that returns the fields of a value of this class, which has at least one."""
    names = tuple(field.name for field in fields(kind))
    return attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)


def trace_value(events: list[dict[str, Any]]) -> tuple[TraceEvent, ...]:
    """The inverse of `trace_json`. An event of an unknown type, from a newer release, becomes a Branch."""
    trace: list[TraceEvent] = []
    for event in events:
        kind = _EVENTS.get(event["type"])
        if kind is None:
            trace.append(Branch(rule="unknown_event", value=canonical(event)))
            continue
        trace.append(from_json(kind, {k: tuple(v) if isinstance(v, list) else v for k, v in event.items()}))
    return tuple(trace)


#: key in the JSON of a cost: the part of the cost that later turns of the decision added
LATER: Final = "later"
#: key in the JSON of a cost: cost and steps of turns that came after all ledgers had closed the decision. The cost does
#: not include them, since no reward does, but they were spent: see `spent_of`
LATE: Final = "late"
_STEPS: Final = "steps"
#: key in the JSON of a cost: dollars of calls whose price is assumed
ASSUMED: Final = "assumed_dollars"
#: key in the `price` of a cost: an implausible price that a server reported, and that does not count
REFUSED: Final = "refused"
#: (dollars, steps, seconds)
Amounts = tuple[float, float, float]


def cost_value(text: str) -> Cost:
    return from_json(Cost, json_object(text))


def cost_json(cost: Cost) -> str:
    return canonical(_nonzero(cost))


def own_cost(text: str) -> Cost:
    """The cost without the part of later turns, which have their own outcomes."""
    whole, later = cost_value(text), json_object(text).get(LATER)
    return replace(whole, **{name: getattr(whole, name) - later.get(name, 0) for name in AMOUNTS}) if later else whole


def with_added(cost: str, *, key: str, added: Cost) -> str:
    """The JSON of a cost, with the newest turn's cost added to its part `key` (LATER or LATE)."""
    parts = json_object(cost)
    return canonical({**parts, key: _nonzero(from_json(Cost, parts.get(key, {})) + added)})


def with_late(cost: str, *, turn: Outcome) -> str:
    """The JSON of a decision's cost, with the cost and the steps of a turn added to its part LATE."""
    parts = json_object(with_added(cost, key=LATE, added=turn.cost + Cost(turns=1)))
    steps = json_object(cost).get(LATE, {}).get(_STEPS, 0.0) + turn.steps
    return canonical({**parts, LATE: {**parts[LATE], **({_STEPS: steps} if steps else {})}})


def spent_of(cost: str, *, steps: float) -> tuple[Amounts, Amounts]:
    """Returns (amounts of a decision with all its turns, the part of turns that ended after all ledgers had closed it).

    cost, steps: columns of its outcome
    """
    parts = {**json_object(cost), _STEPS: steps}
    before, late = _amounts(parts), _amounts(parts.get(LATE, {}))
    return (before[0] + late[0], before[1] + late[1], before[2] + late[2]), late


def _amounts(parts: Mapping[str, Any]) -> Amounts:
    return parts.get("dollars", 0.0), parts.get(_STEPS, 0.0), parts.get("seconds_total", 0.0)


def _nonzero(cost: Cost) -> dict[str, Any]:
    """The fields other than 0, so that hashes stay the same when a release adds a field."""
    amounts = _fields_of(Cost)(cost)
    return dict(compress(zip(cost.__dataclass_fields__, amounts, strict=True), amounts))


#: stop reasons of failures that do not count against the arm: the fault is the caller's, the reply exceeds a
#: cap of what is read, the row is damaged, or the operator's rules do not let the arm run
NOT_COUNTED: Final = frozenset({CANCELLED, "question_too_long", "request_refused", "unreadable", NOT_PERMITTED})
#: stop reasons that erasure keeps, since code reads them. Callers and arms may send other reasons, with any text.
KNOWN_REASONS: Final = frozenset(
    {
        *("", "answered", "tool_calls", "unknown_arm", "budget_seconds", *NOT_COUNTED),
        *(CUT, NO_TEXT, IMPORTED, ABANDONED, DIED),
    }
)


def erased_reason(column: ColumnElement[str]) -> ColumnElement[str]:
    """The stop reason of an outcome whose texts are erased. column: its stop reason."""
    return case((column.in_(sorted(KNOWN_REASONS)), column), else_=ERASED)


def storable(text: str | None) -> str | None:
    """Replace NUL and lone surrogates, which models may write and databases refuse."""
    if text is None or (text.isascii() and "\x00" not in text):
        return text
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


_UNCHANGED_NAMES: Final = ("status", "answer", "steps", "stop_reason", "error", "run_by")
_UNCHANGED: Final = attrgetter(*_UNCHANGED_NAMES)


def outcome_body(outcome: Outcome) -> dict[str, Any]:
    """The fields that decide whether an outcome repeats the stored one."""
    body: dict[str, Any] = dict(zip(_UNCHANGED_NAMES, _UNCHANGED(outcome), strict=True))
    return body | {"trace": trace_json(outcome.trace), "cost": _nonzero(outcome.cost), "made_by": dict(outcome.made_by)}


def outcome_hashes(row: Row) -> set[str]:
    """Possible hashes of the stored outcome. There are several, since whole numbers of steps may have been integers.

    row: with all texts, and a cost without later turns. If a text was changed to be storable, the hash cannot be
    computed, and the stored hash is returned.
    """
    trace = decompress_trace(row["trace"], answer=row["answer"] or "")
    texts = [row["answer"] or "", row["error"] or "", row["stop_reason"], row["made_by"], trace]
    if len(row["stop_reason"]) == 64 or any("\ufffd" in text for text in texts):
        return {row["body_hash"]}
    body = {name: row[name] for name in ("status", "answer", "stop_reason", "error", "run_by")}
    cost = {name: amount for name, amount in json_object(row["cost"]).items() if name != LATE}
    body |= {"trace": json.loads(trace), "cost": cost, "made_by": json_object(row["made_by"])}
    steps = {row["steps"], int(row["steps"])} if row["steps"].is_integer() else {row["steps"]}
    return {body_hash(body | {"steps": count}, errors="replace") for count in (*steps, *map(int, steps))}


def _sources_json(sources: tuple[Source, ...]) -> str | None:
    if not sources:
        return None
    values = [asdict(source) for source in sources]
    for value in values:
        value.update({name: storable(text) for name, text in value.items() if isinstance(text, str)})
    return canonical(values)


def _reply_json(reply: Mapping[str, Json]) -> str | None:
    """The reply without its media if they have more than MAX_STORED_MEDIA characters; "omitted" names them."""
    message = reply.get("message")
    media = {name: message[name] for name in LARGE_FIELDS if name in message} if isinstance(message, dict) else {}
    if isinstance(message, dict) and media and len(canonical(media)) > MAX_STORED_MEDIA:
        kept = {name: value for name, value in message.items() if name not in media}
        reply = {**reply, "message": kept, "omitted": list[Json](media)}
    return storable(canonical(dict(reply))) if reply else None


_OUTCOME: Final = TableRows(
    outcomes,
    Outcome,
    excluded=("trace",),
    answer=Form(write=storable),
    error=Form(write=storable),
    stop_reason=Form(write=lambda text: (storable(text) or "")[:64]),
    cost=Form(write=cost_json, read=cost_value),
    made_by=JSON_OBJECT,
    sources=Form(
        write=_sources_json, read=lambda text: tuple(from_json(Source, item) for item in json.loads(text or "[]"))
    ),
    reply=Form(write=_reply_json, read=json_object),
)


#: columns of `outcomes`, with NULL for the long columns that rewards do not need
REPORTED: Final = [null().label(c.name) if c.name in ("trace", "sources", "reply") else c for c in outcomes.c]


def outcome_row(outcome: Outcome) -> dict[str, Any]:
    """A row of `outcomes`. Its hash leaves out the sources, since the corpus may change before a repetition."""
    row, body = _OUTCOME.row(outcome), outcome_body(outcome)
    trace = compress_trace(storable(canonical(body["trace"])) or "", answer=row["answer"] or "")
    return row | {"body_hash": body_hash(body, errors="replace"), "trace": trace}


def outcome_value(row: Row) -> Outcome:
    """The outcome of a row; its trace may be NULL."""
    events = [] if row["trace"] is None else json.loads(decompress_trace(row["trace"], answer=row["answer"] or ""))
    return _OUTCOME.value(row, trace=trace_value(events))

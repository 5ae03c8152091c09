"""Outcomes to rows and back; their traces are compressed."""

import json
import zlib
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any, Final, cast

from ragbandit.router.storage.rows.conversion import Form, Row, TableRows, body_hash, canonical
from ragbandit.router.storage.sql.tables import outcomes
from ragbandit.shared.types import Branch, CallFailed, Cost, Generated, Outcome, Retrieved, Round, Source, TraceEvent

#: what is likeliest comes last: it is the nearest
_DICTIONARY: Final = (
    b'{"error":"","purpose":"remote","seconds":0.,"type":"call_failed"},{"rule":"unknown_event","type":"branch","value":'
    b'"true"},{"rule":"","type":"branch","value":"false"},"dollars":null,"purpose":"rewrite","note","judge","reason","'
    b'{"ids":["","","","",""],"query":"Who was the first","scores":[1.,2.,3.,4.,5.,6.,7.,8.,9.,1],"seconds":0.00,'
    b'"type":"retrieved"},[{"number":1,"type":"round"},{"ids":["","query":"","scores":[],"seconds":0.00,"type":"retrieved"},'
    b'{"number":2,"type":"round"},{"number":3,"type":"round"},{"ids":["","type":"retrieved"},'
    b'[{"completion_tokens":1,"prompt_tokens":1,"purpose":"answer","seconds":0.,"text":"","type":"generated"}]'
)
_MARK: Final = b"\x01"
#: a damaged row must not fill the memory: a trace is never that long
_MOST: Final = 64 * 1024 * 1024


def packed(text: str, *, answer: str) -> bytes:
    """The JSON of a trace, compressed. answer: of the same row, with which a trace ends nearly always."""
    writer = zlib.compressobj(level=6, wbits=-15, zdict=_DICTIONARY + answer.encode())
    return _MARK + writer.compress(text.encode()) + writer.flush()


def unpacked(data: bytes, *, answer: str) -> str:
    """The inverse of `packed`. Raises ValueError for anything else."""
    if data[:1] != _MARK:
        raise ValueError("packed by a newer version, or damaged")
    reader = zlib.decompressobj(wbits=-15, zdict=_DICTIONARY + answer.encode())
    try:
        text = reader.decompress(data[1:], _MOST)
    except zlib.error as error:
        raise ValueError(f"cannot be unpacked: {error}") from error
    if not reader.eof:
        raise ValueError("cannot be unpacked: it is cut off")
    return text.decode()


_EVENTS: dict[str, type[Round | Retrieved | Generated | Branch | CallFailed]] = {
    "round": Round,
    "retrieved": Retrieved,
    "generated": Generated,
    "branch": Branch,
    "call_failed": CallFailed,
}


def trace_json(trace: tuple[TraceEvent, ...]) -> list[dict[str, Any]]:
    """The events as JSON objects with a `type`."""
    names = {kind: name for name, kind in _EVENTS.items()}
    return [{"type": names[type(event)], **asdict(event)} for event in trace]


def trace_value(events: list[dict[str, Any]]) -> tuple[TraceEvent, ...]:
    """The inverse of `trace_json`; an event that a newer version wrote is kept as a branch that says so."""
    trace: list[TraceEvent] = []
    for event in events:
        kind = _EVENTS.get(event["type"])
        if kind is None:
            trace.append(Branch(rule="unknown_event", value=canonical(event)))
            continue
        known = {field.name for field in fields(kind)}
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in event.items() if k in known}
        trace.append(cast("Callable[..., TraceEvent]", kind)(**values))
    return tuple(trace)


#: key of a cost's JSON with the part of it that later turns added
LATER: Final = "later"
_COST_FIELDS: Final = frozenset(field.name for field in fields(Cost))
_SOURCE_FIELDS: Final = frozenset(field.name for field in fields(Source))


def cost_value(text: str) -> Cost:
    """The cost of its JSON; of a row of a newer version the fields that this one has."""
    return Cost(**{name: value for name, value in json.loads(text).items() if name in _COST_FIELDS})


def own_cost(text: str) -> Cost:
    """The same without what later turns of a loop of tools added: they have outcomes of their own."""
    whole, later = cost_value(text), json.loads(text).get(LATER, {})
    return Cost(**{name: getattr(whole, name) - later.get(name, 0) for name in _COST_FIELDS})


def _given(cost: Cost) -> dict[str, Any]:
    """The fields that were given, without those left out: hashes must not change when the type grows."""
    return {k: v for k, v in asdict(cost).items() if v}


def storable(text: str | None) -> str | None:
    """Text that every database takes: no NUL, no lone surrogate. Models and arms may write both."""
    return None if text is None else text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def outcome_body(outcome: Outcome) -> dict[str, Any]:
    """Body of an outcome: two outcomes of one decision are the same if their bodies are equal."""
    return {
        "status": outcome.status,
        "answer": outcome.answer,
        "trace": trace_json(outcome.trace),
        "cost": _given(outcome.cost),
        "steps": outcome.steps,
        "stop_reason": outcome.stop_reason,
        "error": outcome.error,
        "run_by": outcome.run_by,
        "made_by": dict(outcome.made_by),
    }


def _sources_json(sources: tuple[Source, ...]) -> str | None:
    values = [{k: storable(v) if isinstance(v, str) else v for k, v in asdict(source).items()} for source in sources]
    return canonical(values) if values else None


def _sources_value(text: str | None) -> tuple[Source, ...]:
    """The sources of their JSON; of a row of a newer version the fields that this one has."""
    known = [] if text is None else json.loads(text)
    return tuple(Source(**{name: source[name] for name in _SOURCE_FIELDS & source.keys()}) for source in known)


_OUTCOME: Final = TableRows(
    outcomes,
    Outcome,
    without=("trace",),
    answer=Form(write=storable),
    error=Form(write=storable),
    stop_reason=Form(write=lambda text: (storable(text) or "")[:64]),
    cost=Form(write=lambda cost: canonical(_given(cost)), read=cost_value),
    made_by=Form(write=lambda made_by: canonical(dict(made_by)), read=json.loads),
    sources=Form(write=_sources_json, read=_sources_value),
    reply=Form(
        write=lambda reply: storable(canonical(dict(reply))) if reply else None,
        read=lambda text: {} if text is None else json.loads(text),
    ),
)


def outcome_row(outcome: Outcome) -> dict[str, Any]:
    """A row of `outcomes`. The sources are no part of the body: a corpus may change between two tries."""
    row, body = _OUTCOME.row(outcome), outcome_body(outcome)
    trace = packed(storable(canonical(body["trace"])) or "", answer=row["answer"] or "")
    return row | {"body_hash": body_hash(body), "trace": trace}


def outcome_value(row: Row) -> Outcome:
    """The outcome of a row; without a trace where none was kept."""
    events = [] if row["trace"] is None else json.loads(unpacked(row["trace"], answer=row["answer"] or ""))
    return _OUTCOME.value(row, trace=trace_value(events))

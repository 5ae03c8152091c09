"""Outcomes to rows and back: their traces packed, their costs under short names."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, Final, cast

from ragbandit.router.storage.rows.conversion import Row, canonical, short_body_hash
from ragbandit.router.storage.rows.packing import packed, unpacked
from ragbandit.router.types import (
    Branch,
    CallFailed,
    Cost,
    DecisionId,
    Generated,
    Outcome,
    Retrieved,
    Round,
    Source,
    TraceEvent,
)

__all__ = ["cost_value", "outcome_body", "outcome_row", "outcome_value", "storable", "trace_json", "trace_value"]

_EVENTS: dict[str, type[Round | Retrieved | Generated | Branch | CallFailed]] = {
    "round": Round,
    "retrieved": Retrieved,
    "generated": Generated,
    "branch": Branch,
    "call_failed": CallFailed,
}


def trace_json(trace: tuple[TraceEvent, ...]) -> list[dict[str, Any]]:
    """The events as JSON objects with a `type`."""
    names = {made: name for name, made in _EVENTS.items()}
    return [{"type": names[type(event)], **asdict(event)} for event in trace]


def trace_value(events: list[dict[str, Any]]) -> tuple[TraceEvent, ...]:
    """The inverse of `trace_json`; an event that a newer version wrote is kept as a branch that says so."""
    trace: list[TraceEvent] = []
    for event in events:
        made = _EVENTS.get(event["type"])
        if made is None:
            trace.append(Branch(rule="unknown_event", value=canonical(event)))
            continue
        known = {field.name for field in fields(made)}
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in event.items() if k in known}
        trace.append(cast("Callable[..., TraceEvent]", made)(**values))
    return tuple(trace)


#: fields of a cost -> their names in a row. None is ever changed: rows have it. Rows of before have the fields' names.
_COST_NAMES: Final[Mapping[str, str]] = {
    "retriever_calls": "r",
    "passages": "n",
    "llm_calls": "l",
    "prompt_tokens": "p",
    "completion_tokens": "c",
    "seconds_retrieve": "sr",
    "seconds_generate": "sg",
    "seconds_total": "st",
    "dollars": "d",
}

_COST_FIELDS: Final[Mapping[str, str]] = {name: field for field, name in _COST_NAMES.items()}


def _cost_json(given: Mapping[str, Any]) -> str:
    return canonical({_COST_NAMES.get(field, field): value for field, value in given.items()})


def cost_value(text: str) -> Cost:
    """The cost of its JSON; of a row of a newer version the fields that this one has."""
    found = {_COST_FIELDS.get(name, name): value for name, value in json.loads(text).items()}
    return Cost(**{name: value for name, value in found.items() if name in _COST_NAMES})


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


def outcome_row(outcome: Outcome) -> dict[str, Any]:
    """A row of `outcomes`."""
    body, answer = outcome_body(outcome), storable(outcome.answer)
    return body | {
        "decision_id": outcome.decision_id,
        "body_hash": short_body_hash(body),
        "answer": answer,
        "error": storable(outcome.error),
        "stop_reason": (storable(outcome.stop_reason) or "")[:64],
        "trace": "",
        "packed_trace": packed(storable(canonical(body["trace"])) or "", beside=answer or ""),
        "cost": _cost_json(body["cost"]),
        "made_by": canonical(body["made_by"]),
        "made_at": outcome.made_at,
        "sources": _packed_sources(outcome.sources),
    }


def _packed_sources(sources: tuple[Source, ...]) -> bytes | None:
    """No part of the body: where a corpus has changed, a repetition of the outcome is one all the same."""
    if not sources:
        return None
    kept = [{k: storable(v) if isinstance(v, str) else v for k, v in asdict(source).items()} for source in sources]
    return packed(canonical(kept), beside="")


def _sources(data: bytes | None) -> tuple[Source, ...]:
    if data is None:
        return ()
    names = {field.name for field in fields(Source)}  # a newer version may know more
    return tuple(
        Source(**{name: value for name, value in found.items() if name in names})
        for found in json.loads(unpacked(data, beside=""))
    )


def outcome_value(row: Row) -> Outcome:
    """The outcome of a row."""
    packed_trace = row["packed_trace"]  # None in a row of before
    trace = row["trace"] if packed_trace is None else unpacked(packed_trace, beside=row["answer"] or "")
    return Outcome(
        decision_id=DecisionId(row["decision_id"]),
        status=row["status"],
        answer=row["answer"],
        trace=trace_value(json.loads(trace)),
        cost=cost_value(row["cost"]),
        steps=row["steps"],
        stop_reason=row["stop_reason"],
        error=row["error"],
        run_by=row["run_by"],
        made_by=json.loads(row["made_by"]),
        made_at=row["made_at"],
        sources=_sources(row.get("sources")),  # segments of before have no such column
    )

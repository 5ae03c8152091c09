"""Spans and log records of OpenTelemetry as records with plain values: attributes, numbered attributes and messages."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ragbandit.additions.other_tools.forms import FORMS
from ragbandit.additions.other_tools.turns import answer_of
from ragbandit.router.offline.logs import cells
from ragbandit.router.offline.logs.records import plain_name
from ragbandit.shared.reading.fields import flat_text, objects_in

Record = Mapping[str, Any]
#: name of a numbered attribute, such as gen_ai.prompt.0.content: name of the list, number, rest
_NUMBERED: Final = re.compile(r"(.+?)[.\[](\d{1,9})\]?(?:\.(.+))?", re.DOTALL)
_DEEPEST: Final = 50


def with_messages(span: Record) -> Record:
    """The span with its attributes as an object, and with the messages of its events."""
    attributes, messages = attributes_of(span["attributes"]), list[Record]()
    for event in objects_in(cells.from_text(span.get("events")) or []):
        body = attributes_of(event.get("attributes"))
        kind = re.fullmatch(FORMS["event"], flat_text(event.get("name") or body.get("event.name")))
        if kind is None:
            for name, value in body.items():
                attributes.setdefault(name, value)
        else:
            messages.append(_message_of(kind[1], body))
    for event in objects_in(cells.from_text(attributes.get("events") or attributes.get("all_messages_events")) or []):
        kind = re.fullmatch(FORMS["event"], flat_text(event.get("event.name")))
        messages += [_message_of(kind[1], event)] if kind else []
    said = {"messages_of_events": messages} if messages else {}
    return {**span, "attributes": collect_numbered(attributes), **said}


def _message_of(kind: str, body: Record) -> Record:
    return {"role": kind.replace("choice", "assistant"), "content": answer_of({**body, "role": None})}


def attributes_of(value: Any) -> dict[str, Any]:
    """Attributes as an object. OTLP has a list of {"key": ..., "value": {"stringValue": ...}}."""
    value = cells.from_text(_plain_value(cells.from_text(value)))
    if isinstance(value, list):
        value = {
            flat_text(pair.get("key")): _plain_value(pair.get("value")) for pair in objects_in(value) if "key" in pair
        }
    return value if isinstance(value, dict) else {}


def _plain_value(value: Any, *, depth: int = 0) -> Any:
    """A value of OTLP as a plain value: kvlistValue becomes an object, arrayValue a list, also inside each other."""
    if not isinstance(value, dict) or len(value) != 1 or depth > _DEEPEST:
        return value
    kind, held = next(iter(value.items()))
    kind = plain_name(str(kind))
    if kind in ("kvlistvalue", "arrayvalue"):
        parts = objects_in(held.get("values") or []) if isinstance(held, dict) else []
        if kind == "arrayvalue":
            return [_plain_value(part, depth=depth + 1) for part in parts]
        return {flat_text(part.get("key")): _plain_value(part.get("value"), depth=depth + 1) for part in parts}
    return held if kind in ("stringvalue", "intvalue", "doublevalue", "boolvalue", "bytesvalue") else value


def collect_numbered(record: Record, *, depth: int = 0) -> dict[str, Any]:
    """The record with fields such as gen_ai.prompt.0.role and gen_ai.prompt.0.content as a list gen_ai.prompt."""
    lists: dict[str, dict[int, dict[str, Any]]] = {}
    others = {}
    for name, value in record.items():
        match = _NUMBERED.fullmatch(name) if isinstance(name, str) and value is not None and depth < 5 else None
        if match is None:
            others[name] = value
        else:
            lists.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3] or ""] = value
    made = {
        name: [held[""] if "" in held else collect_numbered(held, depth=depth + 1) for _, held in sorted(parts.items())]
        for name, parts in lists.items()
    }
    return {**made, **{name: value for name, value in others.items() if name not in made or value}}


def spans_of_records(log_records: Iterable[Record]) -> Iterator[Record]:
    """Yield spans made of log records of OTLP. The records of one span become its events."""
    spans: dict[tuple[str, str], dict[str, Any]] = {}
    for number, record in enumerate(log_records):
        held = attributes_of(record.get("attributes"))
        body = attributes_of(record.get("body"))
        trace, span = (flat_text(record.get(f"{name}Id") or record.get(f"{name}_id")) for name in ("trace", "span"))
        time = record.get("timeUnixNano") or record.get("time_unix_nano") or record.get("observedTimeUnixNano")
        made = {"traceId": trace or f"record-{number}", "spanId": span, "startTimeUnixNano": time}
        made = spans.setdefault((trace, span) if trace else ("", str(number)), {**made, "attributes": {}, "events": []})
        name = flat_text(record.get("eventName") or record.get("event_name") or held.get("event.name"))
        made["events"].append({"name": name, "attributes": {**held, **body}})
        made["attributes"] |= {"event.name": name} | held
    yield from spans.values()

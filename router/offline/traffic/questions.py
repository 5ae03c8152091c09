"""Questions in a log of another tool, with the answers, costs and scores that it has of them.

A question is the last message of the user in a record; in a trace, of its root or else its earliest record. Tools,
searches and later steps ask nothing, but their costs count. The file is read twice, so that memory holds no texts.
forms.toml has the forms of logs and the names of fields.
"""

import contextlib
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from ragbandit.router.offline.logs import cells
from ragbandit.router.offline.logs.records import plain_name, records
from ragbandit.router.offline.traffic.messages import answer_of, question_of, unpacked
from ragbandit.router.serving.checks.questions import checked_text
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.model_servers.message_parts import clean, listed, words_of
from ragbandit.shared.texts.formats import iso_time
from ragbandit.shared.texts.plain_values import is_missing, plain_tree

Record = Mapping[str, Any]
_FORMS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("forms.toml").read_text("utf-8"))
_KEYS: Final = _FORMS["keys"].split()
#: our field -> plain names of it, the last one counts
_PATHS: Final = {name: [*map(plain_name, names.split())][::-1] for name, names in _FORMS["fields"].items()}
#: maximum number of traces in a file; number of records among which one must have a known form
_MOST: Final = 500_000
_SEARCHED: Final = 2000
#: kinds of records that ask nothing, and that call a model
_INNER: Final = re.compile(r"(execute_)?tool|retriev.*|.*embedding.*|rerank.*|parser|prompt|guardrail|evaluator|event")
_CALL: Final = re.compile(r"|llm|a?chat.*|a?(text_)?completion|generat.*|a?responses")
NUMBERS: Final = ("dollars", "prompt_tokens", "completion_tokens")
PERSONAL: Final = ("user", "metadata")
#: fields of a row, in their order
_WRITTEN: Final = (
    "id question answers answer model dollars prompt_tokens completion_tokens session turn time scores tags"
)
#: lists of records in an envelope, and in a record
_ENVELOPES: Final = ("resourceSpans", "scopeSpans", "instrumentationLibrarySpans", "spans", "runs", "data")
_PARTS: Final = ("observations", "child_runs")
_EVENT: Final = re.compile(r"gen_ai\.(user|assistant|system|tool|choice)(\.message)?")
_plain = cache(plain_name)


@dataclass(kw_only=True, slots=True)
class _Trace:
    line: int
    reason: str
    #: (whether it has a parent, time, number, place in its record) of the record with the question
    first: tuple[bool, float, int, int] = (True, math.inf, 0, -1)
    #: sums over records without a parent, and over calls of models
    of_root: Counter[str] = field(default_factory=Counter)
    of_calls: Counter[str] = field(default_factory=Counter)
    models: dict[str, None] = field(default_factory=dict)

    def add(self, row: Record, *, number: int, place: int) -> None:
        is_part = "parent" in row
        if not is_part or _CALL.fullmatch(row["kind"]):
            (self.of_calls if is_part else self.of_root).update({name: row[name] for name in NUMBERS if name in row})
        self.models |= dict.fromkeys([row["model"]] if "model" in row else [])
        candidate = is_part, row.get("time", math.inf), number, place
        if "question" in row and (self.first[3] < 0 or candidate < self.first):
            self.first = candidate


@dataclass(kw_only=True)
class QuestionLog:
    """The questions of a file. personal: whether rows have the fields about people. Raises InvalidInput."""

    path: Path
    personal: bool = False
    form: Record = field(init=False)
    #: reason -> (number of records or traces that are left out for it, number of the first one)
    left_out: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names: Record = {}
        for number, parse in records(self.path, keys=_KEYS):
            with contextlib.suppress(InvalidInput, RecursionError):
                for names in map(_named, _expanded(parse())):
                    for form in _FORMS["forms"]:
                        if all(any(re.fullmatch(mark, name) for name in names) for mark in form["marks"]):
                            self.form = form
                            return
            if number > _SEARCHED:
                break
        message = f"this log has no known form: a record has {', '.join(names)[:300] or 'no fields'}"
        raise InvalidInput(message, field=str(self.path), remedy="name the columns question and answer (docs/logs.md)")

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row of each question, in the form that `advise` reads."""
        traces: dict[str, _Trace] = {}
        for number, place, key, row in self._parsed():
            trace = traces.setdefault(key, _Trace(line=number, reason=row["reason"]))
            trace.add(row, number=number, place=place)
            if len(traces) > _MOST:
                remedy = "split the file, and read each part"
                raise InvalidInput(f"it has more than {_MOST:,} questions", field=str(self.path), remedy=remedy)
        self.left_out.clear()  # unreadable records are counted again below
        for number, place, key, row in self._parsed():
            chosen = traces.get(key)  # None if the file has grown meanwhile
            if chosen and chosen.first[2:] == (number, place):
                row |= {**(chosen.of_root or chosen.of_calls), "id": key, "model": " + ".join(chosen.models)}
                facts = {name: row.get(name) for name in (*_WRITTEN.split(), *(PERSONAL if self.personal else ()))}
                facts["time"] = iso_time(row.get("time"))
                written, _ = clean(plain_tree(facts))
                yield {name: value for name, value in written.items() if value not in (None, "", [], {})}
        for trace in traces.values():
            if trace.first[3] < 0:
                self._leave_out(trace.reason, trace.line)

    def _parsed(self) -> Iterator[tuple[int, int, str, dict[str, Any]]]:
        for number, parse in records(self.path, keys=_KEYS):
            try:
                rows = [_row(_named(record), form=self.form) for record in _expanded(parse())]
            except (InvalidInput, RecursionError) as error:
                self._leave_out(getattr(error, "message", "nested too deeply").partition(":")[0], number)
                continue
            for place, row in enumerate(rows):
                key = words_of(row.get("trace") or row.get("id")).strip()[:200]
                yield number, place, key or f"{number}-{place}", row

    def _leave_out(self, reason: str, number: int) -> None:
        reason = reason if reason in self.left_out or len(self.left_out) < 20 else "other reasons"
        count, first = self.left_out.get(reason, (0, number))
        self.left_out[reason] = count + 1, min(first, number)


def _expanded(entry: Record) -> Iterator[Record]:
    """The records in a record: spans, observations and runs, questions of a chat, and itself."""
    chat = entry["chat"] if isinstance(entry.get("chat"), dict) else entry
    messages = chat["history"].get("messages") if isinstance(chat.get("history"), dict) else None
    if isinstance(messages, dict):
        yield from _questions_of_chat(entry, messages=messages, last=chat["history"].get("currentId"))
        return
    if not any(isinstance(entry.get(name), list) for name in _ENVELOPES):
        yield _with_messages(entry) if entry.get("attributes") else entry
    trace = entry.get("traceId") or entry.get("trace_id") or entry.get("id")
    for name in (*_ENVELOPES, *_PARTS):
        inherited = {"traceId": trace, **({"parentObservationId": trace} if name == "observations" else {})}
        for part in listed(entry.get(name) or []):
            yield from _expanded(inherited | {key: value for key, value in part.items() if value is not None})


def _questions_of_chat(entry: Record, *, messages: Record, last: object) -> Iterator[Record]:
    """The messages of the user in the tree of a chat of Open WebUI, each with the answer that is shown."""

    def path_to(key: Any) -> dict[str, Record]:
        path: dict[str, Record] = {}
        while isinstance(key, str) and isinstance(messages.get(key), dict) and key not in path:
            path[key] = messages[key]
            key = messages[key].get("parentId")
        return path

    shown = path_to(last)
    answers = {
        words_of(message.get("parentId")): message for message in (*listed([*messages.values()]), *shown.values())
    }
    for key in messages:
        path = path_to(key)
        if path and path[key].get("role") == "user":
            turn = sum(message.get("role") == "user" for message in path.values())
            asked = {"id": key, "asked": path[key].get("content"), "turn_of_chat": turn, "session": entry.get("id")}
            answer = {
                f"{name}": answers.get(key, {}).get(name) for name in ("model", "usage", "annotation", "timestamp")
            }
            yield {**answer, **asked, "answered": answers.get(key, {}).get("content"), "user": entry.get("user_id")}


def _with_messages(span: Record) -> Record:
    """The span with its attributes as an object, and with the messages of its events."""
    attributes, turns = _attributes(span["attributes"]), dict[str, list[Any]](asked=[], answered=[])
    for event in listed(unpacked(span.get("events")) or []):
        body, kind = _attributes(event.get("attributes")), _EVENT.fullmatch(words_of(event.get("name")))
        if kind is None:
            attributes = {key: value for key, value in body.items() if key.startswith("gen_ai.")} | attributes
        elif kind[1] == "choice":
            turns["answered"].append(answer_of(body))
        else:
            turns["asked"].append({"role": kind[1], "content": body.get("content")})
    return {**span, "attributes": attributes, **turns}


def _attributes(value: Any) -> dict[str, Any]:
    """Attributes as an object. OTLP has a list of {"key": ..., "value": {"stringValue": ...}}."""
    value = unpacked(value)
    if isinstance(value, dict):
        return value
    return {words_of(pair.get("key")): _any_value(pair.get("value")) for pair in listed(value or [])}


def _any_value(value: Any) -> Any:
    kind, held = next(iter(value.items()), ("", None)) if isinstance(value, dict) else ("", value)
    values = held.get("values") if isinstance(held, dict) else None
    if kind == "kvlistValue":
        return _attributes(values)
    return [_any_value(each) for each in listed(values or [])] if kind == "arrayValue" else held


def _named(record: Record, *, before: str = "", levels: int = 5) -> dict[str, Any]:
    """Plain name of its path -> value, for each member of an object, also of one that is JSON in a text."""
    names: dict[str, Any] = {}
    for key, value in record.items():
        part = unpacked(value) if isinstance(value, str) and value[:1] == "{" else value
        name = before + _plain(str(key))
        if not is_missing(part) and (part or not isinstance(part, str | list | dict)):
            names.setdefault(name, part)
        if isinstance(part, dict) and levels:
            names = _named(part, before=name, levels=levels - 1) | names
    return names


def _row(names: Record, *, form: Record) -> dict[str, Any]:
    """Our fields of a record, with the kind of the record and the reason why it may be no question."""
    used = {name: value for name, value in names.items() if name != form.get("unused")}
    row = {name: used[path] for name, paths in _PATHS.items() for path in paths if path in used}
    for name in (*NUMBERS, "turn", "time"):
        value = row.pop(name, None)
        with contextlib.suppress(ValueError):
            row[name] = _seconds(value) if name == "time" else max(0.0, cells.number(value, most=1e12))
    row |= {name: words_of(row[name])[:200] for name in ("model", "session") if name in row}
    row |= {"kind": words_of(row.get("kind")).lower(), "reason": form.get("missing", "no message of a user")}
    row |= {"answer": answer_of(row.get("answer")), "scores": _scores(unpacked(row.get("scores")))}
    row |= {"answers": _gold(row.get("answers"))}
    asked = question_of(row.pop("question", None))
    if _INNER.fullmatch(row["kind"]) or (asked and not asked[1]):
        row["reason"] = "a step of an answer"
    elif asked:
        try:
            row |= {"question": checked_text(asked[0], field="question"), "turn": int(row.get("turn", asked[1]))}
        except InvalidInput as error:
            row["reason"] = error.message
    return row


def _seconds(value: Any) -> float:
    """A time as seconds since 1970: ISO 8601, or a number of seconds, or of thousandths to billionths of a second."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        value = float(value)
    while isinstance(value, float) and 1e11 < value < 1e21:
        value /= 1000.0
    return cells.seconds(value)


def _gold(value: Any) -> list[str]:
    """Right answers as texts, also from objects such as the reference outputs of LangSmith."""
    value = unpacked(value)
    texts = (
        str(item) if type(item) in (int, float) else item for item in (value if isinstance(value, list) else [value])
    )
    return [*filter(None, map(answer_of, texts))]


def _scores(value: Any) -> dict[str, float]:
    if isinstance(value, list):
        value = {words_of(part.get("name") or part.get("key")): part for part in listed(value)}
    scores: dict[str, float] = {}
    for name, part in (value if isinstance(value, dict) else {"score": value}).items():
        while isinstance(part, dict):
            part = next((part[key] for key in ("value", "score", "avg", "result") if part.get(key) is not None), None)
        with contextlib.suppress(ValueError):
            scores[name[:100] or "score"] = cells.number(part)
    return scores

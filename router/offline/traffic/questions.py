"""Questions in a log of another tool, with the answers, costs and scores that it has of them.

A question is the last message of the user in a record; in a trace, of its root or else its earliest record. Tools,
searches and later steps ask nothing, but their costs count. The file is read twice, so that memory holds no texts.
"""

import contextlib
import math
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

from ragbandit.router.offline.logs import cells
from ragbandit.router.offline.logs.records import plain_name, records
from ragbandit.router.serving.checks.questions import checked_text
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.model_servers.message_parts import clean, listed, words_of
from ragbandit.shared.texts.formats import iso_time
from ragbandit.shared.texts.plain_values import is_missing, plain_tree

Record = Mapping[str, Any]
#: names and patterns of other tools
FORMS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("forms.toml").read_text("utf-8"))
#: our field -> plain names of it, the last one counts
_PATHS: Final = {name: [*map(plain_name, names.split())][::-1] for name, names in FORMS["fields"].items()}
NUMBERS: Final = ("dollars", "prompt_tokens", "completion_tokens")
_MOST: Final = 500_000  #: fields about people, and fields that rows never have
PERSONAL: Final = frozenset({"user", "metadata"})
_UNWRITTEN: Final = frozenset({"trace", "parent", "kind"})
#: maximum number of traces in a file


@dataclass(kw_only=True)
class QuestionLog:
    """The questions of a file. personal: whether rows have the fields about people. `rows` sets the other fields."""

    path: Path
    personal: bool = False
    form: Record = field(default_factory=dict)
    #: reason -> numbers of the records, or of the first records of traces, that are left out for it
    left_out: dict[str, list[int]] = field(default_factory=dict)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row of each question, in the form that `advise` reads. Raises InvalidInput."""
        #: trace -> (whether it has a parent, time, number, place) of the record with the question; place -1 without one
        firsts: dict[str, tuple[bool, float, int, int]] = {}
        sums: dict[tuple[str, bool], Counter[str]] = defaultdict(Counter)
        models: dict[str, dict[str, None]] = defaultdict(dict)
        for key, row, number, place in self._parsed():
            first = firsts.setdefault(key, (True, math.inf, number, -1))
            candidate = "parent" in row, row.get("time", math.inf), number, place
            sums[key, candidate[0]].update({name: row[name] for name in NUMBERS if name in row})
            models[key] |= dict.fromkeys([row["model"]] if "model" in row else [])
            if row["question"] and (first[3] < 0 or candidate < first):
                firsts[key] = candidate
            if len(firsts) > _MOST:
                raise InvalidInput(f"it has over {_MOST:,} questions", field=str(self.path), remedy="split the file")
        if not self.form:
            remedy = "name the columns question and answer, or see docs/logs.md"
            raise InvalidInput("this log has no known form", field=str(self.path), remedy=remedy)
        if without := [first[2] for first in firsts.values() if first[3] < 0]:
            self.left_out[self.form.get("missing", "no message of a user")] = without
        hidden = _UNWRITTEN if self.personal else _UNWRITTEN | PERSONAL
        written = [name for name in _PATHS if name not in hidden]
        for key, row, *at in self._parsed(only={first[2] for first in firsts.values() if first[3] >= 0}):
            if [*firsts.get(key, ())[2:]] == at:
                row |= {**(sums[key, False] or sums[key, True]), "id": key, "model": " + ".join(models[key])}
                row["time"] = iso_time(row.get("time"))
                yield {name: row[name] for name in written if row.get(name) not in (None, "", [], {})}

    def _parsed(self, *, only: Collection[int] | None = None) -> Iterator[tuple[str, dict[str, Any], int, int]]:
        """Yield (key of the trace, our fields, number, place) of each record of the known form. only: their numbers."""
        for number, parse in records(self.path, keys=FORMS["keys"].split()):
            if only is not None and number not in only:
                continue
            try:
                parts = [*map(_named, _expanded(parse()))]
                for form, names in product(FORMS["forms"] if not self.form else (), parts):
                    is_this = all(any(re.fullmatch(mark, name) for name in names) for mark in form["marks"])
                    self.form = self.form or (form if is_this else {})
                rows = [*map(self._row, parts if self.form else ())]
            except (InvalidInput, RecursionError) as error:
                reason = getattr(error, "message", "nested too deeply").partition(":")[0]
                self.left_out.setdefault(reason, []).append(number)
                continue
            for place, row in enumerate(rows):
                key = words_of(row.get("trace") or row.get("id")).strip()[:200]
                yield key or f"{number}-{place}", row, number, place

    def _row(self, names: Record) -> dict[str, Any]:
        """Our fields of a record. The question is empty if it asks nothing."""
        used = {name: value for name, value in names.items() if value is not None and name != self.form.get("unused")}
        row = {name: used[path] for name, paths in _PATHS.items() for path in paths if path in used}
        for name in (*NUMBERS, "turn", "time"):
            value = row.pop(name, None)
            with contextlib.suppress(ValueError):
                row[name] = _seconds(value) if name == "time" else max(0.0, cells.number(value, most=1e12))
        row |= {name: words_of(row[name])[:200] for name in ("model", "session") if name in row}
        gold = cells.from_text(row.get("answers"))
        texts = (str(one) if type(one) in (int, float) else one for one in (gold if isinstance(gold, list) else [gold]))
        row |= {"answers": [*filter(None, map(_answer_of, texts))], "answer": _answer_of(row.get("answer"))}
        row["scores"] = _scores(cells.from_text(row.get("scores")))
        asked, turn = _question_of(row.pop("question", None))
        is_inner = re.fullmatch(FORMS["inner"], words_of(row.get("kind")).lower())
        row |= {"question": "", "turn": int(row.get("turn", turn))}
        if is_inner:
            row.pop("model", None)  # for example an embedding model
        with contextlib.suppress(InvalidInput):
            row["question"] = checked_text(asked, field="question") if turn and not is_inner else ""
        return dict(clean(plain_tree(row))[0])


def _expanded(entry: Record) -> Iterator[Record]:
    """The records in a record: spans, observations and runs, questions of a chat of Open WebUI, and itself."""
    chat = entry["chat"] if isinstance(entry.get("chat"), dict) else entry
    history = chat["history"] if isinstance(chat.get("history"), dict) else {}
    if isinstance(history.get("messages"), dict):
        messages, shown = dict(history["messages"]), list[Record]()
        key: Any = next((key for key in (history.get("currentId"), *reversed(messages)) if isinstance(key, str)), None)
        while isinstance(key, str) and isinstance(messages.get(key), dict):
            shown.append({"id": key, **messages.pop(key)})  # taken out, since a damaged tree may have a circle
            key = shown[-1].get("parentId")
        asked = [at for at, message in enumerate(shown) if message.get("role") == "user"][::-1]
        for turn, at in enumerate(asked, start=1):
            about = {"id": shown[at]["id"], "session": entry.get("id"), "user": entry.get("user_id")}
            answer = shown[at - 1] if at and shown[at - 1].get("role") == "assistant" else {}
            texts = {"asked": shown[at].get("content"), "answered": answer.get("content")}
            yield {**answer, **about, **texts, "turn_of_chat": turn}
        yield from () if asked else [{"id": entry.get("id"), "turn_of_chat": 0}]
        return
    if not any(isinstance(entry.get(name), list) for name in FORMS["envelopes"]):
        yield _with_messages(entry) if entry.get("attributes") else entry
    trace = entry.get("traceId") or entry.get("trace_id") or entry.get("id")
    for name in (*FORMS["envelopes"], *FORMS["parts"]):
        inherited = {"traceId": trace, **({"parentObservationId": trace} if name == "observations" else {})}
        for part in listed(entry.get(name) or []):
            yield from _expanded(inherited | {key: value for key, value in part.items() if value is not None})


def _with_messages(span: Record) -> Record:
    """The span with its attributes as an object, and with the messages of its events."""
    attributes, messages = _attributes(span["attributes"]), list[Record]()
    for event in listed(cells.from_text(span.get("events")) or []):
        body, kind = _attributes(event.get("attributes")), re.fullmatch(FORMS["event"], words_of(event.get("name")))
        if kind is None:
            for name, value in body.items():
                attributes.setdefault(name, value)
        else:
            messages.append({"role": kind[1].replace("choice", "assistant"), "content": _answer_of(body)})
    return {**span, "attributes": attributes, "messages_of_events": messages}


def _attributes(value: Any) -> dict[str, Any]:
    """Attributes as an object. OTLP has a list of {"key": ..., "value": {"stringValue": ...}}."""
    value = cells.from_text(value)
    if isinstance(value, list):
        pairs = ((words_of(pair.get("key")), pair.get("value")) for pair in listed(value))
        value = {key: next(iter(held.values()), None) if isinstance(held, dict) else held for key, held in pairs}
    return value if isinstance(value, dict) else {}


def _named(record: Record, *, before: str = "", levels: int = 5, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Plain name of its path -> value or None, for each member of an object, also of one that is JSON in a text."""
    names = {} if names is None else names  # shared by all levels: copies would take quadratic time
    for key, value in record.items():
        part = cells.from_text(value) if isinstance(value, str) and value[:1] == "{" else value
        name = before + plain_name(str(key))
        is_empty = is_missing(part) or (isinstance(part, str | list | dict) and not part)
        names[name] = names.get(name) or (None if is_empty else part)
        if isinstance(part, dict) and levels:
            _named(part, before=name, levels=levels - 1, names=names)
    return names


def _seconds(value: Any) -> float:
    """A time as seconds since 1970: ISO 8601, or a number of seconds, or of thousandths to billionths of a second."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        value = float(value)
    while isinstance(value, float) and 1e11 < value < 1e21:
        value /= 1000.0
    return cells.seconds(value)


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


def _question_of(value: Any) -> tuple[str, int]:
    """The last text of the user, and its number among the user's texts; 0 if results of tools follow it."""
    turns = [turn for turn in _turns(value, "asked") if turn[0] != "system"]
    texts = [text for role, text in turns if role in ("user", "") and text]
    is_step = bool(turns) and (turns[-1][0] == "tool" or turns[-1] == ("user", ""))
    return (texts[-1], 0 if is_step else len(texts)) if texts else ("", 0)


def _answer_of(value: Any) -> str | None:
    texts = [text for role, text in _turns(value, "answered") if role in ("assistant", "") and text]
    return texts[-1] if texts else None


def _turns(value: Any, names: str) -> Iterator[tuple[str, str]]:
    """Yield (role, text) of each message. The role of a text without one is empty. names: a list in forms.toml."""
    parsed = cells.from_text(value)
    if isinstance(parsed, dict):
        message = {str(key).removeprefix("message."): part for key, part in parsed.items()}  # as Phoenix writes it
        message |= next(iter(listed(parsed.get("message") or parsed.get("kwargs"))), {})
        kinds = (words_of(message.get(name)).lower() for name in ("role", "type", "id"))
        role = next(filter(None, (re.fullmatch(FORMS["role"], kind) for kind in kinds)), None)
        if role is None:
            held = filter(None, map(parsed.get, f"{FORMS[names]} {FORMS['around']}".split()))
            yield from _turns(next(held, None), names)
            return
        content = next(filter(None, map(message.get, ("content", "parts", "text"))), None)
        parts = content if isinstance(content, list) else [content]
        types = [str(isinstance(part, dict) and part.get("type")) for part in parts]
        said = [part for part, kind in zip(parts, types, strict=True) if not re.match(FORMS["not_said"], kind)]
        yield FORMS["roles"].get(role[1], role[1]), words_of(said).strip()
    elif isinstance(parsed, list) and (parsed is value or any(isinstance(item, dict | list) for item in parsed)):
        for item in parsed:
            yield from _turns(item, names)
    elif isinstance(value, str):
        yield "", value.strip()

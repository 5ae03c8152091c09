"""Questions in a log of another tool, with their answers, costs and scores.

A question is the last message of the user in a record; in a trace, of its root or else its earliest record. Tools,
searches and later steps ask nothing, but their costs count. The file is read twice, so that memory holds no texts.
"""

import contextlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

from ragbandit.additions.other_tools.chats import find_chat_questions
from ragbandit.additions.other_tools.facts import Fact, fact_of
from ragbandit.additions.other_tools.forms import FORMS
from ragbandit.additions.other_tools.rating_words import amount_of, level_of
from ragbandit.additions.other_tools.telemetry import collect_numbered, spans_of_records, with_messages
from ragbandit.additions.other_tools.turns import answer_of, question_of
from ragbandit.router.offline.logs import cells
from ragbandit.router.offline.logs.records import Parse, plain_name, records
from ragbandit.router.serving.checks.questions import checked_text
from ragbandit.shared.additions import load_offered
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.reading.fields import clean_value, flat_text, objects_in
from ragbandit.shared.texts.formats import iso_time
from ragbandit.shared.texts.plain_values import is_missing, plain_tree

Record = Mapping[str, Any]
#: our field -> plain names of the field; a later name has precedence
_PATHS: Final = {name: [*map(plain_name, names.split())][::-1] for name, names in FORMS["fields"].items()}
_GUESSED: Final = tuple(
    name for form in FORMS["forms"] for names in form.get("fields", {}).values() for name in names.split()
)
#: our fields with texts. If several columns of a table have names of one of these fields, one column is read
_TEXTS: Final = ("question", "answers", "answer")
_NO_TEXTS: Final = frozenset(path for name, paths in _PATHS.items() if name not in _TEXTS for path in paths)
#: maximum number of columns that are named as not read
_MOST_UNREAD: Final = 20
NUMBERS: Final = ("dollars", "prompt_tokens", "completion_tokens")
#: maximum number of records in a file, and of traces
_MOST_RECORDS: Final = 1_000_000
_MOST_QUESTIONS: Final = 500_000
#: fields about people, which rows have only if the caller asks for them
PERSONAL: Final = frozenset({"user", "metadata"})
#: fields that rows never have
_UNWRITTEN: Final = frozenset({"trace", "parent", "kind"})


@dataclass(kw_only=True)
class QuestionLog:
    """The questions of a file. personal: whether rows have the fields about people. `rows` sets the other fields."""

    path: Path
    personal: bool = False
    #: our field (question, answer, scores) -> name of its column; guessed if the form is a table of tickets
    columns: dict[str, str] = field(default_factory=dict)
    form: Record = field(default_factory=dict)
    #: reason -> numbers of the records, or of the first records of traces, that are left out for this reason
    left_out: dict[str, list[int]] = field(default_factory=dict)
    #: model -> facts about its records that have no texts
    without_texts: dict[str, list[Fact]] = field(default_factory=dict)
    #: columns of a table with texts that are not read, in the order of the file
    unread: dict[str, None] = field(default_factory=dict)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row of each question, in the form that `advise` reads. Raises InvalidInput."""
        #: trace -> (whether it has a parent, time, number, place) of the record with the question; place -1 without one
        firsts: dict[str, tuple[bool, float, int, int]] = {}
        sums: dict[tuple[str, bool], Counter[str]] = defaultdict(Counter)
        models: dict[str, dict[str, None]] = defaultdict(dict)
        self._check_size()
        for key, row, number, place in self._parse_records():
            first = firsts.setdefault(key, (True, math.inf, number, -1))
            candidate = "parent" in row, row.get("time", math.inf), number, place
            sums[key, candidate[0]].update({name: row[name] for name in NUMBERS if name in row})
            models[key] |= dict.fromkeys([row["model"]] if "model" in row else [])
            if row["question"] and (first[3] < 0 or candidate < first):
                firsts[key] = candidate
            if len(firsts) > _MOST_QUESTIONS:
                raise InvalidInput(
                    f"the file has over {_MOST_QUESTIONS:,} questions", field=str(self.path), remedy="split the file"
                )
        if not self.form:
            names = ", ".join(map(repr, self.columns.values()))
            remedy = "name them with --question COLUMN and --answer COLUMN, or see docs/logs.md"
            message = f"no record has the columns {names}" if names else "this log has no known form"
            message += "".join(f"; record {at[0]}: {reason}" for reason, at in islice(self.left_out.items(), 3))
            raise InvalidInput(message, field=str(self.path), remedy=remedy)
        if without := [first[2] for first in firsts.values() if first[3] < 0]:
            self.left_out[self.form.get("missing", "no message of a user")] = without
        for key in [key for key, first in firsts.items() if first[3] < 0]:
            numbers = _trace_numbers(sums[key, True], root=sums[key, False])
            if models[key] and numbers:
                self.without_texts.setdefault(" + ".join(models[key]), []).append(
                    fact_of({**numbers, "question": None})
                )
        hidden = _UNWRITTEN if self.personal else _UNWRITTEN | PERSONAL
        written = [name for name in _PATHS if name not in hidden]
        for key, row, *at in self._parse_records(only={first[2] for first in firsts.values() if first[3] >= 0}):
            if [*firsts.get(key, ())[2:]] == at:
                row |= _trace_numbers(sums[key, True], root=sums[key, False])
                row |= {"id": key, "model": " + ".join(models[key])}
                row["time"] = iso_time(row.get("time"))
                yield {name: row[name] for name in written if row.get(name) not in (None, "", [], {})}

    def _check_size(self) -> None:
        count = sum(1 for _ in islice(self._records(), _MOST_RECORDS + 1))  # without parsing, which would take longer
        if count > _MOST_RECORDS:
            message = f"the file has over {_MOST_RECORDS:,} records"
            raise InvalidInput(message, field=str(self.path), remedy="split the file")

    def _records(self) -> Iterator[tuple[int, Parse]]:
        offered = [key for form in load_offered("logs").values() for key in form.keys]
        keys = (*FORMS["keys"].split(), *offered, *self.columns.values())
        return records(self.path, keys=keys, columns=_GUESSED)

    def _parse_records(self, *, only: Collection[int] | None = None) -> Iterator[tuple[str, dict[str, Any], int, int]]:
        """Yield (key of the trace, our fields, number, place) of each record of the known form.

        only: numbers of the records to parse; None for all.
        """
        for number, parse in self._records():
            if only is not None and number not in only:
                continue
            try:
                entry = parse()
                tool, parts = self._questions_in(entry)
                self.form = self.form or ({"name": tool} if tool else self._form_of(entry, parts))
                rows = [*map(self._read_row, parts if self.form else ())]
                self.unread |= dict.fromkeys(self._unread_in(entry, parts) if only is None else ())
            except (InvalidInput, RecursionError) as error:
                reason = getattr(error, "message", "nested too deeply").partition(":")[0]
                self.left_out.setdefault(reason, []).append(number)
                continue
            for place, row in enumerate(rows):
                key = _shorten(flat_text(row.get("trace") or row.get("id")).strip())
                yield key or f"{number}-{place}", row, number, place

    def _questions_in(self, entry: Record) -> tuple[str, list[dict[str, Any]]]:
        """Returns (name of the tool if an addition reads its log, otherwise ""; the records in a record)."""
        for tool, form in load_offered("logs").items() if not self.columns else ():
            try:
                if (questions := form.read(entry)) is not None:
                    return tool, [_flatten_names(_plain_question(question)) for question in questions]
            except Exception as error:  # an addition may raise anything, and the next record may be readable
                raise InvalidInput(f"the form of logs {tool!r} cannot read it: {error!r}") from error
        return "", [*map(_flatten_names, _expand(entry))]

    def _form_of(self, entry: Record, parts: list[dict[str, Any]]) -> Record:
        """The form of a record; {} if its form is unknown, or if a named column is missing."""
        known = {name for names in parts for name in names}
        if self.columns:
            is_there = all(plain_name(name) in known for name in self.columns.values())
            return {"name": "a table", "missing": "an empty question"} if is_there else {}
        for form, names in product(FORMS["forms"], parts):
            if not _has_name(form.get("never", "(?!)"), names) and all(
                _has_name(mark, names) for mark in form["marks"]
            ):
                originals = {plain_name(str(key)): str(key) for key in entry}
                for name, columns in form.get("fields", {}).items():
                    held = filter(None, (originals.get(plain_name(column)) for column in columns.split()))
                    self.columns |= dict.fromkeys([name], column) if (column := next(held, "")) else {}
                tool = next(filter(None, (part.get("chatof") for part in parts)), None)
                return {**form, "name": f"{tool} chats"} if tool else form
        return {}

    def _unread_in(self, entry: Record, parts: list[dict[str, Any]]) -> Iterator[str]:
        """Yield the columns of a table's record with texts that are not its question, answer or right answers."""
        if self.form.get("name") != "a table" or len(self.unread) >= _MOST_UNREAD:
            return
        read = {plain_name(column) for column in self.columns.values()} | {"instruction"}
        for name in _TEXTS:
            read |= {next((path for path in _PATHS[name][::-1] if any(part.get(path) for part in parts)), "")}
        for column, value in entry.items():
            plain = plain_name(str(column))
            is_read = plain in _NO_TEXTS or plain.endswith("id") or any(path.startswith(plain) for path in read)
            if not is_read and isinstance(value, str) and re.search(r"[^\W\d_]", value):
                yield str(column)

    def _read_row(self, names: Record) -> dict[str, Any]:
        """Our fields of a record. The question is empty if the record asks nothing."""
        if right := next(filter(None, map(names.get, self.form.get("right", ()))), None):
            names = {"answers": right, **{name: None if value is right else value for name, value in names.items()}}
        # An instruction is a task, and the input is the text that the task is about.
        if isinstance(names.get("instruction"), str) and isinstance(names.get("input"), str):
            names = {**names, "instruction": f"{names['instruction']}\n\n{names['input']}"}
        used = {name: value for name, value in names.items() if value is not None and name != self.form.get("unused")}
        row = {name: used[path] for name, paths in _PATHS.items() for path in paths if path in used}
        row |= {name: used.get(plain_name(column)) for name, column in self.columns.items()}
        for name in (*NUMBERS, "turn", "time"):
            value = row.pop(name, None)
            with contextlib.suppress(ValueError):
                row[name] = _seconds(value) if name == "time" else max(0.0, cells.cell_number(value, most=1e12))
        row |= {name: _shorten(flat_text(plain_tree(row[name]))) for name in ("model", "session") if name in row}
        gold = cells.from_text(row.get("answers"))
        texts = (str(one) if type(one) in (int, float) else one for one in (gold if isinstance(gold, list) else [gold]))
        row |= {"answers": [*filter(None, map(answer_of, texts))], "answer": answer_of(row.get("answer"))}
        row["tags"] = cells.from_text(row.get("tags"))
        row["scores"] = _scores(cells.from_text(row.get("scores")))
        asked, turn, answered = question_of(row.pop("question", None))
        row["answer"] = row["answer"] or answered
        is_inner = re.fullmatch(FORMS["inner"], flat_text(row.get("kind")).lower())
        row |= {"question": "", "turn": int(row.get("turn", turn))}
        if is_inner:
            row.pop("model", None)  # for example an embedding model
        with contextlib.suppress(InvalidInput):
            row["question"] = checked_text(asked, field="question") if turn and not is_inner else ""
        return dict(clean_value(plain_tree(row))[0])


def _shorten(key: str) -> str:
    """An id of at most 200 characters. Different longer ids stay different."""
    return key if len(key) <= 200 else f"{key[:160]}{sha256(key.encode('utf-8', 'replace')).hexdigest()[:40]}"


def _has_name(mark: str, names: Record) -> bool:
    """Whether a name matches the regular expression `mark`."""
    if mark.isalnum():
        return mark in names
    return any(map(re.compile(mark).fullmatch, names))


def _trace_numbers(inner: Record, *, root: Record) -> dict[str, Any]:
    """The numbers of a trace: the root's numbers, which include its calls, or else the sum of the calls."""
    return {**inner, **{name: value for name, value in root.items() if value or name not in inner}}


def _plain_question(question: Record) -> Record:
    """A question that an addition has read, with values of JSON only. Raises TypeError for other objects."""
    json.dumps(question := dict(plain_tree(dict(question))))
    return question


def _expand(entry: Record) -> Iterator[Record]:
    """Yield the records in a record: spans, observations and runs, questions of a chat, and the record itself."""
    if (chat := find_chat_questions(entry)) is not None:
        yield from chat
        return
    entry = collect_numbered(entry)
    if not any(isinstance(entry.get(name), list) for name in FORMS["envelopes"]):
        yield with_messages(entry) if entry.get("attributes") else entry
    trace = entry.get("traceId") or entry.get("trace_id") or entry.get("id")
    for name in (*FORMS["envelopes"], *FORMS["parts"]):
        inherited = {"traceId": trace, **({"parentObservationId": trace} if name == "observations" else {})}
        parts = objects_in(entry.get(name) or [])
        for part in spans_of_records(parts) if plain_name(name) == "logrecords" else parts:
            yield from _expand(inherited | {key: value for key, value in part.items() if value is not None})


def _flatten_names(
    record: Record, *, before: str = "", levels: int = 5, names: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Plain name of a member's path -> value or None, for all members of an object; texts with JSON are parsed."""
    names = {} if names is None else names  # shared by all levels: copies would take quadratic time
    for key, value in record.items():
        part = cells.from_text(value) if isinstance(value, str) and value[:1] == "{" else value
        name = before + plain_name(str(key))
        is_empty = is_missing(part) or (isinstance(part, str | list | dict) and not part)
        names[name] = names.get(name) or (None if is_empty else part)
        if isinstance(part, dict) and levels:
            _flatten_names(part, before=name, levels=levels - 1, names=names)
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
        value = {flat_text(part.get("name") or part.get("key")): part for part in objects_in(value)}
    scores: dict[str, float] = {}
    for name, part in (value if isinstance(value, dict) else {"score": value}).items():
        while isinstance(part, dict):
            part = next((part[key] for key in ("value", "score", "avg", "result") if part.get(key) is not None), None)
        part = amount_of(part) if isinstance(part, str) and level_of(part) is None else part
        with contextlib.suppress(ValueError):
            scores[name[:100] or "score"] = cells.cell_number(level_of(part) if isinstance(part, str) else part)
    return scores

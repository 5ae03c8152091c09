"""Questions of published data sets: how their files name a question, its id and its right answers.

    form                            question         id             right answers
    ours                            question         id             answers
    IRCoT, Adaptive-RAG             question_text    question_id    answers_objects: [{spans, number, date}]
    HotpotQA, 2WikiMultiHopQA       question         _id            answer
    MuSiQue                         question         id             answer, answer_aliases
    NQ-open, Adaptive-Note          question         id             answer, a list
    TriviaQA                        Question         QuestionId     Answer: {Value, Aliases, NormalizedAliases, ...}
    TriviaQA of Hugging Face        question         question_id    answer: {value, aliases, normalized_aliases, ...}
    SQuAD of Hugging Face           question         id             answers: {text, answer_start}
    FlashRAG                        question         id             golden_answers
    CRUD-RAG                        questions        ID             answers
    DPR                             a line: question, tab, ['first answer', 'second answer']

Our own names have precedence, and other keys are ignored. One text under `answer` may be what a system answered, so it
is a right answer only in a row with a key of PUBLISHED, or if the caller names the family of a published data set.
"""

import ast
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from ragbandit.router.offline.logs import cells
from ragbandit.router.offline.logs.records import Parse, first_bytes, records
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import decode_line, lines

#: our key -> its names in other files
NAMES: Final[Mapping[str, Sequence[str]]] = {
    "question": ("question_text", "Question", "questions"),
    "id": ("question_id", "_id", "QuestionId", "ID"),
    "answers": ("answers_objects", "golden_answers", "answer", "Answer"),
}
#: keys that only rows of published data sets have
PUBLISHED: Final = (
    "_id",
    "answer_aliases",
    "answerable",
    "evidences",
    "level",
    "question_decomposition",
    "supporting_facts",
)
#: names of columns; other names differ from ours only in case or signs
_COLUMNS: Final = ("question", "id", "question_text", "question_id")
_ALIASES: Final = "answer_aliases"
#: where an object of answers has its texts: SQuAD, then TriviaQA
_TEXTS: Final = ("text", "value", "Value", "aliases", "Aliases", "normalized_aliases", "NormalizedAliases")
_DATE: Final = ("day", "month", "year")
#: a line of DPR's questions; the list may be quoted
_DPR: Final = re.compile(r"""[^\t\n{][^\t\n]*\t[ ]*"?\[\s*["'][^\t\n]*\]"?[ ]*\r?(?:\n|\Z)""")
_LONGEST_LIST: Final = 1_000_000  #: maximum number of characters of the answers on a line of DPR


def question_records(path: Path, *, columns: Sequence[str] = ()) -> Iterator[tuple[int, Parse]]:
    """As `records`, with our keys `question` and `id`. Rows of DPR get `answers` too. Raises as `records`."""
    head = first_bytes(path).decode("utf-8-sig", "replace")
    if _DPR.match(head):
        yield from ((number, partial(_dpr_record, raw)) for number, raw in lines(path))
        return
    for number, parse in records(path, keys=_COLUMNS, columns=columns):
        yield number, partial(_renamed, parse)


def _renamed(parse: Parse) -> dict[str, Any]:
    entry = parse()
    for key in ("question", "id"):
        if cells.is_empty(entry.get(key)) and (name := _first(entry, NAMES[key])):
            entry = {**entry, key: entry[name]}
    return entry


def _first(entry: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if not cells.is_empty(entry.get(name))), None)


def _dpr_record(raw: bytes) -> dict[str, Any]:
    cells_of_row = next(csv.reader([decode_line(raw)], delimiter="\t"))
    remedy = "write question, tab, ['first answer', 'second answer']"
    if len(cells_of_row) != 2:
        raise InvalidInput(f"has {len(cells_of_row)} cells", field="answers", remedy=remedy)
    question, written = cells_of_row
    try:
        answers = ast.literal_eval(written.strip()) if len(written) <= _LONGEST_LIST else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        answers = None
    if not isinstance(answers, list):
        raise InvalidInput(f"{written!r:.40} is no list of texts", field="answers", remedy=remedy)
    return {"question": question, "answers": answers}


def answers_of(entry: Mapping[str, Any], *, published: bool) -> Any:
    """The right answers of a record as a list, or unchanged if their form is unknown; None without answers.

    published: whether the file is of a published data set, so that one text under `answer` is right. Raises
    InvalidInput.
    """
    name = "answers" if not cells.is_empty(entry.get("answers")) else _first(entry, NAMES["answers"])
    if name is None:
        return None
    value = cells.from_text(entry[name]) if isinstance(entry[name], str) and entry[name][:1] == "{" else entry[name]
    if name in ("answer", "Answer") and isinstance(value, str) and not (published or set(PUBLISHED) & set(entry)):
        return None
    if name == "answers_objects":
        value = _of_objects(value)
    elif isinstance(value, Mapping):
        value = _texts(*(value.get(key) for key in _TEXTS))
    if name == "answer" and not cells.is_empty(entry.get(_ALIASES)):
        value = _texts(value, entry[_ALIASES])
    return cells.convert_value(cells.gold, value, field=name)


def _of_objects(value: Any) -> Any:
    """Right answers of DROP's form, which IRCoT uses: of each object its spans, its number and its date."""
    objects = cells.from_text(value)
    if not isinstance(objects, list) or not all(isinstance(one, Mapping) for one in objects):
        remedy = 'give a list of objects: [{"spans": ["an answer"], "number": "", "date": {}}]'
        raise InvalidInput(f"{value!r:.40} cannot be used", field="answers_objects", remedy=remedy)
    parts = list[Any]()
    for one in objects:
        date = one.get("date")
        written = [str(date.get(part) or "").strip() for part in _DATE] if isinstance(date, Mapping) else []
        parts += [one.get("spans"), one.get("number"), " ".join(filter(None, written))]
    return _texts(*parts)


def _texts(*parts: Any) -> list[Any]:
    """All values of the parts, which are values or lists, once each."""
    found: dict[str, Any] = {}
    for part in parts:
        for one in cells.gold(part) if not cells.is_empty(part) else ():
            found.setdefault(str(one), one)
    return list(found.values())

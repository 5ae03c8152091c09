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

Our own names have precedence, and other keys are ignored.
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
_NAMES: Final[Mapping[str, Sequence[str]]] = {
    "question": ("question_text", "Question", "questions"),
    "id": ("question_id", "_id", "QuestionId", "ID"),
}
#: names of columns in delimited text; `records` also finds them in another case and with other signs
_COLUMNS: Final = ("question", "id", "question_text", "question_id")
#: a line of DPR's questions; the list may be quoted
_DPR: Final = re.compile(r"""[^\t\n{][^\t\n]*\t[ ]*"?\[\s*["'][^\t\n]*\]"?[ ]*\r?(?:\n|\Z)""")
_LONGEST_LIST: Final = 1_000_000  #: maximum number of characters of the answers on a line of DPR


def question_records(path: Path, *, columns: Sequence[str] = ()) -> Iterator[tuple[int, Parse]]:
    """Yield what `records` does, with our keys `question` and `id`. Rows of DPR get `answers` too."""
    head = first_bytes(path).decode("utf-8-sig", "replace")
    if _DPR.match(head):
        yield from ((number, partial(_dpr_record, raw)) for number, raw in lines(path))
        return
    for number, parse in records(path, keys=_COLUMNS, columns=columns):
        yield number, partial(_with_our_keys, parse)


def _with_our_keys(parse: Parse) -> dict[str, Any]:
    entry = parse()
    for key in ("question", "id"):
        if cells.is_empty(entry.get(key)) and (name := first_name(entry, names=_NAMES[key])):
            entry = {**entry, key: entry[name]}
    return entry


def first_name(entry: Mapping[str, Any], *, names: Sequence[str]) -> str | None:
    """The first of these names that has a value; None if no name has one."""
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
        raise InvalidInput(f"{written!r:.40} is not a list of texts", field="answers", remedy=remedy)
    return {"question": question, "answers": answers}

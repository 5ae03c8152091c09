"""Questions as Python values, written to a file that a run reads."""

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ragbandit.router.offline.logs.jsonl import write_records

#: a JSONL file, a mapping question -> right answers, or rows that `_record` accepts
Questions = str | PathLike[str] | Mapping[str, Any] | Iterable[Any]


def question_file(questions: Questions, *, folder: Path) -> Path:
    """The file of these questions. If they are not a file yet, they are written to advise.jsonl in `folder`."""
    if isinstance(questions, str | PathLike):
        return Path(questions)
    rows = questions.items() if isinstance(questions, Mapping) else questions
    file = folder / "advise.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    write_records(file, map(_record, rows))
    return file


def _record(row: object) -> dict[str, Any]:
    """A record for a file of questions. row: a mapping, a pair (question, right answer or answers), or a question."""
    if isinstance(row, Mapping):
        record = {**row, "question": row.get("question")}
    elif isinstance(row, tuple | list) and len(row) == 2:
        record = {"question": row[0], "answers": row[1]}
    else:
        record = {"question": row}
    answers = record.pop("answers", None)
    if answers is not None:
        record["answers"] = [answers] if isinstance(answers, str) else [*answers]
    return record

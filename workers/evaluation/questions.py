"""Labelled questions, read from a file: one JSON object a line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragbandit.router.errors import InvalidInput
from ragbandit.router.learning.answer_metrics import judged
from ragbandit.router.serving.validation import checked_text
from ragbandit.router.storage.files.json_lines import lines, naming, parsed
from ragbandit.workers.evaluation.judging import CRUD, LabelledQuestion
from ragbandit.workers.evaluation.ragquesteval import Quiz

__all__ = ["read_questions"]

#: of a quiz about a gold text
_COLUMNS = {"questions", "references"}


def read_questions(path: Path, *, family: str, limit: int | None = None) -> tuple[LabelledQuestion, ...]:
    """The questions of the file, the first `limit` of them. A question without an id is "row-<line>".

    Raises InvalidInput with "<file>:<line>" for a file or a line that cannot be used.
    """
    rows: list[LabelledQuestion] = []
    places: dict[str, int] = {}
    for number, raw in lines(path):
        if limit is not None and len(rows) == limit:
            break
        with naming(path, line=number):
            row = _asked(parsed(raw), number=number, family=family)
            if row.id in places:
                raise InvalidInput(
                    f"{row.id!r} stands on line {places[row.id]} too",
                    field="id",
                    remedy="give every question an id of its own",
                )
        places[row.id] = number
        rows.append(row)
    return tuple(rows)


def _asked(found: Mapping[str, Any], *, number: int, family: str) -> LabelledQuestion:
    question = _text_of(found, field="question", remedy="every line has one, a text")
    gold = _quiz_of(found) if family == CRUD else _answers_of(found, family=family)
    identity, dataset, hops = found.get("id", f"row-{number}"), found.get("dataset"), found.get("hops")
    for field, value in (("id", identity), ("dataset", dataset)):
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise InvalidInput(f"{value!r} is no name", field=field, remedy="write text, or leave it out")
    if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int) or hops < 0):
        raise InvalidInput(f"{hops!r} is no count", field="hops", remedy="write a whole number, or leave it out")
    return LabelledQuestion(id=str(identity), question=question, dataset=dataset, hops=hops, **gold)


def _answers_of(found: Mapping[str, Any], *, family: str) -> dict[str, Any]:
    answers = found.get("answers")
    judged("x", gold=answers if isinstance(answers, list) else [], family=family)  # only to have them checked
    return {"answers": answers}


def _quiz_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The gold text, or the quiz about it, of a question of CRUD."""
    quiz = found.get("quiz")
    if quiz is None:
        return {"reference": _text_of(found, field="reference", remedy='give the gold text, or a "quiz" about it')}
    if not (isinstance(quiz, dict) and set(quiz) == _COLUMNS and all(map(_are_texts, quiz.values()))):
        raise InvalidInput("is no quiz", field="quiz", remedy='write {"questions": [...], "references": [...]}')
    return {"quiz": Quiz(**{column: tuple(texts) for column, texts in quiz.items()})}


def _text_of(found: Mapping[str, Any], *, field: str, remedy: str) -> str:
    if found.get(field) is None:
        raise InvalidInput("is missing", field=field, remedy=remedy)
    return checked_text(found[field], field=field)


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) and value.strip() for value in values)

"""Labelled questions, read from a file: one JSON object a line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragbandit.router.errors import InvalidInput
from ragbandit.router.learning.answer_metrics import FAMILIES, judged
from ragbandit.router.serving.validation import checked_text
from ragbandit.router.storage.files.json_lines import lines, naming, parsed
from ragbandit.workers.judge.quiz import Quiz

__all__ = ["CRUD", "FAMILY_NAMES", "LabelledQuestion", "check_family", "read_questions"]

#: the family whose answers a model judges, see ragbandit.workers.judge.quiz
CRUD = "crud"
FAMILY_NAMES = tuple(sorted({*FAMILIES, CRUD}))
#: of a quiz about a gold text
_COLUMNS = {"questions", "references"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledQuestion:
    """A labelled question. `answers` has the shape that its family wants, see router.learning.answer_metrics; of
    "crud" it is empty.
    """

    id: str
    question: str
    answers: Sequence[str] | Sequence[Sequence[str]] = ()
    #: of "crud": the gold text, or the quiz that was made from it; one of the two at least
    reference: str | None = None
    quiz: Quiz | None = None
    #: where it comes from, and pieces of evidence it needs: for the table, where the file says it
    dataset: str | None = None
    hops: int | None = None


def check_family(family: str) -> None:
    """Raises InvalidInput with the known names."""
    if family not in FAMILY_NAMES:
        raise InvalidInput(f"{family!r} is unknown", field="family", remedy=f"known: {', '.join(FAMILY_NAMES)}")


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

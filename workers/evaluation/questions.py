"""Labelled questions, read from a file: one JSON object a line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragbandit.router.learning.answer_metrics import FAMILIES, judged
from ragbandit.router.offline.logs.questions import LabelledRow, question_rows, required_text
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import known_choices
from ragbandit.workers.judge.quiz import Quiz

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
        raise InvalidInput(f"{family!r} is unknown", field="family", remedy=known_choices(FAMILY_NAMES, given=family))


def read_questions(path: Path, *, family: str, limit: int | None = None) -> tuple[LabelledQuestion, ...]:
    """The questions of the file, the first `limit` of them. A question without an id is "row-<line>".

    Raises InvalidInput with "<file>:<line>" for a file or a line that cannot be used.
    """

    def question(entry: Mapping[str, Any], row: LabelledRow) -> LabelledQuestion:
        gold = _quiz_of(entry) if family == CRUD else _answers_of(entry, family=family)
        return LabelledQuestion(id=row.id, question=row.question, dataset=row.dataset, hops=row.hops, **gold)

    return tuple(question_rows(path, question, limit=limit))


def _answers_of(entry: Mapping[str, Any], *, family: str) -> dict[str, Any]:
    answers = entry.get("answers")
    judged("x", gold=answers if isinstance(answers, list) else [], family=family)  # only to have them checked
    return {"answers": answers}


def _quiz_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The gold text, or the quiz about it, of a question of CRUD."""
    quiz = entry.get("quiz")
    if quiz is None:
        return {"reference": required_text(entry, "reference", remedy='give the gold text, or a "quiz" about it')}
    if not (isinstance(quiz, dict) and set(quiz) == _COLUMNS and all(map(_are_texts, quiz.values()))):
        raise InvalidInput("is no quiz", field="quiz", remedy='write {"questions": [...], "references": [...]}')
    return {"quiz": Quiz(**{column: tuple(texts) for column, texts in quiz.items()})}


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) and value.strip() for value in values)

"""Questions of a file with their right answers.

One text under `answer` may be what a system answered, so it is a right answer only in a row with a key of _PUBLISHED,
or if the family of a published data set is named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ragbandit.additions.evaluation.answer_metrics import FAMILIES, OWN_FAMILIES, metric_values
from ragbandit.additions.evaluation.quiz import Quiz
from ragbandit.router.offline.logs import cells
from ragbandit.router.offline.logs.question_forms import first_name
from ragbandit.router.offline.logs.tables import LabelledRow, question_rows
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import known_choices

FAMILY_NAMES = tuple(sorted(FAMILIES))
#: family of the data set CRUD. `evaluate` scores its answers by metrics and by a quiz (evaluation/quiz.py)
CRUD = "crud"
_NO_ANSWERS = "give `answers`, a list; one text under `answer` is right only with --family of a published data set"
#: names of right answers in the forms of `question_forms`
_NAMES: Final = ("answers_objects", "golden_answers", "answer", "Answer")
#: keys that only rows of published data sets have
_PUBLISHED: Final = (
    "_id",
    "answer_aliases",
    "answerable",
    "evidences",
    "level",
    "question_decomposition",
    "supporting_facts",
)
_ALIASES: Final = "answer_aliases"
#: fields in which an object of answers has its texts: SQuAD's, then TriviaQA's
_TEXTS: Final = ("text", "value", "Value", "aliases", "Aliases", "normalized_aliases", "NormalizedAliases")
_DATE: Final = ("day", "month", "year")


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledQuestion:
    id: str
    question: str
    #: right answers in the form of the family, see answer_metrics; empty if a judge scores the answers
    answers: Sequence[str] | Sequence[Sequence[str]] = ()
    dataset: str | None = None
    #: number of pieces of evidence that the answer needs; None if unknown
    hops: int | None = None
    #: questions about the gold text, for the family CRUD; None if the judge writes them
    quiz: Quiz | None = None


def read_questions(
    path: Path, *, family: str, limit: int | None = None, unlabelled: bool = False, remedy: str = ""
) -> tuple[LabelledQuestion, ...]:
    """The first `limit` questions of a file; all if it is None. Raises InvalidInput.

    unlabelled: whether right answers may be missing. remedy: what to do if they are missing and may not be.
    """
    if family not in FAMILY_NAMES:
        raise InvalidInput(f"{family!r} is unknown", field="family", remedy=known_choices(FAMILY_NAMES, given=family))

    def read_question(entry: Mapping[str, Any], row: LabelledRow) -> LabelledQuestion:
        answers = answers_of(entry, published=family not in OWN_FAMILIES)
        gold = dict[str, Any]()
        if answers is None and not unlabelled:
            reason = "this question has no right answers" + (", and there is no judge" if remedy else "")
            raise InvalidInput(reason, field="answers", remedy=remedy or _NO_ANSWERS)
        if answers is not None:
            metric_values(
                "x", gold=answers if isinstance(answers, list) else [], family=family
            )  # raises for unusable answers
            gold = {"answers": answers}
        if family == CRUD and (quiz := cells.parsed_cell(entry.get("quiz"))) is not None:
            gold["quiz"] = _parse_quiz(quiz)
        return LabelledQuestion(id=row.id, question=row.question, dataset=row.dataset, hops=row.hops, **gold)

    return tuple(question_rows(path, read_question, limit=limit))


def _parse_quiz(value: Any) -> Quiz:
    parts = [value.get(name) for name in ("questions", "answers")] if isinstance(value, Mapping) else [None]
    lists = [part for part in parts if isinstance(part, list) and all(isinstance(text, str) for text in part)]
    if len(lists) < len(parts) or not lists:
        remedy = 'write {"questions": ["a text"], "answers": ["a text"]}, or leave it out'
        raise InvalidInput(f"{value!r:.40} is not a quiz", field="quiz", remedy=remedy)
    return Quiz(questions=tuple(lists[0]), answers=tuple(lists[1]))


def first_rows(rows: Sequence[LabelledQuestion]) -> list[LabelledQuestion]:
    """The first row of each question."""
    first: dict[str, LabelledQuestion] = {}
    for row in rows:
        first.setdefault(row.question, row)
    return list(first.values())


def answers_of(entry: Mapping[str, Any], *, published: bool) -> Any:
    """The right answers of a record as a list, or unchanged if their form is unknown; None without answers.

    published: whether the file is of a published data set, so that one text under `answer` is right. Raises
    InvalidInput.
    """
    name = "answers" if not cells.is_empty(entry.get("answers")) else first_name(entry, names=_NAMES)
    if name is None:
        return None
    value = cells.from_text(entry[name]) if isinstance(entry[name], str) and entry[name][:1] == "{" else entry[name]
    if name in ("answer", "Answer") and isinstance(value, str) and not (published or set(_PUBLISHED) & set(entry)):
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

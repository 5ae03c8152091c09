"""Runs of an evaluation. Every answer is appended to a JSONL file at once, so that an interrupted run can continue."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self, get_args

from pydantic import TypeAdapter, ValidationError

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.reward import FAMILIES, OWN_FAMILIES, metric_values
from ragbandit.router.offline.logs import cells
from ragbandit.router.offline.logs.question_forms import answers_of
from ragbandit.router.offline.logs.tables import LabelledRow, question_rows
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.types import ArmName, Cost, Json, Outcome, OutcomeStatus
from ragbandit.strategies.base import Need
from ragbandit.strategies.registry import is_form, known_arms, make_arms
from ragbandit.workers.evaluation.kept_lines import KeptLines, first_fault
from ragbandit.workers.judge.quiz import Quiz
from ragbandit.workers.setup.generators import WorkerArm, make_strategies, offered, worker_arms

FAMILY_NAMES = tuple(sorted(FAMILIES))
#: the family whose answers `evaluate` judges by a quiz too, see ragbandit.workers.judge.quiz
CRUD = "crud"
_NO_ANSWERS = "give `answers`, a list; one text under `answer` is right only with --family of a published data set"


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledQuestion:
    id: str
    question: str
    #: right answers in the form of the family, see router.learning.reward; empty if a judge scores the answers
    answers: Sequence[str] | Sequence[Sequence[str]] = ()
    dataset: str | None = None
    #: number of pieces of evidence that the answer needs; None if unknown
    hops: int | None = None
    #: questions about the gold text, for the family CRUD; None if the judge writes them
    quiz: Quiz | None = None


def read_questions(
    path: Path, *, family: str, limit: int | None = None, unlabelled: bool = False, remedy: str = ""
) -> tuple[LabelledQuestion, ...]:
    """The first `limit` questions of a file. Raises InvalidInput.

    unlabelled: whether right answers may be missing. remedy: what to do if they are missing and may not be.
    """
    if family not in FAMILY_NAMES:
        raise InvalidInput(f"{family!r} is unknown", field="family", remedy=known_choices(FAMILY_NAMES, given=family))

    def question(entry: Mapping[str, Any], row: LabelledRow) -> LabelledQuestion:
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
            gold["quiz"] = _quiz_of(quiz)
        return LabelledQuestion(id=row.id, question=row.question, dataset=row.dataset, hops=row.hops, **gold)

    return tuple(question_rows(path, question, limit=limit))


def _quiz_of(value: Any) -> Quiz:
    parts = [value.get(name) for name in ("questions", "answers")] if isinstance(value, Mapping) else [None]
    lists = [part for part in parts if isinstance(part, list) and all(isinstance(text, str) for text in part)]
    if len(lists) < len(parts) or not lists:
        remedy = 'write {"questions": ["a text"], "answers": ["a text"]}, or leave it out'
        raise InvalidInput(f"{value!r:.40} is no quiz", field="quiz", remedy=remedy)
    return Quiz(questions=tuple(lists[0]), answers=tuple(lists[1]))


def distinct(rows: Sequence[LabelledQuestion]) -> list[LabelledQuestion]:
    """The first row of each question."""
    first: dict[str, LabelledQuestion] = {}
    for row in rows:
        first.setdefault(row.question, row)
    return list(first.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredAnswer:
    """An answer of an arm to a question, with its cost and a judge's score. Other measures are not stored."""

    key: str
    arm: str
    question: str
    status: OutcomeStatus
    answer: str | None
    stop_reason: str
    error: str | None
    steps: float
    cost: Cost
    made_by: Mapping[str, Json]
    #: seconds since 1970
    made_at: float
    #: the judge's score in [0, 1]; None if no judge scored it
    score: float | None = None

    @property
    def failed(self) -> bool:
        return self.status == "failed"


def key_of(question: str, *, arm: str, made_by: Mapping[str, Json], version: str) -> str:
    """Key of an answer: a hash of all that defines it. version: see `generator_version`."""
    text = json.dumps([question, arm, dict(made_by), version], sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()


_STORED: Final = TypeAdapter(StoredAnswer)
#: field -> its largest value; the smallest is 0
_MOST: Final = {"steps": 1e9, "made_at": 1e12, "score": 1.0}
_NAMES: Final = frozenset(part.name for part in fields(StoredAnswer)) | {part.name for part in fields(Cost)}


def _stored(entry: Mapping[str, Any]) -> StoredAnswer:
    """Raises ValueError if a field is missing, unknown, of another type or out of its range."""
    text = json.dumps(entry, ensure_ascii=False)
    stored = _STORED.validate_json(text.encode("utf-8", "replace"), strict=True)  # halves of characters are replaced
    if unknown := sorted({*entry, *entry["cost"]} - _NAMES):
        raise ValueError(f"{unknown[0]!r} is no field of it")
    for name, most in _MOST.items():
        value = getattr(stored, name)
        if value is not None and not 0 <= value <= most:
            raise ValueError(f"{name} is {value!r:.40}")
    return stored


class Answers:
    """The file of stored answers, for a `with` block. Unless `resume` is set, it must be new or empty."""

    def __init__(self, file: Path, *, resume: bool) -> None:
        self.file = file
        #: key -> dollars of all its answers, also of those that failed and were asked again
        self.dollars = defaultdict[str, float](float)
        self._lines = KeptLines(file)
        try:
            self.found = self._read(resume=resume)
        except BaseException:
            self._lines.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def forget_failed(self) -> None:
        """Treat failed answers as missing. Their lines stay in the file; of lines with one key, the last counts."""
        self.found = {key: stored for key, stored in self.found.items() if not stored.failed}

    def add(self, outcome: Outcome, *, key: str, arm: ArmName, question: str, score: float | None = None) -> None:
        names = [field.name for field in fields(StoredAnswer) if hasattr(outcome, field.name)]
        given = {name: getattr(outcome, name) for name in names}
        stored = StoredAnswer(key=key, arm=arm, question=question, score=score, **given)
        self._lines.add(asdict(stored))
        self._enter(self.found, stored)

    def _enter(self, answers: dict[str, StoredAnswer], stored: StoredAnswer) -> None:
        answers[stored.key] = stored
        if stored.score is None:  # a score comes with a second line of the same answer
            self.dollars[stored.key] += stored.cost.dollars

    def _read(self, *, resume: bool) -> dict[str, StoredAnswer]:
        answers: dict[str, StoredAnswer] = {}
        for number, entry in self._lines.read():
            try:
                stored = _stored(entry)
            except ValueError as error:
                why = first_fault(error) if isinstance(error, ValidationError) else str(error)
                raise self._lines.foreign(number, what="an answer of an evaluation", why=why) from error
            self._enter(answers, stored)
        if answers and not resume:
            remedy = "give --resume to reuse them, or another file with --answers"
            raise InvalidInput(f"the file already has {len(answers)} answers", field=str(self.file), remedy=remedy)
        return answers


ALL = "all"


def left_out(lacking: Mapping[str, str]) -> str:
    """One line about the arms of ALL that do not run. lacking: as `parse_arms` returns it."""
    names: dict[str, list[str]] = {}
    for name, reason in lacking.items():
        names.setdefault(reason, []).append(name)
    return "left out: " + "; ".join(f"{', '.join(some)}: {reason}" for reason, some in names.items())


def parse_arms(
    wanted: Sequence[str], *, settings: Settings, others: Collection[str] = ()
) -> tuple[dict[str, WorkerArm], dict[str, str]]:
    """Returns (arms to run, name -> reason for each arm of ALL that cannot run). wanted: names, also joined by commas.

    ALL is every strategy of RagBandit and of installed packages, and every arm of the configuration. An arm that is not
    configured has default params. others: names that the caller runs. Raises ConfigError for a named arm that cannot
    run, and InvalidInput for an unknown name.
    """
    names = list(dict.fromkeys(name.strip() for name in ",".join(wanted).split(",") if name.strip()))
    available = {name: WorkerArm() for name in known_arms()} | worker_arms(settings)
    _check_names(names, known={*available, *others}, configured=settings.arms)
    arms = {name: available[name] for name in names if name != ALL and name not in others}
    if arms:
        make_strategies(settings, arms)
    lacking: dict[str, str] = {}
    if ALL not in names:
        return arms, lacking
    for name, arm in available.items():
        if name in arms:
            continue
        if is_form(name) and name not in settings.arms:
            lacking[name] = "no strategies by themselves; those under `arms` of the configuration run"
            continue
        try:
            strategy = make_arms({name: arm.params}, capabilities=frozenset(get_args(Need)))[ArmName(name)]
        except ConfigError as error:
            lacking[name] = str(error)
            continue
        unmet = sorted(strategy.needs - offered(settings.named_generators[arm.generator]))
        if unmet:
            lacking[name] = f"the generator lacks {', '.join(unmet)}"
        else:
            arms[name] = arm
    return arms, lacking


def _check_names(names: Sequence[str], *, known: Iterable[str], configured: Collection[str]) -> None:
    every = [*sorted(known), ALL]
    if not names:
        raise InvalidInput("no strategy is named", field="strategy", remedy=f"known: {', '.join(every)}")
    in_code = [name for name in names if name in configured and name not in every]
    if in_code:
        listed = " and ".join(filter(None, [", ".join(in_code[:-1]), in_code[-1]]))
        remedy = (
            "`ragbandit advise QUESTIONS.jsonl --module MODULE:NAME` runs your functions, "
            "`ragbandit advise --table T.jsonl` takes outcomes"
        )
        raise InvalidInput(f"this command cannot run {listed}, which your code runs", field="strategy", remedy=remedy)
    unknown = next((name for name in names if name not in every), None)
    if unknown is not None:
        remedy = known_choices(every, given=unknown)
        raise InvalidInput(f"{unknown!r} is not an arm we know", field="strategy", remedy=remedy)

"""Runs of an evaluation: arms over labelled questions, each answer kept in a file as it comes.

The file is only ever appended to, one JSON object a line.
A line is there as soon as its answer is, so that an evaluation that was cut short goes on where it stopped. A line
without its end, which a killed process may leave, is no answer and is cut off when the file is opened again.
"""

import asyncio
import fcntl
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.reward import FAMILIES, judged
from ragbandit.router.offline.logs.tables import LabelledRow, question_rows, required_text
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.files import append_private, parsed
from ragbandit.shared.formats import known_choices
from ragbandit.shared.types import ArmName, Budget, Cost, DecisionId, Json, Outcome, OutcomeStatus, Query
from ragbandit.strategies.base import Need
from ragbandit.strategies.registry import known_arms, make_arms
from ragbandit.strategies.runner import run_strategy
from ragbandit.workers.judge.rubric import Quiz
from ragbandit.workers.wiring.generators import WorkerArm, make_strategies, offered, worker_arms
from ragbandit.workers.wiring.loading import LoadedArm, parts_of

Piece = TypeVar("Piece")

#: the family whose answers a model judges, see ragbandit.workers.judge.rubric
CRUD = "crud"
FAMILY_NAMES = tuple(sorted({*FAMILIES, CRUD}))
#: columns of a quiz about a gold text
_COLUMNS = {"questions", "references"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledQuestion:
    """A labelled question. `answers` has the shape that its family wants, see router.learning.reward; of
    "crud" it is empty.
    """

    id: str
    question: str
    answers: Sequence[str] | Sequence[Sequence[str]] = ()
    #: for "crud": the gold text, or the quiz made from it; one of them at least
    reference: str | None = None
    quiz: Quiz | None = None
    #: where it comes from, and pieces of evidence it needs: for the table, where the file says it
    dataset: str | None = None
    hops: int | None = None


def check_family(family: str) -> None:
    """Raises InvalidInput with the known names."""
    if family not in FAMILY_NAMES:
        raise InvalidInput(f"{family!r} is unknown", field="family", remedy=known_choices(FAMILY_NAMES, given=family))


def read_questions(
    path: Path, *, family: str, limit: int | None = None, unlabelled: bool = False
) -> tuple[LabelledQuestion, ...]:
    """The questions of the file, the first `limit` of them. A question without an id is "row-<line>".

    unlabelled: a question may have no answers, since a judge scores those of the arms. Raises InvalidInput with
    "<file>:<line>" for a file or a line that cannot be used.
    """

    def question(entry: Mapping[str, Any], row: LabelledRow) -> LabelledQuestion:
        if unlabelled and entry.get("answers") is None:
            return LabelledQuestion(id=row.id, question=row.question, dataset=row.dataset, hops=row.hops)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredAnswer:
    """An answer of an arm to a question with its cost. It is judged again each time."""

    #: see `key_of`
    key: str
    arm: str
    question: str
    status: OutcomeStatus
    answer: str | None
    stop_reason: str
    error: str | None
    #: the papers' Step
    steps: float
    cost: Cost
    made_by: Mapping[str, Json]
    #: seconds since the epoch
    made_at: float
    #: the judge's score in [0, 1]; None without a judge
    score: float | None = None

    @property
    def failed(self) -> bool:
        """It has no answer, which counts as wrong."""
        return self.status == "failed"


def key_of(question: str, *, arm: str, made_by: Mapping[str, Json], version: str) -> str:
    """Key of one piece of work: 64 hexadecimal digits over question, arm, what made it, and version.

    `version` is that of the generator, see ragbandit.workers.wiring.generators.generator_version.
    """
    text = json.dumps([question, arm, dict(made_by), version], sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()


class Answers:
    """The file, open for one process at a time. Use it as a context manager.

    Raises InvalidInput for a file with answers unless `resume`, and for a line without an answer; ConfigError if
    another process writes to it.
    """

    def __init__(self, file: Path, *, resume: bool) -> None:
        self.file = file
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._stream = append_private(self.file)
        except OSError as error:
            raise _unusable(self.file, fault=f"cannot be opened: {error.strerror}") from error
        try:
            self._lock()
            #: by key
            self.found = self._read(resume=resume)
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def forget_failed(self) -> None:
        """Take answers that failed for missing. Their lines stay in the file: of one key the last line counts."""
        self.found = {key: stored for key, stored in self.found.items() if not stored.failed}

    def add(self, outcome: Outcome, *, work: "Work", score: float | None = None) -> None:
        """Keep the answer; it is with the operating system when this returns."""
        kept = {each.name: getattr(outcome, each.name) for each in fields(StoredAnswer) if hasattr(outcome, each.name)}
        stored = StoredAnswer(**asdict(work), score=score, **kept)
        try:
            self._stream.write(json.dumps(asdict(stored), default=str).encode() + b"\n")
            self._stream.flush()
        except OSError as error:
            raise _unusable(self.file, fault=f"cannot be written: {error.strerror}") from error
        self.found[stored.key] = stored

    def _lock(self) -> None:
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            message = "another evaluation writes its answers there"
            remedy = "wait for it, or name another file with --answers"
            raise ConfigError(message, field=str(self.file), remedy=remedy) from error

    def _read(self, *, resume: bool) -> dict[str, StoredAnswer]:
        answers, whole = dict[str, StoredAnswer](), 0
        self._stream.seek(0)
        for number, line in enumerate(self._stream, start=1):
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            stored = _kept(line, where=f"{self.file}:{number}")
            answers[stored.key] = stored
        if answers and not resume:
            remedy = "give --resume to reuse them, or another file with --answers"
            raise InvalidInput(f"holds {len(answers)} answers", field=str(self.file), remedy=remedy)
        self._stream.truncate(whole)
        return answers


def _kept(line: bytes, *, where: str) -> StoredAnswer:
    try:
        entry: dict[str, Any] = parsed(line)
        return StoredAnswer(**{**entry, "cost": Cost(**entry["cost"])})
    except (InvalidInput, KeyError, TypeError) as error:
        raise _unusable(Path(where), fault="is no answer of an evaluation") from error


def _unusable(file: Path, *, fault: str) -> InvalidInput:
    return InvalidInput(fault, field=str(file), remedy="take the line out, or name another file with --answers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One arm on one question."""

    key: str
    arm: ArmName
    question: str


async def in_parallel(work: Iterable[Piece], do: Callable[[Piece], Awaitable[object]], *, concurrency: int) -> None:
    """Do the work, at most `concurrency` pieces at a time: the next piece starts when one is done.

    Pieces under way are lost if this is cancelled or a piece raises.
    """
    left = iter(work)

    async def take() -> None:
        for each in left:
            await do(each)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(take())
    except ExceptionGroup as several:
        raise several.exceptions[0] from several


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Resources that the arms are run with, and the file of their answers."""

    arms: Mapping[ArmName, LoadedArm]
    #: caps on every answer
    budget: Budget
    answers: Answers

    def work(self, rows: Sequence[LabelledQuestion]) -> list[Work]:
        """Every arm on every question, question by question: an interrupted run has one incomplete question."""
        making = {name: arm.made_by(self.budget) for name, arm in self.arms.items()}
        return [
            Work(
                key=key_of(row.question, arm=name, made_by=making[name], version=arm.version),
                arm=name,
                question=row.question,
            )
            for row in rows
            for name, arm in self.arms.items()
        ]

    async def answer(self, work: Work) -> Outcome:
        """The answer, kept as soon as it is there. A failing arm is an answer."""
        arm = self.arms[work.arm]
        outcome = await run_strategy(
            arm.strategy,
            query=Query(id=DecisionId(work.key), text=work.question),
            budget=self.budget,
            retriever=arm.retriever,
            generator=arm.generator,
            named=arm.named,
        )
        self.answers.add(outcome, work=work)
        return outcome

    async def close(self) -> None:
        """Close generators and retrievers."""
        for part in parts_of(self.arms.values()):
            await part.close()


#: the word for every arm
ALL = "all"


def parse_arms(wanted: Sequence[str], *, settings: Settings) -> tuple[dict[str, WorkerArm], dict[str, str]]:
    """The arms to run, and of "all" those that cannot be run with the reason, both by name.

    An arm of the configuration has its params from there, another one has its defaults. "all" is every arm of
    ours, of installed packages and of the configuration. Raises ConfigError for a named arm that cannot be
    run, also in addition to "all", and InvalidInput for one that nobody knows.
    """
    names = list(dict.fromkeys(name.strip() for words in wanted for name in words.split(",") if name.strip()))
    known = {name: WorkerArm() for name in known_arms()} | worker_arms(settings)
    _check_known(names, known=known, settings=settings)
    arms = {name: known[name] for name in names if name != ALL}
    if arms:
        make_strategies(settings, arms)
    lacking: dict[str, str] = {}
    for name, each in known.items() if ALL in names else ():
        if name in arms:
            continue
        try:
            arm = make_arms({name: each.params}, capabilities=frozenset(get_args(Need)))[ArmName(name)]
        except ConfigError as error:
            lacking[name] = str(error)
            continue
        if unmet := sorted(arm.needs - offered(settings.named_generators[each.generator])):
            lacking[name] = f"the generator lacks {', '.join(unmet)}"
        else:
            arms[name] = each
    return arms, lacking


def _check_known(names: Sequence[str], *, known: Iterable[str], settings: Settings) -> None:
    """Raises InvalidInput with the known names and the most similar one."""
    every = [*sorted(known), ALL]
    if not names:
        raise InvalidInput("no strategy is named", field="strategy", remedy=f"known: {', '.join(every)}")
    for name in names:
        if name in every:
            continue
        if name in settings.arms:
            remedy = "name an arm of our workers; `ragbandit advise --module` runs your own functions"
            raise InvalidInput(f"{name!r} is run by its caller", field="strategy", remedy=remedy)
        raise InvalidInput(f"{name!r} is not an arm we know", field="strategy", remedy=known_choices(every, given=name))

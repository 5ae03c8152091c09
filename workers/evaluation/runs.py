"""Runs of an evaluation: arms over labelled questions, each answer kept in a file as it comes.

The file is only ever appended to, one JSON object a line.
A line is there as soon as its answer is, so that an evaluation that was cut short goes on where it stopped. A line
without its end, which a killed process may leave, is no answer and is cut off when the file is opened again.
"""

import asyncio
import fcntl
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.files import append_private, parsed
from ragbandit.shared.types import ArmName, Budget, Cost, DecisionId, Json, Outcome, OutcomeStatus, Query
from ragbandit.strategies.runner import run_strategy
from ragbandit.workers.evaluation.questions import LabelledQuestion
from ragbandit.workers.wiring.loading import LoadedArm, parts_of


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredAnswer:
    """One answer of one arm to one question, with what it took. Who judges it looks at it again each time."""

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

    Raises InvalidInput for a file with answers unless `resume`, and for a line that is no answer; ConfigError where
    another process writes to it.
    """

    def __init__(self, file: Path, *, resume: bool) -> None:
        self.file = file
        self._resume = resume
        self._found: dict[str, StoredAnswer] = {}
        self._stream: BinaryIO | None = None

    def __enter__(self) -> "Answers":
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._stream = append_private(self.file)
        except OSError as error:
            raise _unusable(self.file, fault=f"cannot be opened: {error.strerror}") from error
        try:
            self._lock()
            self._read()
        except BaseException:
            self._stream.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stream is not None
        self._stream.close()

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def __getitem__(self, key: str) -> StoredAnswer:
        return self._found[key]

    def forget_failed(self) -> None:
        """Take answers that failed for missing. Their lines stay in the file: of one key the last line counts."""
        self._found = {key: stored for key, stored in self._found.items() if not stored.failed}

    def add(self, outcome: Outcome, *, key: str, arm: str, question: str) -> None:
        """Keep the answer; it is with the operating system when this returns."""
        assert self._stream is not None
        stored = StoredAnswer(
            key=key,
            arm=arm,
            question=question,
            status=outcome.status,
            answer=outcome.answer,
            stop_reason=outcome.stop_reason,
            error=outcome.error,
            steps=outcome.steps,
            cost=outcome.cost,
            made_by=outcome.made_by,
            made_at=outcome.made_at,
        )
        try:
            self._stream.write(json.dumps(asdict(stored), default=str).encode() + b"\n")
            self._stream.flush()
        except OSError as error:
            raise _unusable(self.file, fault=f"cannot be written: {error.strerror}") from error
        self._found[key] = stored

    def _lock(self) -> None:
        assert self._stream is not None
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                "another evaluation writes its answers there",
                field=str(self.file),
                remedy="wait for it, or name another file with --answers",
            ) from error

    def _read(self) -> None:
        assert self._stream is not None
        self._stream.seek(0)
        whole = 0
        for number, line in enumerate(self._stream, start=1):
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            stored = _kept(line, where=f"{self.file}:{number}")
            self._found[stored.key] = stored
        if self._found and not self._resume:
            raise InvalidInput(
                f"holds {len(self._found)} answers",
                field=str(self.file),
                remedy="give --resume to go on with them, or another file with --answers",
            )
        self._stream.truncate(whole)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Resources that the arms are run with."""

    arms: Mapping[ArmName, LoadedArm]
    #: caps on every answer
    budget: Budget

    def work(self, rows: Sequence[LabelledQuestion]) -> list[Work]:
        """Every arm on every question, question by question: what is cut short has whole questions, but for one."""
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

    async def answer(
        self, work: Iterable[Work], *, answers: Answers, concurrency: int, done: Callable[[StoredAnswer], None]
    ) -> None:
        """Do the work, at most `concurrency` at a time, and keep each answer as it comes. A failing arm is an answer.

        What is under way when this is cancelled is lost, and nothing else. Closes generators and retrievers.
        """
        left = iter(work)

        async def take() -> None:
            for each in left:
                query = Query(id=DecisionId(each.key), text=each.question)
                arm = self.arms[each.arm]
                outcome = await run_strategy(
                    arm.strategy,
                    query=query,
                    budget=self.budget,
                    retriever=arm.retriever,
                    generator=arm.generator,
                    named=arm.named,
                )
                answers.add(outcome, key=each.key, arm=each.arm, question=each.question)
                done(answers[each.key])

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(take())
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        finally:
            for part in parts_of(self.arms.values()):
                await part.close()

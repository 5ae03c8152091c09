"""Answers of an evaluation. Each is appended to a JSONL file at once, so that an interrupted run can continue."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

from pydantic import TypeAdapter, ValidationError

from ragbandit.additions.evaluation.kept_lines import AppendOnlyFile, first_fault
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, Cost, Json, Outcome, OutcomeStatus


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


def stored_answer_key(question: str, *, arm: str, made_by: Mapping[str, Json], version: str) -> str:
    """Key of an answer: a hash of the values that define the answer. version: see `generator_version`."""
    text = json.dumps([question, arm, dict(made_by), version], sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()


_STORED: Final = TypeAdapter(StoredAnswer)
#: field -> its largest value; the smallest is 0
_MAXIMA: Final = {"steps": 1e9, "made_at": 1e12, "score": 1.0}
_NAMES: Final = frozenset(part.name for part in fields(StoredAnswer)) | {part.name for part in fields(Cost)}


def _read_stored(entry: Mapping[str, Any]) -> StoredAnswer:
    """Read a stored answer. Raises ValueError if a field is missing, unknown, of another type or out of its range."""
    text = json.dumps(entry, ensure_ascii=False)
    stored = _STORED.validate_json(text.encode("utf-8", "replace"), strict=True)  # lone surrogates are replaced
    if unknown := sorted({*entry, *entry["cost"]} - _NAMES):
        raise ValueError(f"{unknown[0]!r} is not a field of an answer")
    for name, most in _MAXIMA.items():
        value = getattr(stored, name)
        if value is not None and not 0 <= value <= most:
            raise ValueError(f"{name} is {value!r:.40}")
    return stored


class AnswerFile:
    """The file of stored answers, for a `with` block. Unless `resume` is set, it must be new or empty."""

    def __init__(self, file: Path, *, resume: bool) -> None:
        self.file = file
        #: key -> dollars of all answers with it, including failed answers that were asked again
        self.dollars = defaultdict[str, float](float)
        self._lines = AppendOnlyFile(file)
        try:
            self.by_key = self._read(resume=resume)
        except BaseException:
            self._lines.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def forget_failed(self) -> None:
        """Treat failed answers as missing. Their lines stay in the file; the last line with a key counts."""
        self.by_key = {key: stored for key, stored in self.by_key.items() if not stored.failed}

    def add(self, outcome: Outcome, *, key: str, arm: ArmName, question: str, score: float | None = None) -> None:
        names = [field.name for field in fields(StoredAnswer) if hasattr(outcome, field.name)]
        given = {name: getattr(outcome, name) for name in names}
        stored = StoredAnswer(key=key, arm=arm, question=question, score=score, **given)
        self._lines.add(asdict(stored))
        self._remember(self.by_key, stored)

    def _remember(self, answers: dict[str, StoredAnswer], stored: StoredAnswer) -> None:
        answers[stored.key] = stored
        if stored.score is None:  # a line with a score repeats the answer of an earlier line
            self.dollars[stored.key] += stored.cost.dollars

    def _read(self, *, resume: bool) -> dict[str, StoredAnswer]:
        answers: dict[str, StoredAnswer] = {}
        for number, entry in self._lines.read():
            try:
                stored = _read_stored(entry)
            except ValueError as error:
                why = first_fault(error) if isinstance(error, ValidationError) else str(error)
                raise self._lines.line_error(number, what="an answer of an evaluation", why=why) from error
            self._remember(answers, stored)
        if answers and not resume:
            remedy = "give --resume to reuse them, or another file with --answers"
            raise InvalidInput(f"the file already has {len(answers)} answers", field=str(self.file), remedy=remedy)
        return answers

"""Logs as files of JSON lines or Parquet. Both have the same keys (docs/replay.md)."""

import glob
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from ragbandit.router.offline.estimation import Progress
from ragbandit.router.offline.logs.records import PARQUET, first_bytes
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, Decision, FeedbackId, Json, Reward


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """A row of a log: a decision and the reward learned from it. Times are seconds since the epoch."""

    decision: Decision
    reward: Reward
    seq: int  #: position in the ledger, from 1; the line number if the file has no seqs
    feedback_ids: tuple[FeedbackId, ...] = ()
    feedback_at: float | None = None  #: when the last feedback of the reward was received; None if not known
    learned_at: float | None = None
    #: unknown keys of the file, for example the pmf of a candidate
    extra: Mapping[str, Json] = field(default_factory=dict)
    line: int = 0  #: line of the file, from 1, for messages; 0 if the row comes from a store
    #: `decided` and `restarts` are copied from the row's `Update`; rows of files have neither
    decided: int | None = None
    restarts: tuple[ArmName, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRow:
    line: int
    field: str
    reason: str
    remedy: str

    @property
    def question_line(self) -> int:
        """Line of the first row of its question, in a table with a row for each answer; in other files its own line."""
        return self.line


@dataclass(frozen=True, kw_only=True, slots=True)
class BadAnswer(BadRow):
    """A row of a table with a row for each answer."""

    first_line: int

    @property
    def question_line(self) -> int:
        return self.first_line


def bad_row(error: InvalidInput, *, line: int, question_line: int | None = None) -> BadRow:
    """The BadRow of an error. question_line: `BadRow.question_line`; None in tables with a row for each question."""
    reason = error.message.removeprefix(f'"{error.field}" ')  # BadRow has the field apart
    row = BadRow(line=line, field=error.field or "", reason=reason, remedy=error.remedy or "")
    return row if question_line is None else BadAnswer(**asdict(row), first_line=question_line)


_STRICT: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False)


def checked_json_object(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object if JSON can represent it: no NaN, no unpaired surrogates. Raises PydanticCustomError."""
    try:
        if value:
            _STRICT.encode(value).encode()
    except (ValueError, TypeError, RecursionError) as error:
        message = "Give values that JSON can represent ({error})"
        raise PydanticCustomError("json", message, {"error": str(error)}) from error
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(checked_json_object)]
Model = TypeVar("Model", bound=BaseModel)


def validate_record(model: type[Model], record: Mapping[str, Any]) -> Model:
    """The record as a model. Raises InvalidInput for its first fault."""
    validated, faults = model_and_faults(model, record)
    if validated is None:
        raise faults[0]
    return validated


def model_and_faults(model: type[Model], record: Mapping[str, Any]) -> tuple[Model | None, list[InvalidInput]]:
    """Returns (the record as a model, or None if it has faults; all its faults)."""
    try:
        return model.model_validate(record), []
    except ValidationError as error:
        required = [name for name, part in model.model_fields.items() if part.is_required()]
        return None, [_fault(fault, required=required) for fault in error.errors(include_url=False)]


def _fault(fault: Mapping[str, Any], *, required: Sequence[str]) -> InvalidInput:
    field = ".".join(part for part in fault["loc"] if isinstance(part, str))
    if fault["type"] == "missing":
        return InvalidInput("the value is missing", field=field, remedy=f"a row needs {', '.join(required)}")
    remedy = fault["msg"].removeprefix("Value error, ").replace("tuple", "list").replace("dictionary", "object")
    if fault["type"] == "string_unicode" or "\x00" in str(fault["input"]):
        remedy = "Remove the NUL or half character"
    return InvalidInput(f"{fault['input']!r:.40} cannot be used", field=field, remedy=remedy)


Row = TypeVar("Row")

#: largest number of rows and kinds of faults that a message names
MOST_NAMED, MOST_KINDS = 5, 10
#: fact of a logged decision: only the probability of the drawn arm is known, and the pmf shares the rest evenly
ONLY_PROPENSITY = "only_propensity"
FORMATS = {"jsonl": (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"), "parquet": (".parquet",)}


def usable_rows(rows: Iterable[Logged | BadRow], *, path: Path, skip: bool, bad: list[BadRow]) -> Iterator[Logged]:
    """Yield the usable rows of a log and put the others into `bad`.

    skip: True continues without unusable rows. After the last row, InvalidInput is raised if `skip` is False and some
    rows are unusable, or if all rows are.
    """
    good, bad[:] = 0, []
    for row in rows:
        if isinstance(row, BadRow):
            bad.append(row)
        else:
            good += 1
            yield row
    check_bad(bad, good=good, path=path, skip=skip)


def check_bad(bad: Sequence[BadRow], *, good: int, path: Path, skip: bool, skippable: bool = True) -> None:
    """Raise InvalidInput if there are unusable rows, unless they are skipped and some rows are good.

    skippable: whether the command has the option --skip-bad.
    """
    if bad and not (skip and good):
        option = ", or give --skip-bad to continue without them" if skippable else ""
        remedy = f"correct them{option}" if good else "correct them: no row is left"
        count, unit = len({row.question_line for row in bad}), "questions" if isinstance(bad[0], BadAnswer) else "rows"
        message = f"{count} of {count + good} {unit} cannot be used: {fault_words(bad)}"
        raise InvalidInput(message, field=str(path), remedy=remedy)


def fault_words(bad: Sequence[BadRow]) -> str:
    """The faults by kind: the first row of each kind with reason and remedy, and the lines of the kind's other rows."""
    kinds: dict[tuple[str, str], list[BadRow]] = {}
    for row in bad:
        kinds.setdefault((row.field, row.remedy), []).append(row)
    parts = []
    for rows in [*kinds.values()][:MOST_KINDS]:
        first, others = rows[0], rows[1:MOST_NAMED]
        part = f"line {first.line} {first.field} {first.reason}".replace("  ", " ") + f" ({first.remedy})"
        more = f" and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
        parts.append(part + (f", also on line {', '.join(str(row.line) for row in others)}{more}" if others else ""))
    if len(kinds) > MOST_KINDS:
        parts.append(f"and {len(kinds) - MOST_KINDS} other kinds of faults")
    return "; ".join(parts)


def with_progress(rows: Iterable[Row], progress: Progress, *, total: int = 0) -> Iterator[Row]:
    for done, row in enumerate(rows, start=1):
        yield row
        if done % 1000 == 0:
            progress("rows read", done, total)


def write_rows(path: str | Path, rows: Iterable[Logged]) -> int:
    """Write a log in the form of its name and return the number of rows. An error leaves the file at `path` unchanged.

    Raises InvalidInput, or ConfigError for a format whose package is not installed.
    """
    return cast("int", import_module(f"ragbandit.router.offline.logs.{form_of_name(path)}").write(path, rows))


def form_of_name(path: str | Path) -> str:
    """The form that the end of the name shows, "jsonl" or "parquet". Raises InvalidInput."""
    for name, suffixes in FORMATS.items():
        if str(path).lower().endswith(suffixes):
            return name
    remedy = f"end the name in {', '.join(chain.from_iterable(FORMATS.values()))}"
    raise InvalidInput("the end of the file's name does not show the format", field=str(path), remedy=remedy)


def form_of(path: Path) -> str:
    """Returns "parquet" for several files, or for a file with this content; else "jsonl"."""
    is_parquet = has_several_files(path) or first_bytes(path).startswith(PARQUET)
    return "parquet" if is_parquet else "jsonl"


_SUFFIX: Final = ".parquet"


def has_several_files(path: Path) -> bool:
    """Whether the path is a folder, or a pattern with *."""
    return "*" in str(path) or path.is_dir()


def files_of(path: Path) -> list[Path]:
    """The Parquet files below a folder, or the files of a pattern, sorted by name."""
    files = path.rglob(f"*{_SUFFIX}") if path.is_dir() else map(Path, glob.glob(str(path), recursive=True))
    return sorted(files)

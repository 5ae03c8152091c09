"""Long tables, which have a row for each answer: the rows of a question become one record of a wide table."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ragbandit.router.offline.logs import BadRow, bad_row, cells
from ragbandit.router.offline.logs.records import Parse
from ragbandit.router.offline.logs.table_columns import TableForm
from ragbandit.router.offline.logs.table_values import (
    ARM,
    COSTS,
    MEASURES,
    arm_name,
    as_amount,
    as_quality,
    column_value,
    is_in_milliseconds,
)
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput

_TELL_APART: Final = "if these are two questions, name the column that identifies a question: --columns id=COLUMN"


@dataclass(kw_only=True, slots=True)
class _Question:
    """A question so far. Keys of a context stand as "context.KEY"."""

    line: int
    #: our key -> (value that all rows share, first line that has it)
    shared: dict[str, tuple[Any, int]] = field(default_factory=dict)
    #: arm -> line of its row
    lines: dict[str, int] = field(default_factory=dict)
    #: our key -> arm -> value
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    is_usable: bool = True

    def record(self) -> dict[str, Any]:
        """The question as a record of a wide table."""
        return {**{key: value for key, (value, _) in self.shared.items()}, **self.values}


class AnswerRows:
    """Groups the rows of a long table by question. It keeps the values of all rows.

    A question is known by its id; without an id, by its text and data set. The faults of all rows go to `bad`,
    and a question with a fault is left out.
    """

    def __init__(self, form: TableForm, *, bad: list[BadRow]) -> None:
        self.form, self.bad = form, bad
        self._questions: dict[str, _Question] = {}
        #: arm -> its name in the file
        self._arms: dict[str, str] = {}

    def read(self, rows: Iterable[tuple[int, Parse]]) -> Iterator[tuple[int, Parse]]:
        """Yield (first line, parser of a wide record) of every usable question, in the order of the file."""
        for line, parse in rows:
            try:
                self._add(parse(), line=line)
            except InvalidInput as error:
                self.bad.append(bad_row(error, line=line, question_line=line))
        for question in self._questions.values():
            if question.is_usable:
                yield question.line, partial(question.record)

    @property
    def remark(self) -> str | None:
        """A text that lists the arms whose name in the file differs; None if none differs."""
        renamed = [f"{arm} is {theirs} of the file" for arm, theirs in self._arms.items() if arm != theirs]
        return ", ".join(renamed) or None

    def _add(self, entry: Mapping[str, Any], *, line: int) -> None:
        faults: list[InvalidInput] = []
        shared = self._shared(entry, faults=faults)
        named = shared.pop("id", None)
        key = canonical([shared.get("question"), shared.get("dataset")] if named is None else named)
        question = self._questions.setdefault(key, _Question(line=line))
        if named is not None:
            question.shared.setdefault("id", (named, line))
        for ours, value in shared.items():
            known, first = question.shared.setdefault(ours, (value, line))
            if known != value:
                reason = f"{value!r:.40} differs from line {first} of the same question"
                remedy = f"all rows of a question need the same value; {_TELL_APART}"
                faults.append(InvalidInput(reason, field=self._column(ours), remedy=remedy))
        arm = self._arm(entry, faults=faults)
        if arm is not None and question.lines.setdefault(arm, line) != line:
            reason = f"{arm!r} has a row for this question on line {question.lines[arm]} too"
            remedy = f"keep one row for each question and arm; {_TELL_APART}"
            faults.append(InvalidInput(reason, field=self._column("arm"), remedy=remedy))
        values = self._values(entry, faults=faults)
        if faults or arm is None:
            question.is_usable = False
            self.bad += [bad_row(error, line=line, question_line=question.line) for error in faults]
            return
        for ours, value in values.items():
            question.values.setdefault(ours, {})[arm] = value

    def _column(self, key: str) -> str:
        """The column of the file, for messages."""
        return self.form.columns.get(key) or self.form.context.get(key.removeprefix("context."), key)

    def _cell(self, entry: Mapping[str, Any], key: str) -> Any:
        """The value of our key; None if it is missing or blank."""
        column = self.form.columns.get(key)
        value = None if column is None else column_value(entry, column)
        return None if cells.is_empty(value) or (isinstance(value, str) and not value.strip()) else value

    def _converted(
        self, entry: Mapping[str, Any], key: str, *, kind: Callable[[Any], Any], faults: list[InvalidInput]
    ) -> Any:
        """The value of our key; None if it is missing or cannot be used, which adds to `faults`."""
        column, value = self._column(key), self._cell(entry, key)
        try:
            if value is None:
                remedy = f"every row has a value of {column} ({key})" if column != key else "every row has a value"
                raise InvalidInput("the value is missing", field=column, remedy=remedy)
            return cells.convert_value(kind, value, field=column)
        except InvalidInput as error:
            faults.append(error)
            return None

    def _shared(self, entry: Mapping[str, Any], *, faults: list[InvalidInput]) -> dict[str, Any]:
        """The values that all rows of a question share, if they are given; "context.KEY" -> value of the context."""
        shared = {"question": self._converted(entry, "question", kind=_question, faults=faults)}
        for ours in ("id", "dataset", "hops"):
            if self._cell(entry, ours) is not None:
                kind = cells.whole if ours == "hops" else cells.text
                shared[ours] = self._converted(entry, ours, kind=kind, faults=faults)
        context, wrong = self.form.context_of(entry)
        faults += wrong
        shared |= {f"context.{key}": value for key, value in context.items()}
        return {ours: value for ours, value in shared.items() if value is not None}

    def _arm(self, entry: Mapping[str, Any], *, faults: list[InvalidInput]) -> str | None:
        """The arm of a row; _ replaces signs that an arm's name cannot have. None for a fault, which joins `faults`."""
        theirs = self._converted(entry, "arm", kind=cells.text, faults=faults)
        if theirs is None:
            return None
        theirs = theirs.strip()
        arm = arm_name(theirs)
        reason = None
        if not ARM.fullmatch(arm):
            reason, remedy = (
                f"{theirs!r:.80} is not a name of an arm",
                "use 1 to 64 letters, digits, dots, dashes, underscores",
            )
        elif self._arms.setdefault(arm, theirs) != theirs:
            reason, remedy = f"{theirs!r:.80} and {self._arms[arm]!r:.80} are both called {arm}", "rename one of them"
        if reason is not None:
            faults.append(InvalidInput(reason, field=self._column("arm"), remedy=remedy))
            return None
        return arm

    def _values(self, entry: Mapping[str, Any], *, faults: list[InvalidInput]) -> dict[str, float]:
        """The outcome, costs and measures of a row. Seconds and measures may be missing, since they serve reports."""
        values = {}
        for ours in ("correct", *COSTS, *MEASURES):
            if ours not in self.form.columns:
                continue
            is_optional = ours == "seconds" or ours in MEASURES
            if is_optional and self._cell(entry, ours) is None:
                continue
            kind = as_amount if ours in COSTS else as_quality
            value = self._converted(entry, ours, kind=kind, faults=faults)
            if value is not None:
                values[ours] = value / 1000.0 if is_in_milliseconds(ours, column=self._column(ours)) else value
        return values


def _question(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("Give a text")
    return value

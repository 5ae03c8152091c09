"""Columns of routing tables: which column of a file has which of our values, as named by the user or by usual names.

A file has a row for each question, with an object or columns by arm ("wide"), or a row for each answer, whose arm is in
a column ("long"). A dot in the name of a column leads into an object: `evaluation_result.score`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.offline.logs import cells
from ragbandit.router.offline.logs.arm_columns import ArmColumns, Path, arm_columns, value_names
from ragbandit.router.offline.logs.records import plain_name
from ragbandit.router.offline.logs.table_values import (
    BY_ARM,
    COSTS,
    OF_TASK,
    SIGNS,
    USUAL,
    column_value,
    is_in_milliseconds,
)
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import known_choices

_CONTEXT: Final = "context."
#: records that decide the form of a file
SAMPLE: Final = 1000


def parse_columns(texts: Sequence[str]) -> dict[str, str]:
    """Parse "question=prompt,arm=model". Returns our key -> column; "" for a key that is not to be read, as "dollars=".

    Raises InvalidInput with all faults at once.
    """
    named: dict[str, str] = {}
    faults = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        ours, equals, theirs = (one.strip() for one in part.partition("="))
        if not part:
            continue
        if not (equals and ours):
            faults.append(f"{part!r:.80} is not OURS=COLUMN")
        elif ours in named:
            faults.append(f"{ours!r} is given twice")
        elif ours not in (*OF_TASK, "arm", *BY_ARM) and not (
            _of_arm(ours) or ours.removeprefix(_CONTEXT) not in (ours, "")
        ):
            faults.append(
                f"{ours!r:.80} is no value of a table: {known_choices((*OF_TASK, 'arm', *BY_ARM), given=ours)}"
            )
        else:
            named[ours] = theirs
    if faults:
        remedy = "for example --columns question=prompt,arm=model,correct=score,dollars=cost_usd"
        raise InvalidInput("; ".join(faults), field="columns", remedy=remedy)
    return named


def _of_arm(key: str) -> tuple[str, str] | None:
    """(our key, arm) of "correct.mini"; None for another name."""
    head, _, arm = key.partition(".")
    return (head, arm) if arm and head in BY_ARM else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TableForm:
    """How the records of a file are read."""

    is_long: bool
    #: our key -> column of the file, for keys whose column has another name or was named; in a long table for all keys
    columns: Mapping[str, str]
    #: declared key of the context -> column of the file
    context: Mapping[str, str]
    schema: ContextSchema = field(default_factory=dict)
    #: where a wide table has the values of its arms, if they stand in columns of other names than `correct.ARM`
    arms: ArmColumns = field(default_factory=ArmColumns)

    @property
    def remark(self) -> str | None:
        """How the file was read, in words; None if all names are ours and there is a row for each question."""
        others = [
            f"{ours} from {theirs}{_scale_note(ours, theirs)}"
            for ours, theirs in self.columns.items()
            if ours != theirs
        ]
        others += [f"context {key} from {column}" for key, column in self.context.items()] + self.arms.remarks
        read = ", ".join(others)
        if self.is_long:
            return "the table has a row for each answer" + (f": {read}" if read else "")
        return f"columns of the table: {read}" if read else None

    def context_of(self, entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[InvalidInput]]:
        """Returns (declared keys -> values of their types, without missing ones; faults)."""
        values, faults = dict[str, Any](), []
        for key, column in self.context.items():
            cell = column_value(entry, column)
            if cells.is_empty(cell):
                continue
            kind = _KINDS[self.schema[key].type] if key in self.schema else cells.parsed_cell
            try:
                values[key] = cells.convert_value(kind, cell, field=column)
            except InvalidInput as error:
                faults.append(error)
        return values, faults

    def with_our_keys(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """A record of a wide table with our keys. Raises a group of InvalidInput for values that cannot be used."""
        changed = dict(entry)
        for ours, theirs in self.columns.items():
            if not cells.is_empty(value := column_value(entry, theirs)):
                changed[ours] = value
            if ours in BY_ARM:
                for column in [column for column in entry if _is_below(column, theirs)]:
                    changed[ours + column[len(theirs) :]] = changed.pop(column)
        changed |= self.arms.values(entry)
        values, faults = self.context_of(entry)
        if faults:
            raise ExceptionGroup("context", faults)
        given = cells.parsed_cell(entry.get("context"))
        if isinstance(given, dict):
            changed["context"] = {**values, **given}
        elif cells.is_empty(given):
            changed.pop("context", None)
            changed = {**{f"{_CONTEXT}{key}": value for key, value in values.items()}, **changed}
        return changed


def _category(value: Any) -> str:
    return cells.text(str(value).lower() if isinstance(value, bool) else value)


#: type of a declared key -> conversion of a cell
_KINDS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "number": cells.cell_number,
    "boolean": cells.flag,
    "category": _category,
    "words": cells.texts,
}


def table_form(sample: Sequence[Mapping[str, Any]], *, named: Mapping[str, str], schema: ContextSchema) -> TableForm:
    """The form of a file with these first records. Raises InvalidInput with the names of all missing columns.

    named: our key -> column, as the user names them. schema: columns with the name of a declared key become context.
    """
    known = _SampleColumns(sample)
    asked = {ours: known.find(theirs, key=ours) for ours, theirs in named.items() if theirs}
    missing = [f"{named[ours]} ({ours})" for ours, column in asked.items() if column is None]
    if missing and sample:  # if no record is usable, the faults of the records are reported later
        raise known.lacking(", ".join(missing), remedy="name columns of the file, such as --columns arm=COLUMN")
    unread = {ours for ours, theirs in named.items() if not theirs}
    columns = {ours: column for ours, column in asked.items() if column is not None}
    context = {ours.removeprefix(_CONTEXT): columns.pop(ours) for ours in [*columns] if ours.startswith(_CONTEXT)}
    arms = _arms_of(known, columns=columns, unread=unread)
    has_arm = "arm" not in unread and known.usual("arm") is not None
    is_wide = known.is_wide(columns.get("correct")) or bool(
        arms.paths and not known.usual("correct", with_numbers=True)
    )
    is_long = "arm" in columns or (has_arm and not is_wide)
    columns = {
        ours: column
        for ours, column in columns.items()
        if _of_arm(ours) is None and not known.is_value(column, key=ours)
    }
    if is_long:
        columns = _long_columns(known, columns=columns, unread=unread)
    else:
        columns = _wide_columns(known, columns=columns, arms=arms)
    # a column that differs between the arms is no context
    of_answers = {column for ours, column in columns.items() if ours not in OF_TASK} | {*BY_ARM, "arm"}
    for key, declared in schema.items():
        column = known.find(key)
        if column is not None and key not in context and column not in of_answers and not declared.is_computed:
            context[key] = column
    if is_long:
        within = {name.removeprefix(_CONTEXT): name for name in known.names if name.startswith(_CONTEXT)}
        context = {**within, **context}
    arms = ArmColumns() if is_long else arms
    return TableForm(is_long=is_long, columns=columns, context=context, schema=schema, arms=arms)


def _long_columns(known: "_SampleColumns", *, columns: Mapping[str, str], unread: Collection[str]) -> dict[str, str]:
    """The columns of a long table. Raises InvalidInput if the question or the outcome has no column."""
    all_columns = dict(columns)
    for ours in (*OF_TASK, "arm", *BY_ARM):
        column = known.usual(ours, with_numbers=ours in BY_ARM)
        if ours not in all_columns and ours not in unread and column is not None:
            all_columns[ours] = column
    if "cost" not in columns and any(term in all_columns for term in ("dollars", "steps")):
        all_columns.pop("cost", None)  # its unit is unknown, and the other cost has a unit
    lacking = [ours for ours in ("question", "correct") if ours not in all_columns]
    if lacking:
        example = ",".join(f"{ours}=COLUMN" for ours in lacking)
        raise known.lacking(
            " and ".join(lacking), remedy=f"name {'them' if len(lacking) > 1 else 'it'}: --columns {example}"
        )
    return all_columns


def _wide_columns(known: "_SampleColumns", *, columns: Mapping[str, str], arms: ArmColumns) -> dict[str, str]:
    """The named columns of a wide table, and those with usual names. Our own names have precedence.

    Raises InvalidInput if no column has outcomes.
    """
    all_columns = dict(columns)
    if "question" not in columns and "question" not in known.names and (column := known.usual("question")):
        all_columns["question"] = column
    if "correct" in arms.paths:
        all_columns |= {"dataset": column} if "dataset" not in columns and (column := known.usual("dataset")) else {}
    elif (outcome := _outcome_head(known, columns)) != "correct":
        all_columns["correct"] = outcome
    elif known.sample and "correct" not in known.names and not known.arms_below("correct"):
        raise known.lacking("correct", remedy=_ARMS_REMEDY)
    return all_columns


_ARMS_REMEDY: Final = (
    "give each model's outcome and cost as the columns correct.MODEL and dollars.MODEL, or name those of the file: "
    "--columns correct.a=COLUMN,correct.b=COLUMN,dollars.a=COLUMN,dollars.b=COLUMN; for a row per answer, "
    "--columns arm=COLUMN,correct=COLUMN"
)


def _outcome_head(known: "_SampleColumns", columns: Mapping[str, str]) -> str:
    """The name of the object or of the columns with outcomes by arm, or "correct" if no other one has them."""
    outcome = columns.get("correct", "correct")
    return outcome if known.arms_below(outcome) else next(filter(known.arms_below, USUAL["correct"]), outcome)


def _arms_of(known: "_SampleColumns", *, columns: Mapping[str, str], unread: Collection[str]) -> ArmColumns:
    """Where a wide table has its arms' values, except those that `_SampleColumns.arms_below` finds in objects."""
    of_arms: dict[str, dict[str, Path]] = {}
    for ours, column in columns.items():
        if (of_arm := _of_arm(ours)) is not None:
            of_arms.setdefault(of_arm[0], {})[of_arm[1]] = (column,)
    values = {ours: column for ours, column in columns.items() if known.is_value(column, key=ours)}
    below = known.arms_below(_outcome_head(known, columns))
    outcomes = of_arms.get("correct", {}) or dict.fromkeys(below, ())
    found = arm_columns(known.sample, outcomes=outcomes, named=values).paths
    has_cost = any(ours in columns or below & known.arms_below(ours) for ours in COSTS)
    kept = {
        ours: paths
        for ours, paths in found.items()
        if ours not in unread and (ours in values or not (ours in COSTS and has_cost)) and (ours in COSTS or not below)
    }
    return ArmColumns(paths={**kept, **of_arms})


class _SampleColumns:
    """The columns of a file that have a value in a sample of its records."""

    def __init__(self, sample: Sequence[Mapping[str, Any]]) -> None:
        self.sample = sample
        self.names = [*dict.fromkeys(name for entry in sample for name in _names(entry))]
        self._values = value_names(sample)
        self._plain: dict[str, str] = {}
        for name in self.names:
            self._plain.setdefault(plain_name(name), name)

    def find(self, name: str, *, key: str = "") -> str | None:
        """The column with this name, also in another case or with other signs. key: our key for the column's values."""
        if name in self.names:
            return name
        if key in BY_ARM and any(_is_below(column, name) for column in self.names):
            return name
        if self.is_value(name, key=key):
            return name
        return self._plain.get(plain_name(name)) if plain_name(name) else None

    def is_value(self, name: str, *, key: str) -> bool:
        """Whether columns are named by an arm and this name of a value, as MODEL|total_cost. key: our key of values."""
        is_column = name in self.names or plain_name(name) in self._plain
        is_head = not is_column and not any(_is_below(column, name) for column in self.names)
        return key in BY_ARM and is_head and plain_name(name) in self._values

    def usual(self, key: str, *, with_numbers: bool = False) -> str | None:
        """The first column with our name or a usual one. with_numbers: only if it has numbers or words for numbers."""
        columns = filter(None, map(self.find, (key, *USUAL.get(key, ()))))
        return next((column for column in columns if not with_numbers or self._has_numbers(column)), None)

    def arms_below(self, name: str) -> frozenset[str]:
        """The arms of an object by arm, or of several columns with numbers, one per arm; empty for other columns."""
        objects = (cells.parsed_cell(entry.get(name)) for entry in self.sample)
        arms = frozenset(str(arm) for value in objects if isinstance(value, dict) for arm in value)
        if arms or name in self.names:
            return arms
        below = [column for column in self.names if _is_below(column, name) and self._has_numbers(column)]
        return frozenset(column[len(name) + 1 :] for column in below) if len(below) > 1 else arms

    def is_wide(self, named: str | None) -> bool:
        """Whether each arm has its own outcomes in a record. named: the outcome's column; None for the usual names."""
        for name in [named] if named else ["correct", *USUAL["correct"]]:
            if self.arms_below(name):
                return True
            column = self.find(name)
            if column is not None and self._has_numbers(column):
                return False
        return False

    def _has_numbers(self, column: str) -> bool:
        for entry in self.sample:
            cell = column_value(entry, column)
            if cells.is_empty(cell):
                continue
            try:
                cells.outcome(cell)
            except (ValueError, TypeError):
                continue
            return True
        return False

    def lacking(self, value_name: str, *, remedy: str) -> InvalidInput:
        named = ", ".join(f"{name:.80}" for name in self.names[:40]) + (" ..." if len(self.names) > 40 else "")
        return InvalidInput(f"the file has no column {value_name}; it has {named}", field="columns", remedy=remedy)


def _names(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of columns with a value; of members of an object too, after a dot."""
    for name, value in entry.items():
        if cells.is_empty(value):
            continue
        yield name
        inner = cells.parsed_cell(value) if isinstance(value, str) and value.lstrip().startswith("{") else value
        if isinstance(inner, Mapping):
            yield from (f"{name}.{part}" for part, member in inner.items() if not cells.is_empty(member))


def _is_below(column: str, head: str) -> bool:
    return column.startswith(head) and column[len(head) : -1][:1] in {*SIGNS}


def _scale_note(key: str, column: str) -> str:
    return " / 1000" if is_in_milliseconds(key, column=column) else ""

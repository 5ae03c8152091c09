"""Columns of routing tables: which column of a file has which of our values, as named by the user or by usual names.

A file has a row for each question, with an object or columns by arm ("wide"), or a row for each answer, whose arm is in
a column ("long"). A dot in the name of a column leads into an object: `evaluation_result.score`.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.offline.logs import cells
from ragbandit.router.offline.logs.records import plain_name
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.types import Cost

#: keys with costs by arm. "seconds" must come after the longer names, see `nested`
COSTS: Final = ("steps", "cost", *sorted(Cost.__dataclass_fields__, reverse=True), "seconds")
#: key with another measure of quality by arm, as `ragbandit.router.learning.reward.judged` names it -> its head in the
#: papers' tables
MEASURES: Final = {
    "exact_match": "EM",
    "f1": "F1",
    "accuracy": "Acc",
    "str_em": "str-em",
    "str_hit": "str-hit",
    "answered": "Q-R",
    "word_recall": "T-R",
    "word_precision": "T-P",
    "word_f1": "T-F1",
    "character_f1": "char F1",
    "bleu": "BLEU",
}
#: keys whose values are objects by arm in a wide table
BY_ARM: Final = ("correct", *COSTS, *MEASURES)
#: keys that all answers of a question share
OF_TASK: Final = ("id", "question", "dataset", "hops")
#: signs between a key and an arm in the names of columns
SIGNS: Final = "._:/|"
#: our key -> usual names of its column, besides our own, in order of precedence
USUAL: Final[Mapping[str, Sequence[str]]] = {
    "question": ("prompt", "query", "user_query", "user_prompt", "instruction", "input", "task", "text"),
    "arm": ("model", "model_name", "model_id", "llm", "llm_name", "llm_selected", "strategy", "pipeline"),
    "correct": (
        "score",
        "is_correct",
        "quality",
        "performance",
        "evaluation_result.score",
        "resolved",
        "passed",
        "pass",
        "accuracy",
        "exact_match",
    ),
    "id": (
        "task_id",
        "question_id",
        "prompt_id",
        "query_id",
        "sample_id",
        "instance_id",
        "example_id",
        "item_id",
        "global_index",
    ),
    "dataset": ("dataset_name", "eval_name", "benchmark", "bench"),
    "dollars": ("cost_usd", "usd", "price_usd", "total_cost_usd", "inference_cost", "evaluation_result.inference_cost"),
    "cost": ("total_cost",),
    "seconds": ("latency_ms", "latency_s", "latency", "duration_ms", "duration_s", "duration", "elapsed"),
}
#: usual names that a wide table may have for another purpose
_LONG_ONLY: Final = ("arm", "id", "dataset", "seconds")
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
        elif ours not in (*OF_TASK, "arm", *BY_ARM) and not (ours.startswith(_CONTEXT) and ours != _CONTEXT):
            faults.append(
                f"{ours!r:.80} is no value of a table: {known_choices((*OF_TASK, 'arm', *BY_ARM), given=ours)}"
            )
        else:
            named[ours] = theirs
    if faults:
        remedy = "for example --columns question=prompt,arm=model,correct=score,dollars=cost_usd"
        raise InvalidInput("; ".join(faults), field="columns", remedy=remedy)
    return named


@dataclass(frozen=True, kw_only=True, slots=True)
class TableForm:
    """How the records of a file are read."""

    is_long: bool
    #: our key -> column of the file, for keys whose column has another name or was named; in a long table for all keys
    columns: Mapping[str, str]
    #: declared key of the context -> column of the file
    context: Mapping[str, str]
    schema: ContextSchema = field(default_factory=dict)

    @property
    def remark(self) -> str | None:
        """How the file was read, in words; None if all names are ours and there is a row for each question."""
        others = [
            f"{ours} from {theirs}{_scaled(ours, theirs)}" for ours, theirs in self.columns.items() if ours != theirs
        ]
        others += [f"context {key} from {column}" for key, column in self.context.items()]
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

    def renamed(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """A record of a wide table with our keys. Raises a group of InvalidInput for a context of another type."""
        changed = dict(entry)
        for ours, theirs in self.columns.items():
            if not cells.is_empty(value := column_value(entry, theirs)):
                changed[ours] = value
            if ours in BY_ARM:
                for column in [column for column in entry if _is_below(column, theirs)]:
                    changed[ours + column[len(theirs) :]] = changed.pop(column)
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
    known = _Known(sample)
    asked = {ours: known.find(theirs, of=ours) for ours, theirs in named.items() if theirs}
    missing = [f"{named[ours]} ({ours})" for ours, column in asked.items() if column is None]
    if missing and sample:  # without a usable record the records' own faults are named
        raise known.lacking(", ".join(missing), remedy="name columns of the file, such as --columns arm=COLUMN")
    unread = {ours for ours, theirs in named.items() if not theirs}
    columns = {ours: column for ours, column in asked.items() if column is not None}
    context = {ours.removeprefix(_CONTEXT): columns.pop(ours) for ours in [*columns] if ours.startswith(_CONTEXT)}
    has_arm = "arm" not in unread and known.usual("arm") is not None
    is_long = "arm" in columns or (has_arm and not known.is_wide(columns.get("correct")))
    columns = (_long if is_long else _wide)(known, columns=columns, unread=unread)
    # what differs between the arms is no context
    of_answers = {column for ours, column in columns.items() if ours not in OF_TASK} | {*BY_ARM, "arm"}
    for key, declared in schema.items():
        column = known.find(key)
        if column is not None and key not in context and column not in of_answers and not declared.is_own:
            context[key] = column
    if is_long:
        within = {name.removeprefix(_CONTEXT): name for name in known.names if name.startswith(_CONTEXT)}
        context = {**within, **context}
    return TableForm(is_long=is_long, columns=columns, context=context, schema=schema)


def _long(known: "_Known", *, columns: Mapping[str, str], unread: Collection[str]) -> dict[str, str]:
    """The columns of a long table. Raises InvalidInput if the question or the outcome has no column."""
    all_columns = dict(columns)
    for ours in (*OF_TASK, "arm", *BY_ARM):
        column = known.usual(ours, with_numbers=ours in BY_ARM)
        if ours not in all_columns and ours not in unread and column is not None:
            all_columns[ours] = column
    if "cost" not in columns and any(term in all_columns for term in ("dollars", "steps")):
        all_columns.pop("cost", None)  # its unit is not known, and another cost is
    lacking = [ours for ours in ("question", "correct") if ours not in all_columns]
    if lacking:
        example = ",".join(f"{ours}=COLUMN" for ours in lacking)
        raise known.lacking(
            " and ".join(lacking), remedy=f"name {'them' if len(lacking) > 1 else 'it'}: --columns {example}"
        )
    return all_columns


def _wide(known: "_Known", *, columns: Mapping[str, str], unread: Collection[str]) -> dict[str, str]:
    """The columns of a wide table with those that it has under usual names. Our own names have precedence."""
    all_columns = dict(columns)
    if "question" not in columns and "question" not in known.names and (column := known.usual("question")):
        all_columns["question"] = column
    outcome = columns.get("correct", "correct")
    if not known.arms_below(outcome):
        outcome = next(filter(known.arms_below, USUAL["correct"]), outcome)
        if outcome != "correct":
            all_columns["correct"] = outcome
    arms = known.arms_below(outcome)
    if "dollars" not in unread and not any(ours in all_columns or arms & known.arms_below(ours) for ours in COSTS):
        dollars = next((name for name in USUAL["dollars"] if arms & known.arms_below(name)), None)
        all_columns |= {} if dollars is None else {"dollars": dollars}
    return all_columns


class _Known:
    """The columns of a file that have a value in a sample of its records."""

    def __init__(self, sample: Sequence[Mapping[str, Any]]) -> None:
        self.sample = sample
        self.names = [*dict.fromkeys(name for entry in sample for name in _names(entry))]
        self._plain: dict[str, str] = {}
        for name in self.names:
            self._plain.setdefault(plain_name(name), name)

    def find(self, name: str, *, of: str = "") -> str | None:
        """The column with this name, also in another case or with other signs. of: our key, which may be an object."""
        if name in self.names:
            return name
        if of in BY_ARM and any(_is_below(column, name) for column in self.names):
            return name
        return self._plain.get(plain_name(name)) if plain_name(name) else None

    def usual(self, ours: str, *, with_numbers: bool = False) -> str | None:
        """The first column with our name or a usual one. with_numbers: only if it has numbers or words for numbers."""
        columns = filter(None, map(self.find, (ours, *USUAL.get(ours, ()))))
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
        """Whether the outcomes stand by arm. named: the outcome's column; None for the usual names."""
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

    def lacking(self, what: str, *, remedy: str) -> InvalidInput:
        named = ", ".join(f"{name:.80}" for name in self.names[:40]) + (" ..." if len(self.names) > 40 else "")
        return InvalidInput(f"the file has no column {what}; it has {named}", field="columns", remedy=remedy)


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


def column_value(entry: Mapping[str, Any], column: str) -> Any:
    """The value of a column, or of a member of an object; None if there is none."""
    inner: Any = entry
    while isinstance(inner, Mapping):
        if column in inner:
            return inner[column]
        head, dot, column = column.partition(".")
        inner = cells.parsed_cell(inner.get(head)) if dot else None
    return None


#: name of a column whose times are milliseconds
_MILLISECONDS: Final = re.compile(r"(?:.*[\W_])?(?:ms|milliseconds|millis)|.*Ms", re.DOTALL)


def is_in_milliseconds(ours: str, *, column: str) -> bool:
    return ours.startswith("seconds") and _MILLISECONDS.fullmatch(column) is not None


def _scaled(ours: str, theirs: str) -> str:
    return " / 1000" if is_in_milliseconds(ours, column=theirs) else ""

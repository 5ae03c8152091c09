"""Full-information routing tables: the result of every arm for every question, a record per question.

    {"id": "q1", "question": "?", "correct": {"a": 0, "b": 1}, "steps": {"a": 0, "b": 2.5}, "hops": 1,
     "context": {"tier": "pro"}, "dataset": "nq", "seconds": {"a": 0.4, "b": 3.1}, "dollars": {"a": 0.001, "b": 0.02},
     "exact_match": {"a": 0, "b": 1}, "f1": {"a": 0.2, "b": 1}, "accuracy": {"a": 0, "b": 1}}

Only `question`, `correct` and one cost are needed; other keys are ignored. A cost is `steps`, `seconds`, a field of
Cost, or `cost`, in the unit of the reward. The measures after the costs serve reports and labels (`with_measure`). The
members of an object may be columns: `correct.a`, `correct_a`. The arms are those of most rows. `records` lists
the forms of files. A file may have a row for each answer (`answer_rows`), and other names of columns (`table_columns`).
In a log that is made from a table, a question with K arms becomes K rows, one for each arm with probability 1 / K: the
mean of what a uniform draw would log. These rows are not independent, so intervals that count them as K questions would
be too narrow.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.learning.reward import explicit_reward
from ragbandit.router.offline.logs import (
    BadRow,
    JsonObject,
    Logged,
    bad_row,
    cells,
    check_bad,
    model_and_faults,
    validate_record,
)
from ragbandit.router.offline.logs.answer_rows import AnswerRows
from ragbandit.router.offline.logs.question_forms import question_records
from ragbandit.router.offline.logs.records import Parse, nest_columns
from ragbandit.router.offline.logs.table_columns import SAMPLE, TableForm, table_form
from ragbandit.router.offline.logs.table_values import ARM, BY_ARM, COSTS, MEASURES, MOST_AMOUNT, SIGNS, USUAL
from ragbandit.router.policies.draw import seed_of
from ragbandit.router.serving.checks.questions import checked_text
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import locate_errors, rereadable
from ragbandit.shared.types import (
    IMPORTED,
    MAX_ARMS,
    ArmName,
    Decision,
    DecisionId,
    Features,
    Feedback,
    FeedbackId,
    Matrix,
    PolicyLabel,
    Query,
    TableRow,
    own_feedback_id,
)

Row = TypeVar("Row")
_Name = Annotated[str, StringConstraints(pattern=r"\S"), BeforeValidator(cells.text)]
_AsNumber = BeforeValidator(cells.cell_number)


class LabelledRow(BaseModel):
    model_config = ConfigDict(strict=True)

    id: _Name  #: default "<kind>-<line>", for example "row-3"
    question: str
    dataset: _Name | None = None
    #: number of pieces of evidence that the question needs
    hops: Annotated[int, Field(ge=0), BeforeValidator(cells.whole)] | None = None


def question_rows(
    path: Path,
    make: Callable[[Mapping[str, Any], LabelledRow], Row],
    *,
    limit: int | None = None,
    kind: str = "row",
) -> list[Row]:
    """Call `make` for the first `limit` records, or for all. Forms: see `question_forms`.

    Raises InvalidInput, which names all unusable records; for a single one, its field is "<file>:<line> <key>".
    """
    bad: list[BadRow] = []
    with rereadable(path) as readable:
        numbered = _rows_of(question_records(readable), make, bad=bad, limit=limit, kind=kind)
    _refuse(bad, good=len(numbered), path=path)
    if not numbered:
        raise InvalidInput("the file has no rows", field=str(path), remedy="give a file with at least one question")
    return [row for _, row in numbered]


def _rows_of(
    records: Iterable[tuple[int, Parse]],
    make: Callable[[Mapping[str, Any], LabelledRow], Row],
    *,
    bad: list[BadRow],
    limit: int | None = None,
    kind: str = "row",
) -> list[tuple[int, Row]]:
    """(line, result of `make`) of every usable record. bad: receives the faults of unusable records."""
    rows: list[tuple[int, Row]] = []
    line_of: dict[str, int] = {}
    for number, parse in records:
        if limit is not None and len(rows) == limit:
            break
        with _collect_faults(bad, line=number):
            entry = parse()
            if entry.get("question") is None:
                remedy = "give every line a text as its question"
                raise InvalidInput("the value is missing", field="question", remedy=remedy)
            question = checked_text(entry["question"], field="question")
            present = {name: value for name, value in entry.items() if not cells.is_empty(value)}
            labelled = validate_record(LabelledRow, {"id": f"{kind}-{number}", **present, "question": question})
            row = make(entry, labelled)
            if labelled.id in line_of:
                message = f"{labelled.id!r} is on line {line_of[labelled.id]} too"
                raise InvalidInput(message, field="id", remedy="give every question an id of its own")
            line_of[labelled.id] = number
            rows.append((number, row))
    return rows


def _refuse(bad: Sequence[BadRow], *, good: int, path: Path, skippable: bool = False) -> None:
    """Raise InvalidInput if there are unusable rows. The error's field names a single unusable row."""
    if len(bad) == 1:
        [row] = bad
        raise InvalidInput(row.reason, field=f"{path}:{row.line} {row.field}".rstrip(), remedy=row.remedy or None)
    check_bad(bad, good=good, path=path, skip=False, skippable=skippable)


@contextmanager
def _collect_faults(bad: list[BadRow], *, line: int, is_long: bool = False) -> Iterator[None]:
    """A block whose faults go to `bad`: an InvalidInput, or an exception group of several."""
    as_bad = partial(bad_row, line=line, question_line=line if is_long else None)
    try:
        yield
    except InvalidInput as error:
        bad.append(as_bad(error))
    except ExceptionGroup as group:
        bad += [as_bad(error) for error in group.exceptions if isinstance(error, InvalidInput)]


#: value of the fact IMPORTED in decisions made from a table
ORIGIN = "table"
#: arm -> amount of a cost of its answer, in the range that the service accepts
_Amounts = dict[ArmName, Annotated[float, Field(ge=0.0, le=MOST_AMOUNT), _AsNumber]]
_Quality = Annotated[float, Field(ge=0.0, le=1.0), BeforeValidator(cells.outcome)]


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    correct: Annotated[dict[ArmName, _Quality], Field(max_length=MAX_ARMS), BeforeValidator(cells.parsed_cell)]
    steps: Annotated[_Amounts, BeforeValidator(cells.parsed_cell)] = {}
    #: term -> arm -> amount; the term is "cost" if the file does not name it
    costs: dict[str, _Amounts]
    #: measure -> arm -> value
    measures: dict[str, dict[ArmName, _Quality]]
    context: Annotated[JsonObject, BeforeValidator(cells.parsed_cell)] | None = None


def _table_row(entry: Mapping[str, Any], labelled: LabelledRow) -> TableRow:
    entry = nest_columns(entry, heads=(*BY_ARM, "context"))
    if "correct" not in entry:  # columns such as correct_a; steps_taken is left out unless an arm has this name
        columns = nest_columns(entry, heads=BY_ARM, signs=SIGNS.removeprefix("."))
        arms = columns.get("correct", {})
        heads = [head for head in BY_ARM if head in columns and head not in entry]
        of_arms = {head: {arm: columns[head][arm] for arm in arms if arm in columns[head]} for head in heads}
        entry = {**entry, **of_arms}
    if isinstance(cells.parsed_cell(entry.get("correct")), int | float | str):
        remedy = (
            "give one per arm: {arm: quality}, or the columns correct.ARM; for a row per answer, --columns arm=COLUMN"
        )
        raise InvalidInput("is not an object by arm", field="correct", remedy=remedy)
    others = {"costs": _objects(entry, [name for name in COSTS if name != "steps"])}
    line, faults = model_and_faults(_Line, {**entry, **others, "measures": _objects(entry, tuple(MEASURES))})
    if line is None:
        raise ExceptionGroup("faults of a row", faults)
    return TableRow(
        id=labelled.id,
        question=labelled.question,
        correct=line.correct,
        steps=line.steps,
        hops=labelled.hops,
        context=dict(sorted((line.context or {}).items())),
        dataset=labelled.dataset,
        seconds=line.costs.pop("seconds", {}),
        costs=line.costs,
        measures=line.measures,
    )


def _objects(entry: Mapping[str, Any], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The objects under these keys. Other values do not count: another file may use the key for something else."""
    objects = {name: cells.parsed_cell(entry.get(name)) for name in names}
    return {name: amounts for name, amounts in objects.items() if amounts and isinstance(amounts, dict)}


def missing_steps() -> InvalidInput:
    """The error for a table that has only other costs than steps."""
    remedy = "give the costs as steps, one per arm; columns MODEL|total_cost with --columns steps=total_cost"
    return InvalidInput("the table has no steps", field="steps", remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class LabelledTable:
    """A table: the rows in the order of the file, the arms in the order of the first row that has them all."""

    rows: tuple[TableRow, ...]
    arms: tuple[ArmName, ...]
    #: how the file was read, as texts for users
    remarks: tuple[str, ...] = ()

    @cached_property
    def correct(self) -> Matrix:
        return self._numbers("correct")

    @cached_property
    def steps(self) -> Matrix:
        """Steps of every answer, shape (n, arms), >= 0. Raises InvalidInput if the table has only other costs."""
        if self.rows and not self.rows[0].steps:
            raise missing_steps()
        return self._numbers("steps")

    @cached_property
    def seconds(self) -> Matrix | None:
        """Seconds of every answer, shape (n, arms), >= 0; None if a row has none."""
        return self._numbers("seconds") if all(row.seconds for row in self.rows) else None

    @cached_property
    def measures(self) -> Mapping[str, Matrix]:
        """Measure -> its values, shape (n, arms), in [0, 1], for the measures that every row has for every arm."""
        names = [name for name in MEASURES if all({*row.measures.get(name, ())} >= {*self.arms} for row in self.rows)]
        return {name: self._of_rows([row.measures[name] for row in self.rows]) for name in names}

    def _numbers(self, name: str) -> Matrix:
        return self._of_rows([getattr(row, name) for row in self.rows])

    def _of_rows(self, rows: Sequence[Mapping[ArmName, float]]) -> Matrix:
        return np.array([[row[arm] for arm in self.arms] for row in rows], dtype=np.float64).reshape(-1, len(self.arms))


def read_table(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    schema: ContextSchema | None = None,
    bad: list[BadRow] | None = None,
) -> LabelledTable:
    """Read the table in this file. Its arms and costs are those of most rows; rows with others are unusable.

    columns: our key -> column of the file, for names that are not found by themselves. schema: declared keys of the
    context, whose columns become context. bad: receives the faults of unusable rows, which are left out; None to raise
    InvalidInput, which names all of them, with "<file>:<line> <key>" as the field of a single one.
    """
    file, faults = Path(path), list[BadRow]()
    with rereadable(file) as readable:
        form = _form_of(readable, columns=columns or {}, schema=schema or {})
        answers = AnswerRows(form, bad=faults) if form.is_long else None
        records = _table_records(readable, columns=columns or {})
        entries = (
            answers.read(records) if answers else ((number, _with_our_keys(parse, form)) for number, parse in records)
        )
        numbered = _rows_of(entries, _table_row, bad=faults)
    table = _usual_rows(numbered, bad=faults, file=file, is_long=form.is_long)
    faults.sort(key=lambda row: row.line)
    remarks = [form.remark, answers.remark if answers else None]
    if bad is None:
        _refuse(faults, good=len(table.rows), path=file)
    else:
        bad += faults
    if not table.rows and not faults:
        raise InvalidInput("the file has no rows", field=str(path), remedy="give a file with at least one question")
    return replace(table, remarks=tuple(filter(None, remarks)))


def _table_records(path: Path, *, columns: Mapping[str, str]) -> Iterator[tuple[int, Parse]]:
    return question_records(path, columns=[*filter(None, columns.values()), *chain(*USUAL.values()), *BY_ARM])


def _form_of(path: Path, *, columns: Mapping[str, str], schema: ContextSchema) -> TableForm:
    """The form of a file. Raises InvalidInput if the file cannot be read, or lacks a column."""
    sample: list[Mapping[str, Any]] = []
    for _, parse in islice(_table_records(path, columns=columns), SAMPLE):
        with suppress(InvalidInput):  # reading all rows raises the error again, with the line
            sample.append(parse())
    return table_form(sample, named=columns, schema=schema)


def _with_our_keys(parse: Parse, form: TableForm) -> Parse:
    return lambda: dict(form.with_our_keys(parse()))


def _usual_rows(
    numbered: Sequence[tuple[int, TableRow]], *, bad: list[BadRow], file: Path, is_long: bool
) -> LabelledTable:
    """The table of the rows that have the arms and the costs of most rows. bad: receives the other rows."""
    shapes = Counter(_shape(row) for _, row in numbered)
    if not shapes:
        return LabelledTable(rows=(), arms=())
    # Between equally frequent shapes the first counts; in a long table the one with more arms, since rows are missing.
    usual = max(shapes, key=lambda shape: (shapes[shape], len(shape[0]) if is_long else 0))
    number, model = next((number, row) for number, row in numbered if _shape(row) == usual)
    with locate_errors(file, line=number):
        arms = _arms(model.correct, is_long=is_long)
    of_arms = partial(_checked_amounts, arms=arms, is_long=is_long)
    rows = []
    for number, row in numbered:
        with _collect_faults(bad, line=number, is_long=is_long):
            seconds = row.seconds if not is_long or {*row.seconds} >= {*arms} else {}
            rows.append(
                replace(
                    row,
                    correct=of_arms(row.correct, "correct"),
                    steps=of_arms(row.steps, "steps") if model.steps else {},
                    seconds=of_arms(seconds, "seconds") if seconds else {},
                    costs={name: of_arms(row.costs.get(name, {}), name) for name in model.costs},
                )
            )
    return LabelledTable(rows=tuple(rows), arms=arms)


def _shape(row: TableRow) -> tuple[frozenset[str], ...]:
    return frozenset(row.correct), frozenset(row.costs), frozenset(row.steps)


def _arms(correct: Mapping[ArmName, float], *, is_long: bool) -> tuple[ArmName, ...]:
    if len(correct) < 2:
        remedy = "give at least two: there is nothing to route"
        if is_long:
            remedy = "most questions have one row: name the column that tells them apart, --columns id=COLUMN"
        raise InvalidInput(f"has {len(correct)} arms", field="correct", remedy=remedy)
    for arm in correct:
        if not ARM.fullmatch(arm):
            remedy = "use 1 to 64 letters, digits, dots, dashes, underscores"
            raise InvalidInput(f"{arm!r} is not a name of an arm", field="correct", remedy=remedy)
    return tuple(correct)


def _checked_amounts(
    numbers: Mapping[ArmName, float], key: str, *, arms: tuple[ArmName, ...], is_long: bool
) -> dict[ArmName, float]:
    """The numbers in the order of the arms. Raises a group of InvalidInput for missing and for other arms."""
    faults = []
    remedy = f"every row needs these arms: {', '.join(arms)}"
    if is_long:
        remedy = (
            f"routers are compared on the same questions, so each question needs a row of {', '.join(arms)}; add the "
            "row, or leave these questions out"
        )
    for name in sorted({*numbers} ^ {*arms}):
        reason = "is not an arm of most rows"
        if name in arms:
            reason = "is missing: this question has no row of the arm" if is_long and key == "correct" else "is missing"
        faults.append(InvalidInput(reason, field=f"{key}.{name}", remedy=remedy))
    if faults:
        raise ExceptionGroup("arms", faults)
    return {arm: numbers[arm] for arm in arms}


def with_measure(table: LabelledTable, measure: str | None) -> tuple[LabelledTable, str]:
    """The table with this measure as `correct`. Returns (table, name of the measure).

    measure: "correct" or one of MEASURES; None for exact_match, which the papers use, if every row has it, and
    otherwise `correct`. Raises InvalidInput if a row lacks the measure.
    """
    name = measure or ("exact_match" if "exact_match" in table.measures else "correct")
    if name == "correct":
        return table, name
    if name not in table.measures:
        remedy = f"use {', '.join(['correct', *table.measures])}"
        raise InvalidInput(f"the table has no {name} for every arm of every row", field="measure", remedy=remedy)
    rows = tuple(replace(row, correct={arm: row.measures[name][arm] for arm in table.arms}) for row in table.rows)
    return replace(table, rows=rows), name


def with_hops(table: LabelledTable, hops: Mapping[str, int]) -> LabelledTable:
    """The table with these numbers of hops, by data set, for rows that have none. Raises InvalidInput for others."""
    known = {row.dataset for row in table.rows}
    for dataset in hops:
        if dataset not in known:
            names = ", ".join(sorted(name for name in known if name)) or "no data set"
            raise InvalidInput(f"no row is of the data set {dataset!r}", field="hops", remedy=f"the table has {names}")
    rows = [row if row.hops is not None else replace(row, hops=hops.get(row.dataset or "")) for row in table.rows]
    return replace(table, rows=tuple(rows))


def table_query(row: TableRow) -> Query:
    """The part of a row that a policy reads: question and context, without id and data set."""
    return Query(text=row.question, context=row.context)


def charged_costs(row: TableRow, *, prices: Mapping[str, float]) -> dict[str, Mapping[ArmName, float]]:
    """The costs of a row that the reward charges: term -> arm -> amount. prices: the setting reward.cost.

    `cost` is in the unit of the only charged term; if several are charged, in dollars.
    """
    terms = [term for term, price in prices.items() if price > 0.0]
    unit = terms[0] if len(terms) == 1 else "dollars"
    amounts = {"steps": row.steps, "seconds_total": row.seconds, unit: row.costs.get("cost", {})}
    amounts |= {term: of_arms for term, of_arms in (*row.costs.items(), ("steps", row.steps)) if of_arms}
    return {term: amounts[term] for term in terms if amounts.get(term)}


def arm_rows(
    row: TableRow,
    *,
    arms: Sequence[ArmName],
    features: Features | None,
    encoder_hash: str,
    reward: RewardSettings,
    label: str,
    now: float,
    first: int = 1,
    occurrence: int = 0,
) -> list[Logged]:
    """Make a log row for each arm. label: of the ledger. now: time of the decisions, seconds since the epoch.

    occurrence: number of earlier rows of the table with this question. A row's id is a hash of question,
    context, arm and occurrence, so that the same table always gives the same ids.
    """
    share = 1.0 / len(arms)
    query, charged = table_query(row), charged_costs(row, prices=reward.cost)
    rows = []
    for number, arm in enumerate(arms):
        key = _id(query, arm=arm, occurrence=occurrence)
        decision = Decision(
            id=key,
            query=replace(query, id=key),
            arm=arm,
            arms=tuple(arms),
            pmf=(share,) * len(arms),
            propensity=share,
            scores=None,
            policy=PolicyLabel(label),
            version="",
            encoder_hash=encoder_hash,
            seed=seed_of(key),
            floor=0.0,
            explored=False,
            fault=None,
            facts={IMPORTED: ORIGIN},
            run_by="caller",
            features=features,
            made_at=now,
        )
        cost = {term: amounts[arm] for term, amounts in charged.items() if term != "steps"}
        steps = charged.get("steps", row.steps).get(arm, 0.0)
        outcome = make_outcome(decision_id=key, now=now, status="answered", steps=steps, cost=cost)
        rating = Feedback(
            id=FeedbackId(key),
            decision_id=key,
            kind="rating",
            value=float(row.correct[arm]),
            source="code",
            received_at=now,
        )
        earned = explicit_reward((rating,), outcome=outcome, settings=reward, method="first")
        rows.append(Logged(decision=decision, reward=earned, seq=first + number))
    return rows


def _id(query: Query, *, arm: ArmName, occurrence: int) -> DecisionId:
    body = canonical([query.text, dict(query.context), arm, occurrence])
    digest = hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()[:40]
    return DecisionId(own_feedback_id("labelled", digest=digest))  # also the id of the decision's feedback


def read_unlabelled(path: str | Path, *, known: Sequence[TableRow] = ()) -> list[TableRow]:
    """Read questions without outcomes: records with "question" and "hops". Hops serve as labels.

    Questions in `known` are left out, since their outcomes are better labels (as in Adaptive-RAG). Raises InvalidInput.
    """
    known_texts = {row.question for row in known}
    every = question_rows(Path(path), _question, kind="question")
    rows = [row for row in every if row.question not in known_texts]
    if not rows:
        message = "every question of this file is in the table too"
        raise InvalidInput(message, field=str(path), remedy="leave the file out")
    return rows


def _question(_entry: Mapping[str, Any], row: LabelledRow) -> TableRow:
    if row.hops is None:
        raise InvalidInput("is missing", field="hops", remedy='write {"question": text, "hops": whole number} a line')
    return TableRow(id=row.id, question=row.question, correct={}, steps={}, hops=row.hops)

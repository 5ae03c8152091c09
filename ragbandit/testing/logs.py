"""Check of the contract of forms of logs. It needs no test framework and no log of the tool.

    def test_mine():
        check_log_form(Mine, records=[{"ticket_number": 7, "articles": [{"body": "Who wrote Dracula?"}]}])

It raises AssertionError if the form breaks the contract.
"""

import csv
import io
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ragbandit.hooks import LogForm
from ragbandit.router.offline.logs.records import plain_name, records as records_of
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.plain_values import plain_tree
from ragbandit.testing.damages import damaged_records

Record = Mapping[str, Any]

#: records of other tools, and records without a tool
FOREIGN: Final[tuple[Record, ...]] = (
    {},
    {"": None},
    {"question": "Who wrote Dracula?", "answer": "Bram Stoker", "model": "small"},
    {"messages": [{"role": "user", "content": "Who wrote Dracula?"}]},
    {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t", "attributes": []}]}]}]},
)
#: maximum number of questions of a record; more are a fault, since a form may never end
_MOST: Final = 100_000
#: maximum number of records that are each written to a file of their own
_MOST_ALONE: Final = 20


def check_log_form(form: type[LogForm], *, records: Sequence[Record]) -> None:
    """Reads records of the tool, the same records with damaged fields, and records of other tools.

    records: JSON objects as the tool writes them, with questions; the more they differ, the more is checked.
    """
    _check_keys(form, records=records)
    asked = [question for record in records for question in _questions(form, record)]
    assert asked, "no record has a question: give records that ask something"
    assert any(_is_text(question.get("question")) for question in asked), "no question has a text in its field question"
    for foreign in FOREIGN:
        if not set(form.keys) & foreign.keys():
            assert form.read(foreign) is None, f"`read` did not return None for a record of another tool: {foreign!r}"
    _check_file(form, records=records)
    for record in records:
        for damaged in damaged_records(record):
            _check_damaged(form, damaged, names=record.keys())


def _check_keys(form: type[LogForm], *, records: Sequence[Record]) -> None:
    assert not isinstance(form.keys, str), "keys is one text, not a list of names"
    assert form.keys, "keys has no names"
    assert all(map(_is_text, form.keys)), f"keys has something else than names: {form.keys!r}"
    assert len({*map(plain_name, form.keys)}) == len(form.keys), (
        f"two of the keys are spellings of one name: {form.keys!r}"
    )
    for record in records:
        assert set(form.keys) & record.keys(), f"a record has none of the keys {form.keys!r}: {[*record]}"


def _questions(form: type[LogForm], record: Record) -> list[Record]:
    """The questions that the form reads from a record of its own tool; asserts that they fit JSON."""
    read = _read(form, record)
    if isinstance(read, Exception):
        raise AssertionError(f"`read` raised {read!r} for a record of its own tool: {record!r:.300}") from read
    assert read is not None, f"`read` returned None for a record of its own tool: {record!r:.300}"
    for question in read:
        try:
            json.dumps(plain_tree(question))
        except TypeError as error:
            raise AssertionError(f"a question has values that are neither of JSON nor of Parquet: {error}") from error
    return read


def _read(form: type[LogForm], record: Record) -> list[Record] | Exception | None:
    """The questions that a form reads from a record, or its error; None for a record of another tool. The form is
    called twice, with equal results.
    """
    given = deepcopy(record)
    first = _outcome(form, given)
    assert repr(given) == repr(record), f"`read` changed its record: {record!r:.300} became {given!r:.300}"
    again = _outcome(form, given)
    is_same = type(again) is type(first) and (isinstance(first, Exception) or repr(again) == repr(first))
    assert is_same, f"`read` gave {first!r:.300} and then {again!r:.300} for the same record"
    if isinstance(first, list):
        assert len(first) <= _MOST, f"a record has more than {_MOST:,} questions: {record!r:.300}"
        for question in first:
            assert isinstance(question, Mapping), f"a question is no mapping: {question!r:.200}"
            assert all(isinstance(name, str) for name in question), f"a field of a question has no name: {[*question]}"
    return first


def _outcome(form: type[LogForm], record: Record) -> list[Record] | Exception | None:
    try:
        questions = form.read(record)
        return None if questions is None else [*islice(iter(questions), _MOST + 1)]
    except Exception as error:  # the reader counts the record, whatever a form raises
        return error
    except (SystemExit, GeneratorExit) as error:
        message = f"`read` raised {error!r}, which ends the reading of all records: {record!r:.300}"
        raise AssertionError(message) from error


def _check_damaged(form: type[LogForm], record: Record, *, names: Iterable[str]) -> None:
    """A record with all its fields belongs to the tool, whatever its values are: it has questions, or is an error."""
    if _read(form, record) is None and record.keys() == {*names}:
        message = f"`read` returned None for a record with all its fields, so other forms read it: {record!r:.300}"
        raise AssertionError(message)


def _check_file(form: type[LogForm], *, records: Sequence[Record]) -> None:
    """The records come from files as they are: an object a line, a list, alone, or as rows of a table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        for text, count in _file_texts(records):
            path.write_text(text, "utf-8")
            try:
                read = [parse() for _, parse in records_of(path, keys=form.keys)]
            except InvalidInput as error:
                raise AssertionError(f"a file of records cannot be read ({error}): see keys") from error
            assert len(read) == count, f"a file of {count} records is read as {len(read)} records: see keys"
            for record in read:
                _check_damaged(form, record, names=record)


def _file_texts(records: Sequence[Record]) -> Iterator[tuple[str, int]]:
    """Yields (text of a file, number of its records) for each form of a file."""
    yield "".join(f"{json.dumps(record)}\n" for record in records), len(records)
    yield json.dumps([*records], indent=1), len(records)
    yield from ((json.dumps(record, indent=1), 1) for record in records[:_MOST_ALONE])
    names = [*dict.fromkeys(name for record in records for name in record)]
    if len(names) > 1:
        table = io.StringIO()
        writer = csv.DictWriter(table, names)
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in record.items()} for record in records)
        yield table.getvalue(), len(records)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())

"""Files of other tools: which forms are read, and what a form that is not read is called."""

import csv
import gzip
import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from ragbandit.router.offline.logs.cells import written_number
from ragbandit.router.offline.logs.records import nest_columns, records
from ragbandit.shared.errors import InvalidInput


def read(content, *, keys=("id",), name="file"):
    """The records of a file with this content; an unusable record is its message."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        found = []
        for number, parse in records(path, keys=keys):
            try:
                found.append((number, parse()))
            except InvalidInput as error:
                found.append((number, str(error)))
        return found


CELLS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=8)
ROWS = st.lists(st.fixed_dictionaries({"id": CELLS, "text": CELLS}).filter(lambda row: row["id"].strip()), min_size=1)
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16")


@settings(deadline=None)
@given(rows=ROWS, sign=st.sampled_from(",;\t|"), encoding=st.sampled_from(ENCODINGS), packed=st.booleans())
def test_delimited_text_keeps_every_cell(rows, sign, encoding, packed):
    """Cells with delimiters, quotes and line breaks are read as they were written, in every encoding."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, ("id", "text"), delimiter=sign, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    content = out.getvalue().encode(encoding)
    assert [row for _, row in read(gzip.compress(content) if packed else content)] == rows


@settings(deadline=None)
@given(rows=ROWS, indent=st.sampled_from((None, 1)), around=st.sampled_from((None, "data", "items")))
def test_a_json_document_is_a_list_of_records(rows, indent, around):
    """A list, and an object around one list, has the records of JSON Lines."""
    tree = rows if around is None else {"meta": {"page": 1}, around: rows}
    assert read(json.dumps(tree, indent=indent)) == [*enumerate(rows, start=1)]
    assert [row for _, row in read("\n".join(json.dumps(row, indent=indent) for row in rows))] == rows
    assert [row for _, row in read("".join(f"{json.dumps(row)}\n" for row in rows).encode("utf-16"))] == rows


def test_numbers_of_rows_and_faults():
    """A row has the number of its first line, blank rows are left out, and a row with too many cells is unusable."""
    found = read('sep=;\r\nID; b ;\r\n1;"x\r\ny";\r\n;;\r\n\r\n2;"4,5"\r\n3;;;7\r\n')
    assert found[:2] == [(3, {"id": "1", "b": "x\r\ny"}), (7, {"id": "2", "b": "4,5"})]
    assert found[2][0] == 8
    assert "has 4 cells for 3 columns" in found[2][1]
    assert read("id,b\r1,2\r") == [(2, {"id": "1", "b": "2"})]
    assert read('{"id": 1, "scores": [{"value": 1}]}') == [(1, {"id": 1, "scores": [{"value": 1}]})]
    assert read('[{"id": 1}, 2]')[1] == (2, "is a int (write a list of JSON objects)")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04", "an Excel workbook or another zip"),
        (b"\x80\x04\x95", "a pickle"),
        (b"SQLite format 3\x00", "a SQLite database"),
        (b"Obj\x01", "an Avro file"),
        (b"ORC\x0a", "an ORC file"),
        (b"ARROW1\x00\x00", "an Arrow or Feather"),
        (b"\x28\xb5\x2f\xfd", "packed with zstd"),
        (b"<html>", "HTML or XML"),
        ("id,b\n".encode("utf-16-le"), "UTF-16 without a mark"),
        ('{"_label_cost": -1, "_label_probability": 0.5}', r"Vowpal Wabbit or Personalizer.*replay.md"),
        ("shared | a\n0:1:0.5 | b\n", "Vowpal Wabbit.*replay.md"),
        ("1,2\n3,4\n", "id: the file has no such column .*has 1, 2"),
        ("id,b,b\n1,2,3\n", " b: this column occurs twice"),
        ('id,b\n1,"2\n', ":2: this row cannot be read"),
        ("id,b\n1,caf\xe9\n".encode("latin-1"), ":2: is not UTF-8: its byte 6"),
        ("id,b\n".encode("utf-16")[:-1], "UTF-16 is cut short"),
        ('[{"id": 1}, {"id"', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (b"", "has no rows"),
    ],
    ids=range(19),
)
def test_other_forms_are_named(content, message):
    """A file that is not read is refused whole, with its form or fault and a remedy."""
    with pytest.raises(InvalidInput, match=message) as caught:
        read(content)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("0.5", 0.5), ("0,5", 0.5), (" 0,125 ", 0.125), ("1.234,5", 1234.5), ("1,234.5", 1234.5), ("-1,5", -1.5)),
        *(("85 %", 0.85), ("$0.002", 0.002), ("1e-3", 0.001), ("1,234", None), ("1,2,3", None), ("x", None)),
    ],
)
def test_numbers_as_spreadsheets_write_them(text, number):
    """Decimal commas, percentages and dollars are numbers; a comma that may stand for thousands is refused."""
    if number is None:
        with pytest.raises(ValueError, match="float"):
            written_number(text)
    else:
        assert written_number(text) == pytest.approx(number, rel=1e-15)


def test_columns_with_dots_are_members():
    """The column pmf.a is a member of pmf, unless the row has a pmf; other dots stay."""
    row = {"pmf.gpt-4.1": "1", "pmf.b": "0", "context.": 1, "my.key": 2}
    assert nest_columns(row, heads=("pmf", "context")) == {
        "pmf": {"gpt-4.1": "1", "b": "0"},
        "context.": 1,
        "my.key": 2,
    }
    assert nest_columns({"pmf": [1], "pmf.new": [2]}, heads=("pmf",)) == {"pmf": [1], "pmf.new": [2]}


def test_the_open_bandit_dataset_is_named(tmp_path):
    """The refusal of the Open Bandit Dataset says which columns to rename."""
    file = tmp_path / "all.csv"
    file.write_text("timestamp,item_id,position,click,propensity_score\n2019-11-24,3,1,0,0.2\n")
    with pytest.raises(InvalidInput, match="Open Bandit Dataset") as refused:
        [*records(file, keys=("arm",))]
    assert "item_id to arm, click to reward and propensity_score to propensity" in refused.value.remedy

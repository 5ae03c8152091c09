"""Reading full-information tables: what a row is, and what is refused, where, and with which remedy."""

import json
import math

import pytest

from ragbandit.router.offline.logs.tables import read_table
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import TableRow

GOOD = {"id": "q1", "question": "Who?", "correct": {"a": 0, "b": 1}, "steps": {"a": 0, "b": 2.5}}


def line(**changes):
    """A row's JSON; a key set to None is left out."""
    return json.dumps({key: value for key, value in (GOOD | changes).items() if value is not None})


@pytest.fixture
def written(tmp_path):
    """Writes lines into a file and reads them as a table."""

    def write(*lines, newline="\n"):
        file = tmp_path / "table.jsonl"
        file.write_bytes(newline.join(lines).encode("utf-8", "surrogatepass"))
        return read_table(file)

    return write


def test_row_as_written(written):
    """Id, question, both numbers per arm and hops come back as written; bools and fractions are qualities."""
    table = written(line(hops=2), line(id="q2", correct={"a": True, "b": 0.25}))
    assert table.rows == (
        TableRow(id="q1", question="Who?", correct={"a": 0.0, "b": 1.0}, steps={"a": 0.0, "b": 2.5}, hops=2),
        TableRow(id="q2", question="Who?", correct={"a": 1.0, "b": 0.25}, steps={"a": 0.0, "b": 2.5}),
    )


def test_a_row_may_have_a_context(written):
    """`context` is what a caller would send: an object of finite values, in the order of its keys."""
    table = written(line(context={"tier": "pro", "age": 3, "tags": ["a"]}), line(id="q2"), line(id="q3", context=None))
    assert [dict(row.context) for row in table.rows] == [{"age": 3, "tags": ["a"], "tier": "pro"}, {}, {}]
    for wrong, field in (("pro", "context"), ({"age": math.nan}, "context")):
        with pytest.raises(InvalidInput) as caught:
            written(line(context=wrong))
        assert caught.value.field.endswith(f":1 {field}")


@pytest.mark.parametrize(
    ("bad", "key", "message"),
    [
        (line(id="q2", correct={"a": 0}), "correct.b", "missing"),
        (line(id="q2", steps={"b": 0}), "steps.a", "missing"),
        (line(id="q2", correct={"a": 0, "b": 0, "c": 1}), "correct.c", "not an arm of most rows"),
        (line(id="q2", correct=None), "correct", "missing"),
        (line(id="q2", correct=1), "correct", "not an object by arm (give one per arm"),
        (line(id="q2", steps=[1, 2]), "steps", "valid object"),
        (line(id="q2", correct={"a": 0, "b": float("nan")}), "correct.b", "finite number"),
        (line(id="q2", correct={"a": 0, "b": 1.01}), "correct.b", "less than or equal to 1"),
        (line(id="q2", correct={"a": "x", "b": 1}), "correct.a", "finite number"),
        (line(id="q2", steps={"a": -1, "b": 0}), "steps.a", "greater than or equal to 0"),
        (line(id="q2", steps={"a": 10**400, "b": 0}), "steps.a", "number"),
        (line(id="q2", steps={"a": [1], "b": 0}), "steps.a", "finite number"),
        (line(), "id", "is on line 1 too"),
        (line(id=" "), "id", "should match"),
        (line(id=[7]), "id", "Give a text"),
        (line(id="q2", question=None), "question", "missing"),
        (line(id="q2", question=" \t"), "question", "empty"),
        (line(id="q2", question=["Who?"]), "question", "must be text"),
        (line(id="q2", question="nul \x00"), "question", "NUL"),
        (line(id="q2", question="\ud800"), "question", "lone surrogate"),
        (line(id="q2", question="x" * 100_001), "question", "100001 characters"),
        (line(id="q2", hops=True), "hops", "Give a whole number"),
        (line(id="q2", hops=10**400), "hops", "Give a whole number"),
        (line(id="q2", hops=-1), "hops", "greater than or equal to 0"),
        (line(id="q2", dataset=["nq"]), "dataset", "Give a text"),
        ("[1]", "", "is a list"),
        ("null", "", "is a NoneType"),
    ],
)
def test_bad_line_is_refused(written, tmp_path, bad, key, message):
    """An invalid row is refused with file, line, key and a remedy."""
    with pytest.raises(InvalidInput) as caught:
        written(line(), "", bad)
    assert message in str(caught.value)
    assert caught.value.field == f"{tmp_path / 'table.jsonl'}:3 {key}".rstrip()
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (line(correct={"a": 1}, steps={"a": 1}), "has 1 arms"),
        (line(correct={}, steps={}), "has 0 arms"),
        (line(correct={"a b": 1, "c": 1}, steps={"a b": 1, "c": 1}), "not a name of an arm"),
        (line(correct={"": 1, "c": 1}, steps={"": 1, "c": 1}), "not a name of an arm"),
    ],
)
def test_arms_that_cannot_be_routed_are_refused(written, first, message):
    """A table with fewer than two arms, or with one whose name no configuration takes, is refused on its first line."""
    with pytest.raises(InvalidInput, match=message) as caught:
        written(first)
    assert caught.value.field.endswith(":1 correct")
    assert caught.value.remedy


@pytest.mark.parametrize("sign", [".", "_", ":"])
def test_objects_may_be_columns(tmp_path, sign):
    """A CSV has a column per arm for each object; booleans and decimal commas are numbers."""
    file = tmp_path / "table.csv"
    heads = "Question;correct.a;correct.single_step;dollars.a;dollars.single_step;steps_taken;context.tier"
    file.write_text(
        f"{heads.replace('t.a', f't{sign}a').replace('t.s', f't{sign}s')}\nWho?;true;0,5;0,001;$0.02;7;pro\n"
    )
    table = read_table(file)
    (row,) = table.rows
    assert (table.arms, dict(row.correct)) == (("a", "single_step"), {"a": 1.0, "single_step": 0.5})
    assert (row.steps, row.costs) == ({}, {"dollars": {"a": 0.001, "single_step": 0.02}})
    assert row.context == {"tier": "pro"}
    with pytest.raises(InvalidInput, match="the table has no steps"):
        _ = table.steps


def test_rows_with_gaps_are_left_out(tmp_path):
    """Most rows define the arms; a row whose outcome of an arm is missing, null or blank goes to the unusable rows."""
    gaps = [
        line(correct={"a": 1}),
        line(id="q2", correct={"a": 1, "b": None}),
        line(id="q3", correct={"a": "", "b": 1}),
    ]
    file = tmp_path / "table.jsonl"
    file.write_text("\n".join([*gaps, line(id="q4"), line(id="q5")]))
    bad = []
    assert [row.id for row in read_table(file, bad=bad).rows] == ["q4", "q5"]
    assert {(row.line, row.field) for row in bad} == {(1, "correct.b"), (2, "correct.b"), (3, "correct.a")}
    assert all(row.remedy for row in bad)

"""Tables with a row for each answer, and tables with other names of columns: how they are read, and what is refused."""

import csv
import gzip
import io
import json
import tracemalloc
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from ragbandit.router.config.context_schema import ContextKey
from ragbandit.router.offline.logs.table_columns import parse_columns
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.shared.errors import InvalidInput

ANSWERS = [
    {"task_id": "t1", "prompt": "Who?", "model": "small", "score": 0, "cost_usd": 0.001},
    {"task_id": "t1", "prompt": "Who?", "model": "large", "score": 1, "cost_usd": 0.02},
    {"task_id": "t2", "prompt": "Where?", "model": "large", "score": 0.5, "cost_usd": 0.03},
    {"task_id": "t2", "prompt": "Where?", "model": "small", "score": 1, "cost_usd": 0.002},
]
TIER = {"tier": ContextKey(type="category", values=["pro", "free"])}


def written(tmp_path, text, name="answers.csv"):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def csv_of(rows, sign=","):
    return "\n".join(sign.join(map(str, line)) for line in [rows[0], *(row.values() for row in rows)])


def lines_of(rows):
    return "\n".join(map(json.dumps, rows))


def facts(table):
    return [(row.id, row.question, dict(row.correct), dict(row.costs["dollars"])) for row in table.rows]


def refused(file, **given):
    with pytest.raises(InvalidInput) as caught:
        read_table(file, **given)
    assert caught.value.remedy
    return str(caught.value)


WIDE = [
    ("t1", "Who?", {"small": 0.0, "large": 1.0}, {"small": 0.001, "large": 0.02}),
    ("t2", "Where?", {"small": 1.0, "large": 0.5}, {"small": 0.002, "large": 0.03}),
]


def test_a_long_table_is_the_wide_table_of_its_tasks(tmp_path):
    """CSV, JSON Lines, a JSON list, gzip and Parquet with a row for each answer give the rows of the wide table."""
    pq.write_table(pa.Table.from_pylist(ANSWERS), tmp_path / "answers.parquet")
    files = [
        written(tmp_path, b"\xef\xbb\xbf" + csv_of(ANSWERS).encode()),
        written(tmp_path, csv_of(ANSWERS, ";"), "semicolons.csv"),
        written(tmp_path, lines_of(ANSWERS), "answers.jsonl"),
        written(tmp_path, json.dumps(ANSWERS), "answers.json"),
        written(tmp_path, gzip.compress(lines_of(ANSWERS).encode()), "answers.jsonl.gz"),
        tmp_path / "answers.parquet",
    ]
    for file in files:
        table = read_table(file)
        assert (table.arms, facts(table)) == (("small", "large"), WIDE), file
    [remark] = table.remarks
    assert remark.startswith(
        "the table has a row for each answer: id from task_id, question from prompt, arm from model"
    )
    assert "dollars from cost_usd" in remark


def test_columns_that_have_unusual_names_are_named(tmp_path):
    """`columns` names any column, also a member of an object; case and signs of a name do not matter."""
    rows = [
        {"Ask": row["prompt"], "who": row["model"], "out": {"mark": row["score"]}, "Price (USD)": row["cost_usd"]}
        for row in ANSWERS
    ]
    columns = parse_columns(["question=ask, arm=who", "correct=out.mark,dollars=price usd"])
    table = read_table(written(tmp_path, lines_of(rows), "a.jsonl"), columns=columns)
    assert [row[1:] for row in facts(table)] == [row[1:] for row in WIDE]


def test_wide_tables_may_have_other_names_too(tmp_path):
    """In a table with a row for each question, objects and columns by arm may have other names, and own names count."""
    wide = [{"prompt": "Who?", "score": {"a": 0, "b": 1}, "cost_usd": {"a": 1, "b": 2}, "model": "x"}]
    [row] = read_table(written(tmp_path, lines_of(wide), "w.jsonl")).rows
    assert (row.question, row.correct, row.costs) == ("Who?", {"a": 0, "b": 1}, {"dollars": {"a": 1, "b": 2}})
    file = written(tmp_path, "prompt,mark_a,mark_b,usd_a,usd_b\nWho?,yes,no,1,2\n")
    [row] = read_table(file, columns={"correct": "mark", "dollars": "usd"}).rows
    assert (row.correct, row.costs) == ({"a": 1, "b": 0}, {"dollars": {"a": 1, "b": 2}})
    own = [{**wide[0], "question": "Why?", "correct": {"a": 1, "b": 1}, "steps": {"a": 1, "b": 2}}]
    own_table = read_table(written(tmp_path, lines_of(own), "o.jsonl"))
    assert own_table.remarks == ()
    assert (own_table.rows[0].question, own_table.rows[0].correct, own_table.rows[0].costs) == (
        "Why?",
        {"a": 1, "b": 1},
        {},
    )


@pytest.mark.parametrize(
    ("cells", "correct"),
    [
        (("true", "false"), (1, 0)),
        (("Passed", "failed"), (1, 0)),
        (('"0,5"', "50%"), (0.5, 0.5)),
        (("1.0", "0"), (1, 0)),
    ],
)
def test_outcomes_may_be_words_and_quoted_numbers(tmp_path, cells, correct):
    """Booleans as words, decimal commas and percentages are outcomes."""
    file = written(tmp_path, f"question,arm,correct,steps\nWho?,a,{cells[0]},1\nWho?,b,{cells[1]},2\n")
    assert tuple(read_table(file).rows[0].correct.values()) == correct


def test_every_fault_of_a_file_is_named_at_once(tmp_path):
    """One error names each kind of fault with its lines: wrong cells, missing cells, repeated and missing answers."""
    text = """question,model,score,dollars
a?,x,1,1
a?,y,maybe,1
b?,x,2,-1
b?,y,,1
c?,x,1,1
c?,y,1,1
c?,x,1,1
d?,x,1,1
e?,x,1,1
,x,1,1
f?,x,1,1
f?,y,1,1
g?,x,1,1
g?,y,1,1
"""
    said = refused(written(tmp_path, text))
    for part in (
        "line 3 score 'maybe' cannot be used",
        "line 4 dollars '-1' cannot be used",
        "line 5 score the value is missing",
        "line 8 model 'x' has a row for this question on line 6 too",
        "line 9 correct.y is missing: this question has no row of the arm",
        "also on line 10",
        "line 11 question the value is missing",
        "each question needs a row of x, y",
    ):
        assert part in said
    bad = []
    assert [row.question for row in read_table(tmp_path / "answers.csv", bad=bad).rows] == ["f?", "g?"]
    assert [row.line for row in bad] == [3, 4, 4, 5, 8, 9, 10, 11]


def test_a_wide_table_names_every_fault_too(tmp_path):
    """All wrong cells of every row are named, and equal faults by their lines."""
    good = {"question": "q?", "correct": {"a": 0, "b": 1}, "steps": {"a": 0, "b": 1}}
    wrong = [
        {**good, "correct": {"a": "x", "b": 7}},
        {**good, "steps": {"a": -1, "b": 1}},
        *[{**good, "correct": {"a": 1}}] * 7,
    ]
    said = refused(written(tmp_path, lines_of([good, *wrong, *[good] * 9]), "w.jsonl"))
    assert "9 of 19 rows cannot be used" in said
    for part in ("line 2 correct.a 'x'", "line 2 correct.b 7", "line 3 steps.a -1", "line 4 correct.b is missing"):
        assert part in said
    assert "also on line 5, 6, 7, 8 and 2 more" in said


def test_missing_columns_are_named_with_those_of_the_file(tmp_path):
    """Columns that do not exist are refused together, with the names that the file has and what to write."""
    file = written(tmp_path, "task_id,model,result\n1,a,0\n")
    said = refused(file)
    assert "no column question and correct; it has task_id, model, result" in said
    assert "--columns question=COLUMN,correct=COLUMN" in said
    said = refused(file, columns={"question": "ask", "dollars": "price"})
    assert "ask (question), price (dollars)" in said
    for wrong in ("question", "=prompt", "colour=red", "arm=a,arm=b", "context.=x"):
        with pytest.raises(InvalidInput, match="columns"):
            parse_columns([wrong])


def test_declared_columns_become_context(tmp_path):
    """A column with the name of a declared key is context, of the declared type; a question has one value."""
    schema = {**TIER, "age": ContextKey(type="number"), "new": ContextKey(type="boolean")}
    text = (
        "question,arm,correct,steps,Tier,age,new\nq?,a,1,0,pro,12,yes\nq?,b,1,1,,12,yes\nr?,a,1,0,,,\nr?,b,1,1,,,no\n"
    )
    file = written(tmp_path, text)
    contexts = [dict(row.context) for row in read_table(file, schema=schema).rows]
    assert contexts == [{"age": 12.0, "new": True, "tier": "pro"}, {"new": False}]
    wide = {"question": "q?", "correct": {"a": 0, "b": 1}, "steps": {"a": 0, "b": 1}, "tier": "free"}
    [row] = read_table(written(tmp_path, lines_of([wide]), "w.jsonl"), schema=schema).rows
    assert dict(row.context) == {"tier": "free"}
    assert dict(read_table(tmp_path / "w.jsonl").rows[0].context) == {}
    other = [{**row, "plan": plan} for row, plan in zip(ANSWERS, ("pro", "free", "pro", "pro"), strict=True)]
    said = refused(written(tmp_path, lines_of(other), "o.jsonl"), columns={"context.tier": "plan"}, schema=schema)
    assert "o.jsonl:2 plan: 'free' differs from line 1 of the same question" in said


def test_names_of_models_become_names_of_arms(tmp_path):
    """Signs that no name of an arm has become underscores, as a remark says; two models with one name are refused."""
    rows = [{**row, "model": {"small": "openai/gpt mini"}.get(row["model"], "large")} for row in ANSWERS]
    table = read_table(written(tmp_path, lines_of(rows), "a.jsonl"))
    assert table.arms == ("openai_gpt_mini", "large")
    assert table.remarks[1] == "openai_gpt_mini is openai/gpt mini of the file"
    rows[2]["model"] = "openai:gpt_mini"
    assert "are both called openai_gpt_mini" in refused(written(tmp_path, lines_of(rows), "a.jsonl"))


def test_a_log_with_one_answer_a_task_is_no_table(tmp_path):
    """If most questions have one row, the message asks for the column of the question's id."""
    rows = [{**row, "task_id": number} for number, row in enumerate(ANSWERS)]
    assert "--columns id=COLUMN" in refused(written(tmp_path, lines_of(rows), "a.jsonl"))


def test_milliseconds_become_seconds_and_seconds_may_be_missing(tmp_path):
    """A column whose name ends in ms is divided by 1000; a question that lacks a time has no seconds."""
    rows = [{**row, "latency_ms": time} for row, time in zip(ANSWERS, (500, 1500, None, 20), strict=True)]
    table = read_table(written(tmp_path, lines_of(rows), "a.jsonl"))
    assert [dict(row.seconds) for row in table.rows] == [{"small": 0.5, "large": 1.5}, {}]


def test_memory_grows_with_the_answers_only(tmp_path):
    """Twice the rows take about twice the memory, whatever the order of the rows."""
    peaks = []
    for count in (1000, 2000):
        rows = [
            {"question": f"q{number}", "arm": arm, "correct": 1, "steps": 1} for arm in "ab" for number in range(count)
        ]
        file = written(tmp_path, lines_of(rows), "a.jsonl")
        tracemalloc.start()
        table = read_table(file)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(table.rows) == count
    assert peaks[1] < 3 * peaks[0]


def test_rows_of_routerarena_are_found(tmp_path):
    """Outcomes and dollars inside of an object are found, also in a CSV with the object as JSON."""
    rows = [
        {
            "global_index": row["task_id"],
            "question": row["prompt"],
            "llm_selected": row["model"],
            "success": True,
            "evaluation_result": {"score": row["score"], "metric": "m", "inference_cost": row["cost_usd"]},
        }
        for row in ANSWERS
    ]
    assert facts(read_table(written(tmp_path, lines_of(rows), "a.jsonl"))) == WIDE
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(rows[0])
    writer.writerows([*list(row.values())[:-1], json.dumps(row["evaluation_result"])] for row in rows)
    assert facts(read_table(written(tmp_path, out.getvalue()))) == WIDE
    rows[1]["evaluation_result"] = None
    assert "line 2 evaluation_result.score the value is missing" in refused(
        written(tmp_path, lines_of(rows), "b.jsonl")
    )


def test_a_column_with_our_name_and_no_outcome_is_passed_over(tmp_path):
    """If `correct` has right answers instead of outcomes, the next usual name with outcomes counts."""
    text = "question,model,correct,score,steps\nq?,a,Paris,1,1\nq?,b,Paris,0,2\n"
    [row] = read_table(written(tmp_path, text)).rows
    assert row.correct == {"a": 1.0, "b": 0.0}


def test_a_column_can_be_left_out(tmp_path):
    """`dollars=` leaves the column out, so that its gaps do not matter; `arm=` reads a row for each question."""
    rows = [{**row, "steps": 1, "cost_usd": None if row["model"] == "large" else 1} for row in ANSWERS]
    file = written(tmp_path, lines_of(rows), "a.jsonl")
    assert "cost_usd" in refused(file)
    table = read_table(file, columns=parse_columns(["dollars="]))
    assert [row.costs for row in table.rows] == [{}, {}]
    assert "not an object by arm" in refused(file, columns=parse_columns(["arm=,correct=score"]))


CELL = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)
CELLS = CELL | st.dictionaries(st.text(max_size=3), CELL, max_size=2)
KEYS = ("question", "prompt", "arm", "model", "correct", "score", "id", "dollars", "latency_ms", "tier", "context", "x")
WIDE_KEYS = (*KEYS, "a", "b", "a|cost", "b|cost", "a_score", "b_score", "models")


@settings(deadline=None, max_examples=200)
@given(st.lists(st.dictionaries(st.sampled_from(WIDE_KEYS), CELLS), min_size=1, max_size=6))
def test_any_records_are_read_or_refused(tmp_path_factory, rows):
    """Whatever the cells of a file are, it is read or refused with a remedy, and what is read has every arm."""
    file = tmp_path_factory.getbasetemp() / "any.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    bad = []
    with suppress(InvalidInput):
        table = read_table(file, schema=TIER, bad=bad)
        assert all(tuple(row.correct) == table.arms for row in table.rows)
        assert all(0.0 <= value <= 1.0 for row in table.rows for value in row.correct.values())
        assert len(table.rows) + len({row.question_line for row in bad}) > 0
    assert all(row.remedy for row in bad)

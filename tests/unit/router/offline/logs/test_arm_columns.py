"""Wide tables whose columns have other names than `correct.ARM`: how they are read, and what is refused."""

import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ragbandit.router.offline.logs.table_columns import parse_columns
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.shared.errors import InvalidInput

CORRECT = [{"gpt-4": 1.0, "zephyr": 0.0}, {"gpt-4": 0.5, "zephyr": 1.0}]
COST = [{"gpt-4": 0.02, "zephyr": 0.001}, {"gpt-4": 0.03, "zephyr": 0.002}]


def routerbench(**more):
    """Two questions as RouterBench has them."""
    rows = []
    for number, (correct, cost) in enumerate(zip(CORRECT, COST, strict=True)):
        row = {"sample_id": f"mmlu.{number}", "prompt": f"Which {number}?", "eval_name": "mmlu", **correct}
        row |= {f"{model}|model_response": f"the text, of {model}" for model in correct}
        row |= {f"{model}|total_cost": cost[model] for model in cost}
        rows.append({**row, "oracle_model_to_route_to": "gpt-4", **more})
    return rows


def csv_of(rows):
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def jsonl_of(rows):
    return "\n".join(map(json.dumps, rows))


def read(tmp_path, text, **given):
    file = tmp_path / "wide.txt"
    file.write_text(text)
    return read_table(file, **given)


def refused(tmp_path, text, **given):
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, text, **given)
    return str(caught.value)


def values(table, cost):
    return [(dict(row.correct), dict(row.costs[cost])) for row in table.rows]


def test_routerbench_is_read(tmp_path):
    """A column for each model is its outcome, MODEL|total_cost its cost; as CSV, JSON Lines and Parquet."""
    pq.write_table(pa.Table.from_pylist(routerbench()), tmp_path / "wide.parquet")
    tables = [
        read(tmp_path, csv_of(routerbench())),
        read(tmp_path, jsonl_of(routerbench())),
        read_table(tmp_path / "wide.parquet"),
    ]
    for table in tables:
        assert values(table, "cost") == list(zip(CORRECT, COST, strict=True))
        assert [(row.question, row.dataset) for row in table.rows] == [("Which 0?", "mmlu"), ("Which 1?", "mmlu")]
    [remark] = tables[0].remarks
    assert "correct from gpt-4, zephyr, cost from gpt-4|total_cost, zephyr|total_cost" in remark


def test_a_column_model_of_another_meaning_does_not_make_it_long(tmp_path):
    """A wide table may also have a column such as `strategy`: without an outcome it makes no table of answers."""
    assert values(read(tmp_path, csv_of(routerbench(strategy="zero-shot"))), "cost") == list(
        zip(CORRECT, COST, strict=True)
    )


@pytest.mark.parametrize(
    ("columns", "cost"),
    [
        (("{}_score", "{}_cost"), "cost"),
        (("{}", "cost_{}"), "cost"),
        (("{}/score", "{}/cost"), "cost"),
        (("score_{}", "{}_cost_usd"), "dollars"),
        (("{}: accuracy", "{}: total cost"), "cost"),
        (("{} Score", "{} Price"), "dollars"),
        (("is_correct|{}", "inference_cost|{}"), "dollars"),
        (("{}.performance", "{}.cost"), "cost"),
        (("correct_{}", "{}|dollars"), "dollars"),
        (("{}", "{}|latency_ms"), None),
    ],
)
def test_names_of_values_stand_before_or_behind_the_model(tmp_path, columns, cost):
    """The sign between model and value does not matter, nor case, nor the order of the columns."""
    rows = []
    for correct, costs in zip(CORRECT, COST, strict=True):
        row = {columns[1].format(model): costs[model] for model in costs}
        rows.append(
            {"query": f"q{len(rows)}", **row, **{columns[0].format(model): correct[model] for model in correct}}
        )
    table = read(tmp_path, csv_of(rows))
    assert [dict(row.correct) for row in table.rows] == CORRECT
    if cost is None:
        assert [row.seconds["gpt-4"] for row in table.rows] == pytest.approx([0.00002, 0.00003])
    else:
        assert [dict(row.costs[cost]) for row in table.rows] == COST


@pytest.mark.parametrize(
    "shape",
    [
        lambda models: models,
        lambda models: {"models": models},
        lambda models: {"results": json.dumps(models)},
        lambda models: {"answers": [{"model": model, **each} for model, each in models.items()]},
    ],
)
def test_objects_by_model_are_read(tmp_path, shape):
    """Models may be objects, also in another object, as JSON in a text, or in a list whose items name their model."""
    rows = []
    for correct, costs in zip(CORRECT, COST, strict=True):
        models = {
            model: {"response": "x", "score": correct[model], "cost": costs[model], "num_input_tokens": 7}
            for model in correct
        }
        rows.append({"prompt": f"q{len(rows)}", "golden_answer": "y", **shape(models)})
    table = read(tmp_path, jsonl_of(rows))
    assert values(table, "cost") == list(zip(CORRECT, COST, strict=True))
    assert dict(table.rows[0].costs["prompt_tokens"]) == {"gpt-4": 7.0, "zephyr": 7.0}


def test_names_of_models_become_names_of_arms(tmp_path):
    """Signs that no arm's name has become underscores, as a remark says; two models of one name are refused."""
    text = csv_of(routerbench()).replace("zephyr", "WizardLM/Wizard 13B")
    table = read(tmp_path, text)
    assert table.arms == ("gpt-4", "WizardLM_Wizard_13B")
    assert "WizardLM_Wizard_13B is WizardLM/Wizard 13B of the file" in table.remarks[0]
    assert "are both called gpt_4" in refused(
        tmp_path, csv_of(routerbench()).replace("zephyr", "gpt 4").replace("gpt-4", "gpt/4")
    )


def test_columns_of_models_can_be_named(tmp_path):
    """`correct.ARM=COLUMN` reads a table in which no name shows what a column is, and `cost=` leaves a value out."""
    text = "ask,m1,m2,usd m1,usd m2\nq0,1,0,0.02,0.001\nq1,0.5,1,0.03,0.002\n"
    named = parse_columns(
        ["question=ask,correct.gpt-4=m1,correct.zephyr=m2,dollars.gpt-4=usd m1,dollars.zephyr=usd m2"]
    )
    assert values(read(tmp_path, text, columns=named), "dollars") == list(zip(CORRECT, COST, strict=True))
    assert read(tmp_path, csv_of(routerbench()), columns=parse_columns(["cost="])).rows[0].costs == {}
    assert "m9 (correct.x)" in refused(tmp_path, text, columns=parse_columns(["question=ask,correct.x=m9"]))
    with pytest.raises(InvalidInput, match="no value of a table"):
        parse_columns(["colour.gpt-4=m1"])


def test_values_beside_models_can_be_named(tmp_path):
    """`steps=total_cost` reads MODEL|total_cost as steps, as `policy train` needs them; other values likewise."""
    table = read(tmp_path, csv_of(routerbench()), columns=parse_columns(["steps=total_cost"]))
    assert [dict(row.steps) for row in table.rows] == COST
    assert table.rows[0].costs == {}
    text = "q,a|grade,b|grade,a|fee,b|fee\nq0,1,0,2,3\n"
    [row] = read(tmp_path, text, columns=parse_columns(["question=q,correct=grade,dollars=fee"])).rows
    assert (dict(row.correct), dict(row.costs["dollars"])) == ({"a": 1.0, "b": 0.0}, {"a": 2.0, "b": 3.0})


def test_a_table_without_outcomes_is_refused_with_a_form_that_works(tmp_path):
    """If no column has outcomes, the refusal names the file's columns, and the columns and the option that would do."""
    said = refused(tmp_path, "prompt,m1,m2\nq0,1,0\n")
    assert "no column correct; it has prompt, m1, m2" in said
    assert "correct.MODEL and dollars.MODEL" in said
    assert "--columns correct.a=COLUMN" in said


def test_a_wrong_cell_is_named_by_the_column_of_the_file(tmp_path):
    """A score of 85 or a cost of -1 is refused by line and by the name that the file gives the column."""
    rows = routerbench()
    rows[1] |= {"gpt-4": 85, "zephyr|total_cost": -1}
    said = refused(tmp_path, csv_of(rows))
    assert "line 3 gpt-4 '85' cannot be used" in said
    assert "line 3 zephyr|total_cost '-1' cannot be used" in said

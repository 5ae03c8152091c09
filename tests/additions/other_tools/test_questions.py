"""Logs of other tools become questions, whatever their fields hold."""

import contextlib
import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings, strategies as st

from ragbandit.additions.other_tools import questions as module
from ragbandit.additions.other_tools.questions import QuestionLog
from ragbandit.shared.errors import InvalidInput
from tests.additions.other_tools.other_logs import ANSWERED, ASKED, LOGS, lines
from tests.support import command

_LATER = {"role": "user", "content": "When?"}
_CHAT = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWERED}]


@pytest.fixture
def log_of(tmp_path):
    def make(text, name="log.jsonl", **options):
        file = tmp_path / name
        file.write_text(text, "utf-8")
        return QuestionLog(path=file, **options)

    return make


@pytest.mark.parametrize("name", LOGS)
def test_every_form_is_recognised_and_read(log_of, name):
    """The content names the form, and the question is that of the root, with answer, model and what the log has."""
    form, text = LOGS[name]
    log = log_of(text, name="log")  # the name of the file says nothing
    first, *others = log.rows()
    assert (log.form["name"], first["question"], first["answer"]) == (form, ASKED, ANSWERED)
    known = {"model": "mini", "prompt_tokens": 12, "completion_tokens": 3, "dollars": 0.004, "session": "s1"}
    facts = {field: first[field] for field in known if field in first}
    assert facts.items() <= known.items()
    assert "model" in facts or name == "langfuse"
    assert [row["question"] for row in others] == (["When?"] if name == "openwebui.json" else [])


@pytest.mark.parametrize(
    "column",
    [
        *("actual_output", "ai_response", "llm_response", "generated_answer", "model_output", "completion_text"),
        *("Bot Response", "assistantResponse", "final_answer", "predicted_answer", "generated_text", "rag_answer"),
    ],
)
def test_an_answer_may_have_another_name(log_of, column):
    """Columns that other tools call an answer are read as the answer, and not as a right answer."""
    (row,) = log_of(lines({"input": ASKED, column: ANSWERED, "expected_output": "Stoker"})).rows()
    assert (row["question"], row["answer"], row["answers"]) == (ASKED, ANSWERED, ["Stoker"])


def test_texts_of_a_table_that_are_not_read_are_named(tmp_path, monkeypatch):
    """The output names each column with texts that has no known name, and one of two answers; others are no texts."""
    monkeypatch.chdir(tmp_path)
    row = {"question": ASKED, "answer": ANSWERED, "completion": "Shelley", "what_it_wrote": "Poe", "stars": "5"}
    (tmp_path / "t.json").write_text(json.dumps([{**row, "row_id": "a1", "model": "mini", "session": "s1"}]))
    printed = command.run("data", "questions", "t.json", "--json", code=0).stdout
    assert json.loads(printed)["texts not read"].startswith("'completion', 'what_it_wrote' (--answer COLUMN")
    (tmp_path / "u.json").write_text(json.dumps([{"question": ASKED, "answer": ANSWERED}]))
    assert "texts not read" not in json.loads(command.run("data", "questions", "u.json", "--json", code=0).stdout)


@pytest.mark.parametrize("column", ["session", "model"])
@pytest.mark.parametrize("value", [datetime(2026, 1, 2, tzinfo=UTC), b"words", Decimal("1.5"), timedelta(1)])
def test_a_column_of_parquet_may_have_any_type(tmp_path, column, value):
    """Times, bytes and decimals in a column of Parquet are read as texts."""
    table = pyarrow.Table.from_pylist([{"question": ASKED, column: value}])
    pyarrow.parquet.write_table(table, tmp_path / "log")
    [row] = QuestionLog(path=tmp_path / "log").rows()
    assert (row["question"], type(row[column])) == (ASKED, str)


def test_costs_of_a_trace_count_once(log_of):
    """A root that repeats the cost of its calls is not added to them, and calls without a root's cost are summed."""
    (row,) = log_of(LOGS["langsmith.jsonl"][1]).rows()
    assert row["dollars"] == 0.004
    call = {
        "traceId": "t",
        "type": "GENERATION",
        "input": "inner",
        "costDetails": {"total": 0.25},
        "parentObservationId": "r",
    }
    root = {"id": "r", "traceId": "t", "type": "SPAN", "input": "Why?"}
    tool = {"id": "x", "traceId": "t", "type": "TOOL", "input": "y", "parentObservationId": "r"}
    embedding = {"id": "y", "traceId": "t", "type": "EMBEDDING", "model": "vectors", "parentObservationId": "r"}
    call["model"] = "mini"
    (row,) = log_of(lines({"id": "a", **call}, tool, embedding, {"id": "b", **call}, root)).rows()
    assert (row["question"], row["dollars"], row["model"]) == ("Why?", 0.5, "mini")


def test_turns_of_a_chat_know_the_shown_answer(log_of):
    """In the tree of a chat, the answer on the shown branch belongs to a question, not one that was made again."""
    one, two = log_of(LOGS["openwebui.json"][1]).rows()
    assert (one["answer"], one["turn"], one["scores"]) == (ANSWERED, 1, {"score": 1.0})
    assert (two["answer"], two["turn"], two["session"]) == ("1897", 2, "s1")


def test_fields_about_people_are_left_out_unless_asked_for(log_of):
    """Users and metadata are only written on request."""
    for personal in (False, True):
        rows = log_of(LOGS["langfuse.json"][1], personal=personal).rows()
        assert ("jo@example.org" in json.dumps([*rows])) is personal


def test_gold_answers_are_those_that_the_log_names(log_of):
    """Reference outputs and columns of right answers become gold answers; the answer that was given does not."""
    for name in LOGS:
        (row, *_) = log_of(LOGS[name][1]).rows()
        assert row.get("answers", []) == (["Stoker"] if name in ("langsmith.jsonl", "table.csv") else [])


def test_steps_and_records_without_messages_are_counted(log_of):
    """Calls that go on after tools are steps; a spend log without texts names the setting that stores them."""
    spend = {"spend": 1, "request_id": "r"}
    chat = [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "x"},
    ]
    rows = lines({**spend, "messages": {}}, {**spend, "request_id": "s", "messages": chat}, "no object")
    log = log_of(rows + "\nno json\n")
    assert [*log.rows()] == []
    stored = next(reason for reason in log.left_out if "store_prompts_in_spend_logs" in reason)
    assert log.left_out == {"is a str": [3], "is not JSON": [4], stored: [1, 2]}


@pytest.mark.parametrize("name", [name for name in LOGS if not name.endswith(".csv")])
@pytest.mark.parametrize("wrong", [None, 7, {"a": [True]}, ["x"]])
def test_wrong_fields_leave_the_other_records_as_they_are(log_of, name, wrong):
    """Any field may be null or of another type: the log is still read, and the record is counted or used."""
    form, text = LOGS[name]
    document = [json.loads(line) for line in text.splitlines()]

    def spoiled(value, field):
        if isinstance(value, dict):
            return {key: wrong if key == field else spoiled(part, field) for key, part in value.items()}
        return [spoiled(part, field) for part in value] if isinstance(value, list) else value

    for field in sorted(set(re.findall(r'"(\w+)":', text))):
        log = log_of(lines(*document, *spoiled(document, field)))
        assert ASKED in {row["question"] for row in log.rows()}
        assert log.form["name"] == form


_NAMES = re.findall(
    r"\w+",
    "question input inputs messages attributes events chat history currentId role content parts id traceId spend name "
    "request_id choices object created time scores usage parent_id spans observations key value kvlistValue values",
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(_NAMES),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(_JSON, min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_no_json_makes_a_traceback(tmp_path_factory, values):
    """Whatever JSON a file holds, it gives rows that JSON can represent, or is refused."""
    file = tmp_path_factory.mktemp("log") / "log.jsonl"
    file.write_text(lines({"question": "Why?"}, *values))
    for row in QuestionLog(path=file).rows():
        assert json.loads(json.dumps(row, allow_nan=False))["question"].strip()
    file.write_text(json.dumps(values))
    with contextlib.suppress(InvalidInput):
        assert all(row["question"].strip() for row in QuestionLog(path=file).rows())


def test_the_output_has_the_questions_with_their_right_answers(tmp_path):
    """`data questions` writes questions with right answers, and prints models, costs and what the log cannot show."""
    log, out, config = tmp_path / "log.jsonl", tmp_path / "out.jsonl", tmp_path / "config.yaml"
    config.write_text("encoder: {model: hashing}\ngenerator: {model: big, token_prices: {input: 1.0, output: 10.0}}\n")
    rows = [
        {
            "id": n,
            "prompt": f"{'long ' * (20 * (n % 2))}question {n}?",
            "model": ["mini", "large"][n % 2],
            "cost": n % 2,
        }
        | {"prompt_tokens": 100, "completion_tokens": 10 + n, "score": 1, "expected": ["x"]}
        for n in range(40)
    ]
    log.write_text(lines(*rows))
    result = json.loads(command.run("data", "questions", log, "-o", out, "-c", config, "--json", code=0).stdout)
    first = json.loads(out.read_text().splitlines()[0])
    assert (first["question"], first["answers"]) == ("question 0?", ["x"])
    assert (result["questions"], result["of"], result["with right answers"]) == (40, "a table", 40)
    facts = [(row["model"], row["questions"], row["dollars"], row["scores"]) for row in result["models"]]
    assert facts == [("mini", 20, 0.0, {"score": "1 (of 20)"}), ("large", 20, 1.0, {"score": "1 (of 20)"})]
    different, would, no_comparison, then = result["what this log shows"]
    assert "different questions" in different
    # 40 questions of 100 tokens at 1 dollar, and answers of 14 to 45 tokens at 10 dollars, per million
    assert would.startswith("big would have cost $0.00956 to $0.022 with answers of 14 to 45 tokens")
    assert "cannot show which model answers better" in no_comparison
    assert then == f"next: `ragbandit advise {out} --budget 5 --config {config}`"


def test_names_of_models_stay_whole_in_a_narrow_terminal(tmp_path, monkeypatch):
    """At 80 columns a model's name is on one line; a very long one is folded and loses no character."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich takes the output for a terminal
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "config.yaml").write_text("encoder: {model: hashing}\n")
    usual, long = ("gpt-4o-mini", "gpt-4o-2024-08-06"), "provider/" + "a-very-long-name-" * 6 + "end"
    for models in (usual, (long, "mini")):
        rows = [
            {
                "id": n,
                "prompt": f"question {n}?",
                "model": models[n % 2],
                "cost": 0.0012345,
                "score": 1,
                "prompt_tokens": 9,
            }
            for n in range(40)
        ]
        (tmp_path / "log.jsonl").write_text(lines(*rows))
        shown = command.run("data", "questions", "log.jsonl", terminal_width=80, code=0).stdout
        table = shown.partition("\nmodels\n")[2].partition("\n\n")[0].splitlines()
        assert max(map(len, table)) <= 80
        if models == usual:
            assert all(any(name in line for line in table) for name in usual)
        else:
            assert long in "".join(line.split(" ")[0] for line in table)


def test_a_log_without_questions_writes_nothing(tmp_path, monkeypatch):
    """A file in which nobody asks is refused with the reasons, and no file is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.jsonl").write_text(lines({"question": None}, {"question": " "}))
    done = command.run("data", "questions", "log.jsonl", code=2)
    assert "2: an empty question (first: record 1)" in done.stderr.replace("\n", " ")
    assert not (tmp_path / "questions.jsonl").exists()


def test_deep_and_wide_records_are_read_in_linear_time(log_of):
    """A value that is nested too deeply leaves out its record, and many objects and events in one take no minutes."""
    deep = '{"question": "a?", "metadata": ' + '{"m": ' * 900 + "1" + "}" * 900 + "}"
    wide = json.dumps({"question": "b?", **{f"k{n}": {} for n in range(100_000)}})
    events = [{"name": "x", "attributes": {f"e{n}": n}} for n in range(30_000)]
    span = json.dumps({"question": "c?", "attributes": {f"a{n}": n for n in range(30_000)}, "events": events})
    rows = log_of(f"{deep}\n{wide}\n{span}\n", personal=True).rows()
    assert [row["question"] for row in rows][-2:] == ["b?", "c?"]


def test_right_answers_of_examples_are_no_models_answers(log_of):
    """The outputs of LangSmith's examples are right answers: nobody gave them."""
    example = {
        "id": "e1",
        "dataset_id": "d1",
        "inputs": {"question": ASKED},
        "outputs": {"answer": "Stoker"},
        "metadata": {},
    }
    log = log_of(lines(example))
    (row,) = log.rows()
    assert (log.form["name"], row["answers"], row.get("answer")) == ("LangSmith examples", ["Stoker"], None)
    run = {**example, "run_type": "chain", "trace_id": "e1", "reference_dataset_id": None}
    (row,) = log_of(lines(run)).rows()
    assert (row.get("answers"), row["answer"]) == (None, "Stoker")


def test_an_instruction_is_asked_with_its_text(log_of):
    """A file of instructions (Alpaca) has the text to work on in another field, which belongs to the question."""
    (row,) = log_of(lines({"instruction": "Translate to German.", "input": "lake", "output": "See"})).rows()
    assert (row["question"], row["answer"]) == ("Translate to German.\n\nlake", "See")


@pytest.mark.parametrize(
    "messages",
    [[{"name": "Jo", "text": ASKED}, {"name": "Help desk", "text": ANSWERED}], [ASKED, ANSWERED], [[ASKED, ANSWERED]]],
)
def test_messages_without_roles_ask_nothing(log_of, messages):
    """Where nothing says who wrote a message, an answer could be taken for a question: the record is left out."""
    log = log_of(lines({"messages": messages}))
    assert [*log.rows()] == []
    assert log.left_out == {"the messages do not say who wrote them": [1]}


def test_the_newest_message_may_come_first(log_of):
    """Messages with times are read in the order of their times."""
    messages = [
        {**message, "created_at": f"2026-01-01T00:00:0{9 - at}Z"} for at, message in enumerate((_LATER, *_CHAT[::-1]))
    ]
    (row,) = log_of(lines({"messages": messages})).rows()
    assert (row["question"], row["turn"], row.get("answer")) == ("When?", 2, None)


def test_a_trace_has_the_tokens_of_its_observations(log_of):
    """A trace that has the dollars but no tokens takes the tokens of its observations."""
    call = {
        "id": "o",
        "type": "GENERATION",
        "input": "x",
        "usageDetails": {"input": 12, "output": 3},
        "parentObservationId": None,
    }
    trace = {
        "id": "t",
        "input": ASKED,
        "output": ANSWERED,
        "totalCost": 0.004,
        "observations": [call, {**call, "id": "p"}],
    }
    (row,) = log_of(json.dumps([trace])).rows()
    assert (row["dollars"], row["prompt_tokens"], row["completion_tokens"]) == (0.004, 24, 6)


def test_columns_of_tickets_are_guessed_or_named(log_of):
    """A table of tickets is read by a guess that is kept in `columns`, or by the columns that were named."""
    table = "Ticket ID,Subject,Description,Resolution,CSAT\n"
    table += "1,Books,Who wrote Dracula?,Bram Stoker,5\n2,Books,When?,1897,bad\n"
    log = log_of(table)
    first, second = log.rows()
    assert log.columns == {"question": "Description", "answer": "Resolution", "scores": "CSAT"}
    assert (first["question"], first["answer"], first["scores"]) == (ASKED, ANSWERED, {"score": 5.0})
    assert second["scores"] == {"score": 0.0}
    named = log_of(table, columns={"question": "Subject", "answer": "Description"})
    assert [(row["question"], row["answer"]) for row in named.rows()] == [("Books", ASKED), ("Books", "When?")]
    with pytest.raises(InvalidInput, match="no record has the columns 'Text'"):
        [*log_of(table, columns={"question": "Text"}).rows()]


def test_a_log_without_texts_tells_models_and_costs(tmp_path):
    """LiteLLM's default log has no texts: its models, shares and dollars are shown, also those of another model."""
    log, config = tmp_path / "log.jsonl", tmp_path / "config.yaml"
    config.write_text("encoder: {model: hashing}\ngenerator: {model: big, token_prices: {input: 1.0, output: 10.0}}\n")
    row = {"call_type": "acompletion", "spend": 0.25, "prompt_tokens": 100, "completion_tokens": 10, "messages": {}}
    log.write_text(lines(*({**row, "request_id": f"r{n}", "model": ["mini", "large"][n % 2]} for n in range(4))))
    out = tmp_path / "out.jsonl"
    result = json.loads(command.run("data", "questions", log, "-o", out, "-c", config, "--json", code=0).stdout)
    assert [(row["model"], row["share"], row["in all"]) for row in result["models"]] == [
        ("mini", 0.5, 0.5),
        ("large", 0.5, 0.5),
    ]
    assert result["what this log shows"][0].startswith("big would have cost $0.0008")
    assert (result["questions"], result["file"], out.exists()) == (0, None, False)


def test_a_file_with_too_many_records_is_refused_before_it_is_parsed(log_of, monkeypatch):
    """The number of records is bounded: a small packed file may have millions."""
    monkeypatch.setattr(module, "_MOST_RECORDS", 2)
    with pytest.raises(InvalidInput, match="over 2 records"):
        [*log_of("no json\n" * 3).rows()]

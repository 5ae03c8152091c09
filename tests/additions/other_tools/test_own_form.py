"""A form of logs that an addition offers: the one of docs/logs.md, in a folder of its own."""

import json
import re
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

import ragbandit.additions as package
from ragbandit.additions.other_tools import questions
from ragbandit.additions.other_tools.questions import QuestionLog
from ragbandit.shared.additions import _folders, additions, load_offered, offered_places
from ragbandit.testing.damages import damaged_records
from ragbandit.testing.logs import check_log_form
from tests.support import command

PAGE = (Path(__file__).parents[3] / "docs" / "logs.md").read_text(encoding="utf-8")
TICKETS = [
    {"ticket_number": 7, "articles": [{"body": "Who wrote Dracula?"}, {"body": "Stoker?"}, {"body": "Bram Stoker"}]},
    {"ticket_number": 8, "articles": [{"body": "When?"}]},
    {"ticket_number": 9, "articles": [{"body": ""}]},
]
FORM = """
class Survey:
    keys = ("frage",)

    @staticmethod
    def read(record):
        return [{"question": record["frage"], "scores": record["note"]}] if "frage" in record else None
"""
ADDITION = """
from ragbandit.shared.additions import Addition

ADDITION = Addition(logs={"a survey": "form:Survey"})
"""


@pytest.fixture
def help_desk(tmp_path, monkeypatch):
    """The addition of the page, and one for a table with columns of other names."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.partition("## A form of logs of your own\n")[2], re.DOTALL)
    for name, (form, addition) in {"help_desk": blocks[:2], "survey": (FORM, ADDITION)}.items():
        folder = tmp_path / "additions" / name
        folder.mkdir(parents=True)
        (folder / "form.py").write_text(form)
        (folder / "__init__.py").write_text(addition)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder.parent)])
    for read in (_folders, additions, offered_places, load_offered):
        read.cache_clear()
    yield
    for read in (_folders, additions, offered_places, load_offered):
        read.cache_clear()
    for name in ("help_desk", "survey"):
        sys.modules.pop(f"{package.__name__}.{name}.form", None)
        sys.modules.pop(f"{package.__name__}.{name}", None)


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_a_form_of_logs_in_an_addition_is_read(help_desk, tmp_path, ending):
    """`data questions` reads the log by the form's own fields, names the form, and counts what asks nothing."""
    log, out = tmp_path / f"log.{ending}", tmp_path / "questions.jsonl"
    log.write_text(json.dumps(TICKETS) if ending == "json" else "".join(f"{json.dumps(row)}\n" for row in TICKETS))
    shown = json.loads(command.run("data", "questions", log, "-o", out, "--json", code=0).stdout)
    assert (shown["questions"], shown["of"], len(shown["left out"])) == (2, "tickets of a help desk", 1)
    assert [json.loads(line) for line in out.read_text().splitlines()] == [
        {"id": "7", "question": "Who wrote Dracula?", "answer": "Bram Stoker", "turn": 1},
        {"id": "8", "question": "When?", "turn": 1},
    ]


def test_the_form_of_the_page_follows_the_contract(help_desk):
    """The class that docs/logs.md has as an example passes the check that the page names."""
    check_log_form(load_offered("logs")["tickets of a help desk"], records=TICKETS)


def test_no_damaged_record_ends_the_reading(help_desk, tmp_path):
    """Each record with a damaged field gives a question or is counted, and the whole record after them is read."""
    damaged = [*damaged_records(TICKETS[0])]
    log = QuestionLog(path=tmp_path / "log.jsonl")
    log.path.write_text("".join(f"{json.dumps(record)}\n" for record in [*damaged, TICKETS[1]]))
    rows = [*log.rows()]
    assert rows[-1]["question"] == "When?"
    assert 0 < len(rows) <= len(damaged)
    assert sum(map(len, log.left_out.values())) > 50


@pytest.mark.parametrize("field", ["session", "model", "id", "time", "tags", "user"])
@pytest.mark.parametrize("value", [datetime(2026, 1, 2, tzinfo=UTC), b"words", Decimal("1.5"), {"words"}, range(3)])
def test_values_of_a_form_are_written_or_their_record_is_left_out(monkeypatch, tmp_path, field, value):
    """A form may give values as Parquet has them; a record with other values is counted, and the next one is read."""

    class Form:
        keys = ("n",)

        @staticmethod
        def read(record):
            return [{"question": "Who?", field: value if record["n"] == 1 else None}] if "n" in record else None

    monkeypatch.setattr(questions, "load_offered", lambda hook: {"mine": Form})
    log = QuestionLog(path=tmp_path / "log.jsonl", personal=True)
    log.path.write_text('{"n": 1}\n{"n": 2}\n')
    rows = json.loads(json.dumps([*log.rows()]))
    is_written = not isinstance(value, set | range)
    assert len(rows) == 1 + is_written
    assert [*log.left_out.values()] == ([] if is_written else [[1]])


def test_a_log_that_a_form_cannot_read_at_all_is_refused_with_its_error(help_desk, tmp_path):
    """If the form raises for every record, the command says what it raised, and not only that the log is unknown."""
    (tmp_path / "log.jsonl").write_text('{"ticket_number": 6}\n')
    ran = command.run("data", "questions", tmp_path / "log.jsonl", "-o", tmp_path / "out.jsonl", code=2)
    assert "record 1: the form of logs 'tickets of a help desk' cannot read it" in " ".join(ran.stderr.split())


def test_a_log_of_another_tool_is_read_as_before(help_desk, tmp_path):
    """A record that an addition's form does not know is read by the forms that RagBandit knows."""
    (tmp_path / "log.jsonl").write_text('{"question": "Who wrote Dracula?", "answer": "Bram Stoker"}\n')
    command.run("data", "questions", tmp_path / "log.jsonl", "-o", tmp_path / "out.jsonl", code=0)
    assert json.loads((tmp_path / "out.jsonl").read_text())["answer"] == "Bram Stoker"


def test_a_table_has_the_columns_of_an_additions_form(help_desk, tmp_path):
    """A column of an addition's form is enough for a table, and cells are read as in other logs."""
    (tmp_path / "log.csv").write_text("frage;note\nWer?;4/5\nWann?;2/5\n")
    command.run("data", "questions", tmp_path / "log.csv", "-o", tmp_path / "out.jsonl", code=0)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["question"], row["scores"]) for row in rows] == [("Wer?", {"score": 4.0}), ("Wann?", {"score": 2.0})]


def test_a_record_that_an_additions_form_cannot_read_is_left_out(help_desk, tmp_path):
    """An error of an addition's form leaves out the record, with the name of the form and the number of the record."""
    log, out = tmp_path / "log.jsonl", tmp_path / "questions.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in [{"ticket_number": 6}, *TICKETS[:2]]))
    shown = json.loads(command.run("data", "questions", log, "-o", out, "--json", code=0).stdout)
    reason = "1: the form of logs 'tickets of a help desk' cannot read it (first: record 1)"
    assert (shown["questions"], shown["left out"]) == (2, [reason])

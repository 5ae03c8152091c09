"""A form of logs that an addition offers: the one of docs/logs.md, in a folder of its own."""

import json
import re
import sys
from pathlib import Path

import pytest

import ragbandit.additions as package
from ragbandit.shared.additions import additions, loaded, offered
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
    for read in (additions, offered, loaded):
        read.cache_clear()
    yield
    for read in (additions, offered, loaded):
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

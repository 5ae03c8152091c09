"""README.md: its commands and code run, and its extras exist."""

import itertools
import json
import logging
import re
import shlex
import textwrap
import tomllib
from pathlib import Path

import pytest

from ragbandit.router.api.schemas.requests import FeedbackBody, RouteBody
from tests.support import command
from tests.support.additions import is_offered

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
#: verbs that need a server, a model or minutes; the acceptance tests run them
ELSEWHERE = {"demo", "init", "up", "answer"}
#: exit codes of a verdict
VERDICTS = {"advise": {0, 3, 4}}


@pytest.mark.timeout(300)
def test_its_commands_run_in_a_clone(tmp_path, monkeypatch, caplog):
    """The README's configuration, Python and commands run as printed, one after the other, without a warning."""
    table = tmp_path / "examples" / "handbook" / "table.jsonl"
    table.parent.mkdir(parents=True)
    with (ROOT / table.relative_to(tmp_path)).open(encoding="utf-8") as rows:
        table.write_text("".join(itertools.islice(rows, 60)), encoding="utf-8")  # a tenth: it is learned eleven times
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAGBANDIT_ENCODER__MODEL", "hashing")
    shown = set()
    for kind, block, line in re.findall(
        r"```(yaml|python)\n(.*?)```|^    ragbandit ([^\n]*)$", README, flags=re.S | re.M
    ):
        words = shlex.split(line.partition("  #")[0])
        shown.update(words[:1])
        if kind == "yaml":
            (tmp_path / "config.yaml").write_text(block)
        elif kind == "python":
            exec(compile(block, "README.md", "exec"), {})
            assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
        elif words[0] not in ELSEWHERE and is_offered(line):
            done = command.run(*words)
            assert done.exit_code in VERDICTS.get(words[0], {0}), (words, done.output)
    assert shown >= {"advise", "report", "replay"} | ELSEWHERE
    pages = {"report.html", "replay.html", *(["verdict.html"] if is_offered("advise") else [])}
    assert {path.name for path in tmp_path.glob("*.html")} == pages
    assert json.loads(command.run("status", "--json", code=0).stdout)["counters"]["learned"] == 2


def test_the_python_is_what_the_type_checker_sees():
    """The calls of both examples stand in examples/readme.py, which `mypy --strict` checks with the rest."""
    typed = (ROOT / "examples" / "readme.py").read_text(encoding="utf-8")
    (library,) = re.findall(r"```python\n.*?^(with Router.*?)```", README, flags=re.S | re.M)
    (client,) = re.findall(r"    from ragbandit import Client\n\n((?:    .*\n)+)", README)
    for shown in (textwrap.indent(library, "    "), client):
        assert shown in typed


def test_the_report_is_that_of_its_page():
    """The README and docs/report.md show one sentence of a report, which `python -m benchmarks.report` prints."""
    page = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"`(Last [\d.]+ days: .*?)`", README, flags=re.S)
    assert " ".join(sentence.split()) in " ".join(page.split())


def test_the_http_examples_are_taken():
    """Every body that the README sends by curl is one that the service takes."""
    sent = re.findall(r"/v1/(answer|route|feedback) -H 'content-type: application/json'[\s\\]+-d '(.*?)'\n", README)
    bodies = [(FeedbackBody if path == "feedback" else RouteBody).model_validate_json(body) for path, body in sent]
    assert len(bodies) == README.count("curl -s localhost:8100/v1/") - README.count("/v1/decisions/ID\n")
    assert [body.budget.rounds for body in bodies if isinstance(body, RouteBody)] == [2, None]


def test_extras_are_those_of_the_package():
    """The tutorial's list of extras names every extra of pyproject.toml; it and the Makefile name no other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = TUTORIAL[TUTORIAL.index("| extra |") :].split("\n\n")[0]
    named = [
        name for cell in re.findall(r"^\| (`[^|]*) \|", table, flags=re.M) for name in re.findall(r"`([\w-]+)`", cell)
    ]
    assert named == sorted(project["optional-dependencies"], key=lambda name: table.index(f"`{name}`"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installed = re.findall(r"'\.\[([\w,-]+)\]'", README + TUTORIAL + makefile)
    assert {name for names in installed for name in names.split(",")} <= set(project["optional-dependencies"])

"""docs/openai.md: its code runs as it stands, its bodies are taken."""

import re
import runpy
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[4] / "docs" / "openai.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8100"


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, flags=re.S | re.M)


def test_the_python_of_the_page_runs(service, answers, capsys):
    """All of its blocks run one after the other against a service, and print the answer."""
    answers()
    code = "\n".join(blocks("python")).replace(ADDRESS, service.url)
    names: dict = {}
    exec(compile(code, "docs/openai.md", "exec"), names)
    said = capsys.readouterr().out
    assert said.count("Bram Stoker") == 1
    assert "ragbandit/" in said
    names["client"].close()
    assert service.router.status().counters.feedback == 1


def test_the_example_runs(service, answers, capsys, monkeypatch):
    """examples/openai_client.py prints an answer in pieces, and its rating is stored."""
    answers()
    monkeypatch.setenv("RAGBANDIT_URL", service.url)
    monkeypatch.setattr(sys, "argv", ["openai_client"])
    runpy.run_module("ragbandit.examples.openai_client", run_name="__main__")
    said = capsys.readouterr().out
    assert said.startswith("Bram Stoker\n(ragbandit/")
    assert service.router.status().counters.feedback == 1

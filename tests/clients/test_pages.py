"""What the documentation and the examples show of the frameworks of this environment runs as it stands."""

import importlib.util
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: page of docs/integrations/ -> the package that its framework is
PAGES = {"haystack": "haystack", "langchain": "langchain_core", "langgraph": "langgraph", "llama-index": "llama_index"}
HERE = [page for page, package in PAGES.items() if importlib.util.find_spec(package) is not None]


@pytest.mark.parametrize("page", HERE)
def test_the_page(page, judged):
    """All Python of the page runs in one process, from top to bottom, and its feedback is stored."""
    path, names = f"docs/integrations/{page}.md", {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), flags=re.S)
    for code in blocks:
        exec(compile(code, path, "exec"), names)
    assert judged
    assert not [receipt for receipt in judged if "degraded" in receipt]


@pytest.mark.parametrize("page", HERE)
def test_the_example(page, judged, capsys):
    """The program of examples/ prints an answer, and its feedback is stored."""
    runpy.run_module(f"ragbandit.examples.{page.replace('-', '_')}_router", run_name="__main__")
    assert capsys.readouterr().out.strip()
    assert [("degraded" in receipt, receipt["waiting_for"]) for receipt in judged] == [(False, None)]

"""Pages of the documentation and examples, run as they stand."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_page(page):
    """All Python of a page, in one process, from top to bottom; the names that it has made."""
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S)
    assert blocks
    for code in blocks:
        exec(compile(code, page, "exec"), names)
    return names


def run_example(name):
    """A program of examples/."""
    runpy.run_module(f"examples.{name}", run_name="__main__")


def check_page(page, judged):
    """The page's code runs, and its feedback is stored."""
    run_page(f"docs/integrations/{page}.md")
    assert judged
    assert not [receipt for receipt in judged if "degraded" in receipt]


def check_example(name, judged, capsys):
    """The program prints an answer, and its feedback is stored."""
    run_example(f"{name}_router")
    assert capsys.readouterr().out.strip()
    assert [("degraded" in receipt, receipt["waiting_for"]) for receipt in judged] == [(False, None)]

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

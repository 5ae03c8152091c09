"""What tests read from the documentation: code as modules, and the rows that stay."""

import importlib
import re
import sys
from pathlib import Path

from ragbandit.shared.additions import additions

DOCS = Path(__file__).parents[2] / "docs"
#: rows of docs/rows.md: name, part, how users reach it, tests
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (DOCS / "rows.md").read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| row |")
]


def parts_of(row):
    """The folders in which a row lives."""
    return re.findall(r"`([\w/]+)`", row[1])


def without(row):
    """Whether a row belongs to an addition that this tree lacks (`make without`)."""
    additions = [part for part in parts_of(row) if part.startswith("ragbandit/additions/")]
    return any(not (DOCS.parent / part).is_dir() for part in additions)


def names_without():
    """Names of the arms, policies and settings of the additions that this tree lacks."""
    return {name for row in ROWS if without(row) for name in re.findall(r"`(\w+(?:\.\w+)*)`", row[2])}


def pages_of(hook):
    """The pages of the additions that offer something for a hook: an arm, a policy may be documented there."""
    return [DOCS / page for what in additions().values() if getattr(what, hook) for page in what.pages]


def table_lines(text, *, first):
    """The lines of the tables whose first column has this heading, without the heads."""
    tables = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-| :]+\n((?:\|.*(?:\n|$))+)", text, flags=re.M)
    return [line for table in tables for line in table.splitlines()]


def module_of(page, name, *, folder):
    """The Python block after the first mention of `NAME.py` on a page, imported from a folder that is on sys.path."""
    text = (DOCS / page).read_text(encoding="utf-8").partition(f"`{name}.py`")[2]
    code = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (Path(folder) / f"{name}.py").write_text(code[1], encoding="utf-8")
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module(name)

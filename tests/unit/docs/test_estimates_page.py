"""docs/estimates.md names every constant of the report's estimator with the value that the code has."""

import ast
import re
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/estimates.md").read_text(encoding="utf-8")
FILES = [*sorted((ROOT / "router/reporting/estimates").glob("*.py")), ROOT / "ragbandit/shared/confidence_sequences.py"]


def constants():
    """Name -> value of every constant that these files define."""
    values = {}
    for file in FILES:
        path = file.relative_to(ROOT).with_suffix("").as_posix().removeprefix("ragbandit/").removesuffix("/__init__")
        module = import_module("ragbandit." + path.replace("/", "."))
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            values |= {name: getattr(module, name) for name in names if re.fullmatch(r"_?[A-Z][A-Z0-9_]+", name)}
    return values


def shown(value):
    return f"{value[0]:.4g} to {value[-1]:.4g} ({len(value)})" if isinstance(value, tuple) else value


def test_the_page_names_every_constant_with_its_value():
    """The table has each constant of the estimator once, with its present value, a meaning, and what fixed it."""
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.partition("## Constants")[2], flags=re.M
    )
    named = {name: value if " to " in value else float(value) for name, value, *_ in rows}
    assert named == {name: shown(value) for name, value in constants().items()}
    assert len(rows) == len(named) >= 19


def test_the_files_of_the_page_exist():
    """Each file of the estimator is named on the page, and each Python file that the page names is one of it."""
    assert set(re.findall(r"`(\w+\.py)`", PAGE)) == {file.name for file in FILES[:-1]}

"""Additions: folders that the core finds by name and never imports, so that each can be deleted."""

import ast
from pathlib import Path

import pytest

from ragbandit.shared import additions as module
from ragbandit.shared.additions import HOOKS, PACKAGE, Addition, additions, loaded, offered

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "ragbandit" / "additions"


def imports_of(file):
    """The modules that a file imports, also inside functions, and those that it names in texts."""
    nodes = [*ast.walk(ast.parse(file.read_text("utf-8")))]
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return names | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


def additions_in(names):
    return {name.split(".")[2] for name in names if name.startswith(f"{PACKAGE}.")}


@pytest.mark.parametrize("name", additions())
def test_an_addition_is_a_folder_with_its_tests(name):
    """An addition has tests, imports only additions that it declares, and its `__init__` imports only `Addition`."""
    files = [*(FOLDER / name).rglob("*.py"), *(ROOT / "tests" / "additions" / name).rglob("*.py")]
    assert (ROOT / "tests" / "additions" / name).is_dir()
    assert additions_in(set().union(*map(imports_of, files))) <= {name, *additions()[name].needs}
    assert imports_of(FOLDER / name / "__init__.py") == {"ragbandit.shared.additions"}
    assert any(getattr(additions()[name], hook) for hook in HOOKS)


def test_the_core_imports_no_addition():
    """No file of the core or of its tests imports an addition, also not inside a function."""
    parts = ("router", "strategies", "workers", "ragbandit", "examples", "benchmarks", "tests")
    files = {file for part in parts for file in (ROOT / part).rglob("*.py")}
    core = {file for file in files if "additions" not in file.relative_to(ROOT).parts}
    assert len(core) > 500
    assert {file.name for file in core if additions_in(imports_of(file))} == set()


@pytest.mark.parametrize("hook", HOOKS)
def test_what_is_offered_can_be_loaded(hook):
    """Each name that an addition offers leads to something that can be imported."""
    assert loaded(hook).keys() == offered(hook).keys()
    assert None not in loaded(hook).values()


def test_a_name_belongs_to_one_addition(monkeypatch):
    """Two additions that offer the same name are an error that names both."""
    both = {"first": Addition(arms={"curt": "arm:Curt"}), "second": Addition(arms={"curt": "arm:Curt"})}
    monkeypatch.setattr(module, "additions", lambda: both)
    offered.cache_clear()
    with pytest.raises(ValueError, match=r"two additions offer 'curt' in arms: ragbandit.additions.first.arm:Curt"):
        offered("arms")
    offered.cache_clear()

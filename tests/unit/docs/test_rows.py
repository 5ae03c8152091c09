"""docs/rows.md: what stays, and the test of each row."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from ragbandit.router.policies import built_in_policies
from ragbandit.shared.additions import offered_places
from ragbandit.strategies.registry import built_in_arms
from tests.support.additions import marked
from tests.support.pages import ROWS, pages_of, parts_of, without

ROOT = Path(__file__).parents[3]
#: A new row raises this number. It never falls, since no row leaves.
FEWEST = 77
_TEST = re.compile(r"`((?:unit|integration|acceptance|clients|additions)/[\w/-]+\.py)::(\w+)`")


@cache
def marks_of_tests(path: Path) -> dict[str, list[str]]:
    """Name of each test of a file -> the marks of the whole test."""
    tree = ast.parse(path.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    tests = (node for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test_"))
    return {test.name: [ast.unparse(mark) for mark in test.decorator_list] for test in tests}


@pytest.mark.parametrize("row", marked((row,) for row in ROWS), ids=[row[0] for row in ROWS])
def test_a_row_has_its_part_and_its_test(row):
    """Each row names folders that exist and tests that exist, run in every run, and are not skipped everywhere."""
    parts = parts_of(row)
    assert parts
    if without(row):
        return
    assert all((ROOT / each).is_dir() for each in parts), parts
    named = _TEST.findall(row[3])
    assert named
    for file, name in named:
        test = ROOT / "tests" / file
        if file.startswith("additions/") and not test.parent.is_dir():
            continue  # a test of an addition that this tree lacks
        marks = marks_of_tests(test)[name]
        assert not any(
            re.fullmatch(r"pytest\.mark\.(skip|slow|gpu|faults|browser)(\(.*\))?", mark) for mark in marks
        ), marks


def test_no_row_leaves():
    """The page has at least as many rows as ever."""
    assert len(ROWS) >= FEWEST
    assert len({row[0] for row in ROWS}) == len(ROWS)


def test_each_arm_and_policy_is_in_a_row():
    """Each built-in arm and policy is named by the row that keeps it, or by the page of the addition that offers it."""
    names = {word for row in ROWS for word in re.findall(r"`(\w+)`", row[2])}
    for hook in ("arms", "policies"):
        pages = "".join(page.read_text("utf-8") for page in pages_of(hook))
        names |= {name for name in offered_places(hook) if f"`{name}`" in pages}
    assert {*built_in_arms(), *built_in_policies()} <= names

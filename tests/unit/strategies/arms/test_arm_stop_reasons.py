"""What the arms promise to say when they stop is held to by their tests."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from ragbandit.strategies.registry import ARMS

#: where arms are tested: here, and those behind a server
ROOMS = (Path(__file__).parent, Path(__file__).parents[3] / "integration" / "arms")


@cache
def asserted_by_file():
    """(the names that a file of tests imports, every text in its assertions and its parameters) of each file."""
    found = []
    for file in [file for room in ROOMS for file in room.glob("test_*.py")]:
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        names = {each.name for node in nodes if isinstance(node, ast.ImportFrom) for each in node.names}
        parts = [node for node in nodes if isinstance(node, ast.Assert)]
        parts += [each for node in nodes for each in getattr(node, "decorator_list", [])]
        constants = (each.value for part in parts for each in ast.walk(part) if isinstance(each, ast.Constant))
        found.append((names, {value for value in constants if isinstance(value, str)}))
    return found


def promised_words(kind):
    """What the docstrings of an arm's class quote: stop reasons and rules of the trace."""
    ours = [each for each in kind.__mro__ if each.__module__.startswith("ragbandit.strategies")]
    said = " ".join(f"{each.__doc__} {getattr(each, 'answer', each).__doc__}" for each in ours)
    return set(re.findall(r'"([a-z]+(?:_[a-z]+)+|answered|finished|sure)"', said))


def asserted_words(kind):
    """Every text in an assertion of the tests that import an arm's class, or in what they are parametrised with."""
    return set().union(*(words for names, words in asserted_by_file() if kind.__name__ in names))


@pytest.mark.parametrize("name", sorted(ARMS))
def test_every_stop_reason_is_asserted(name):
    """What an arm's docstrings promise to say, some test of that arm holds it to."""
    module, _, kind = ARMS[name].partition(":")
    found = getattr(import_module(module), kind)
    promised = promised_words(found)
    assert promised
    assert promised - asserted_words(found) == set()


def test_a_promise_that_no_test_holds_is_found():
    """A word that no test asserts of an arm is not taken for asserted because the arm's code has it."""

    class Flare:
        pass

    assert "max_sentences" in asserted_words(Flare)
    assert "no_action" not in asserted_words(Flare)

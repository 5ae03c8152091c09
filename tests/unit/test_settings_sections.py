"""A function takes the section of the settings that it reads, not the whole tree."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: folders whose task is the whole tree: configuration, commands and the setting up of parts. An addition gets the whole
#: tree by its hooks, and takes its own section out of it
ALLOWED = (
    "router/config/",
    "router/cli/",
    "router/verbs/",
    "router/serving/setup/",
    "workers/setup/",
    "workers/verbs/",
)
#: room -> number of parameters with the whole tree that are left there. Lower a number
#: when you take some away; a room without a number has none
LEFT = {
    "router/api": 1,
    "router/learning": 4,
    "router/offline": 12,  # rows_of came from the examples
    "router/policies": 1,
    "router/queue": 2,
    "router/reporting": 1,  # which command reaches a verdict depends on arms, judge and reward
    "router/rollouts": 2,
    "router/serving": 4,  # the assembly of a Router; feedback
    "workers/scoring": 1,
    "workers/chores": 2,  # a request for a bought verdict
    "workers/pairs": 3,  # the assembly of a paired comparison, for the command and for a learner
    "workers/processes": 1,
}


def whole_trees(file: Path) -> int:
    """Number of parameters in this file that are annotated with `Settings`."""
    functions = (
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    parameters = (p for f in functions for p in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs))
    names = (
        {part.id for part in ast.walk(p.annotation) if isinstance(part, ast.Name)} for p in parameters if p.annotation
    )
    return sum("Settings" in annotation for annotation in names)


def test_no_room_has_more_parameters_with_the_whole_tree_of_settings():
    """Outside set-up, commands and entry points, the number of parameters annotated with `Settings` only falls."""
    counts = Counter[str]()
    for room in ("router", "workers", "strategies", "ragbandit/shared", "ragbandit/client"):
        for file in (ROOT / room).rglob("*.py"):
            parts = file.relative_to(ROOT).parts
            if not "/".join(parts).startswith(ALLOWED):
                counts["/".join(parts[:2])] += whole_trees(file)
    assert {name: count for name, count in counts.items() if count > LEFT.get(name, 0)} == {}

"""What a reader of the code has to hold in mind, counted from the syntax trees of the product.

Files and lines that a street reaches, public names with two meanings, and comments of fields without a field.
"""

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: folders of the product. `ragbandit` has links to the first three, which are not followed
PARTS = ("router", "strategies", "workers", "ragbandit", "migrations")
#: street -> the module where it begins
STREETS = {
    "library": "ragbandit.router.serving.router",
    "POST /v1/route": "ragbandit.router.api.endpoints.decisions",
    "POST /v1/feedback": "ragbandit.router.api.endpoints.feedback",
    "learner": "ragbandit.router.learning.learner",
    "worker": "ragbandit.workers.processes.worker",
    "replay": "ragbandit.router.verbs.replay",
}
#: names of modules and packages whose functions have the name of an endpoint or of a command, which decorators read
NAMED_FOR_USERS = {"endpoints", "verbs", "migrations"}


#: functions of ours that run SQL as a text with `?`; functions of SQLAlchemy that make statements
TEXTS = {"run_statement", "send"}
EXPRESSIONS = {"select", "insert", "update", "delete", "exists"}


class House:
    """The product's modules with their syntax trees."""

    def __init__(self, root: Path = ROOT) -> None:
        self.files = dict(_modules(root))
        self.texts = {name: file.read_text(encoding="utf-8") for name, file in self.files.items()}
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}

    @cached_property
    def imports(self) -> Mapping[str, set[str]]:
        """Module -> the modules that it imports, also inside functions, but not for type checking only."""
        return {name: set(self._imported(tree)) for name, tree in self.trees.items()}

    def _imported(self, tree: ast.AST) -> Iterator[str]:
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                continue
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.files)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
                yield from (name for name in names if name in self.files)
            yield from self._imported(node)

    def street(self, start: str) -> set[str]:
        """The modules that a module reaches, with their packages."""
        reached, open_ones = set[str](), [start]
        while open_ones:
            name = open_ones.pop()
            if name in reached or name not in self.files:
                continue
            reached.add(name)
            open_ones += [*self.imports[name], name.rpartition(".")[0]]
        return reached

    def lines(self, names: set[str]) -> int:
        return sum(self.texts[name].count("\n") for name in names)

    def doubled(self) -> Mapping[str, list[str]]:
        """Public name of a function or class -> its modules, if there are two."""
        places = defaultdict[str, list[str]](list)
        for module, tree in self.trees.items():
            if not NAMED_FOR_USERS.isdisjoint(module.split(".")):
                continue
            for node in tree.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                    places[node.name].append(module)
        return {name: sorted(modules) for name, modules in sorted(places.items()) if len(modules) > 1}

    def two_styles(self) -> list[str]:
        """Functions with SQL as texts with `?`, except locks, and as expressions of SQLAlchemy: "module.function"."""
        found = []
        for module, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    called = {call.func.id for call in ast.walk(node) if _calls_a_name(call)}
                    if called & TEXTS and called & EXPRESSIONS:
                        found.append(f"{module}.{node.name}")
        return found

    def dangling(self) -> list[str]:
        """Comments of a field (`#:`) above an empty line: "module:line"."""
        found = []
        for module, text in self.texts.items():
            lines = text.split("\n")
            for number, (line, after) in enumerate(itertools.pairwise(lines), start=1):
                if line.strip().startswith("#:") and not after.strip():
                    found.append(f"{module}:{number}")
        return found


def _modules(root: Path) -> Iterator[tuple[str, Path]]:
    for part in PARTS:
        for file in sorted((root / part).rglob("*.py")):
            path = file.relative_to(root)
            if any((root / parent).is_symlink() for parent in path.parents):
                continue
            names = path.with_suffix("").parts
            names = names[:-1] if names[-1] == "__init__" else names
            yield ".".join(names if names[0] == "ragbandit" else ("ragbandit", *names)), file


def _calls_a_name(node: ast.AST) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_call and not (len(node.args) > 1 and "_LOCK_" in ast.dump(node.args[1]))

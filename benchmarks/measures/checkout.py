"""The size of a checkout, its folders and its imports, read from its files."""

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

#: the folders of the product
PRODUCT = ("ragbandit", "router", "strategies", "workers", "migrations")
#: fields of an update, in how many files each is spelled
FIELDS = ("judged_by", "sample_weight", "raw_quality")


def product_files(tree: Path) -> list[Path]:
    """The product's Python files, links left out."""
    return sorted(
        path
        for folder in PRODUCT
        for path in (tree / folder).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.relative_to(tree).parents if str(parent) != ".")
        and not (tree / path.relative_to(tree).parts[0] / path.relative_to(tree).parts[1]).is_symlink()
    )


def code_lines(text: str) -> int:
    """Lines without docstrings, comments and blank lines."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docs.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docs)


def _module(path: Path, tree: Path) -> str:
    parts = path.relative_to(tree).with_suffix("").parts
    parts = parts if parts[0] == "ragbandit" else ("ragbandit", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(node: ast.AST, module: str) -> Iterator[str]:
    """Modules that are imported anywhere below, also inside functions; `if TYPE_CHECKING` left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = module.split(".")
            base = base[: len(base) - child.level] if child.level else []
            name = ".".join([*base, *([child.module] if child.module else [])])
            yield from (f"{name}.{alias.name}" for alias in child.names)
        else:
            yield from _imports(child, module)


def circles(tree: Path) -> list[list[str]]:
    """Files of the product that import each other in a circle; packages' own `__init__` left out."""
    files = {_module(path, tree): path for path in product_files(tree) if path.name != "__init__.py"}
    arrows = {
        module: {
            name
            for wanted in _imports(ast.parse(path.read_text(encoding="utf-8")), module)
            for name in (wanted, wanted.rpartition(".")[0])
            if name in files and name != module
        }
        for module, path in files.items()
    }
    return _components(arrows)


def _components(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of two and more nodes (Tarjan 1972, with a stack of its own)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []
    for root in arrows:
        if root in order:
            continue
        work = [(root, iter(sorted(arrows[root])))]
        order[root] = low[root] = len(order)
        stack.append(root)
        while work:
            node, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    component = stack[stack.index(node) :]
                    del stack[stack.index(node) :]
                    if len(component) > 1:
                        components.append(sorted(component))
            elif following not in order:
                order[following] = low[following] = len(order)
                stack.append(following)
                work.append((following, iter(sorted(arrows[following]))))
            elif following in stack:
                low[node] = min(low[node], order[following])
    return components


def fields(tree: Path) -> dict[str, int]:
    """In how many files of the product each of FIELDS is spelled."""
    texts = [path.read_text(encoding="utf-8") for path in product_files(tree)]
    return {field: sum(field in text for text in texts) for field in FIELDS}


def entries(tree: Path) -> list[tuple[int, str]]:
    """Entries of every folder of the product, most first."""
    folders = {path.parent for path in product_files(tree)}
    counted = []
    for folder in folders:
        names = [path.name for path in folder.iterdir() if not path.name.startswith("_")]
        counted.append((len(names), str(folder.relative_to(tree))))
    return sorted(counted, reverse=True)

"""`python -m benchmarks.measures [TREE...]`: how large and how deep the code is; one column for each checkout.

Lines are counted by `wc -l`; "code" leaves out docstrings, comments and blank lines. The three walks are counted by a
profiler in the processes of a real service: the files and functions of ours that run between a request and its effect.
`--walks` prints them.
"""

import argparse
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measures.checkout import circles, code_lines, entries, fields, product_files
from benchmarks.measures.walks import replay_walk, service_walks

ROOT = Path(__file__).parents[2]


def _count(walk: Iterable[tuple[str, str]]) -> str:
    pairs = set(walk)
    return f"{len({file for file, _ in pairs})} / {len(pairs)}"


def measures(tree: Path) -> dict[str, str]:
    """Name of a measure -> its value."""
    texts = [path.read_text(encoding="utf-8") for path in product_files(tree)]
    tests = [path.read_text(encoding="utf-8") for path in (tree / "tests").rglob("*.py")]
    rules = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    replayed, passes = replay_walk(tree)
    ran = service_walks(tree)
    return {
        "product Python, lines / code": f"{sum(t.count(chr(10)) for t in texts):,} / {sum(map(code_lines, texts)):,}",
        "tests, lines": f"{sum(text.count(chr(10)) for text in tests):,}",
        **{f"{name}: files / functions": _count(walk) for name, walk in ran.items()},
        "Parquet row to interval: files / functions": _count(replayed),
        "Parquet row to interval: passes": str(passes),
        "files that spell a field of an update": ", ".join(f"{n} {field}" for field, n in fields(tree).items()),
        "circles of imports": str(len(circles(tree))),
        "import rules": str(len(rules)),
        "folders above 13 entries": ", ".join(f"{name} {n}" for n, name in entries(tree) if n > 13),
        "files above 400 lines": str(sum(text.count("\n") > 400 for text in texts)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table: a row for each measure, a column for each tree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, default=[ROOT], help="checkouts; default: this one")
    parser.add_argument("--walks", action="store_true", help="print the files of each walk instead")
    options = parser.parse_args(arguments)
    console = Console()
    if options.walks:
        for name, walk in {
            **service_walks(options.trees[0]),
            "Parquet row to interval": replay_walk(options.trees[0])[0],
        }.items():
            console.print(f"[bold]{name}[/bold]")
            for file in sorted({file for file, _ in walk}):
                console.print(f"  {file}: " + ", ".join(sorted(f for where, f in walk if where == file)))
        return
    columns = {str(tree): measures(tree.resolve()) for tree in options.trees}
    table = Table("measure", *columns)
    for name in next(iter(columns.values())):
        table.add_row(name, *(column[name] for column in columns.values()))
    console.print(table)


if __name__ == "__main__":
    main()
